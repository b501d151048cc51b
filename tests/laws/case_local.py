"""Nothing travels."""

from dataclasses import replace


def case(make_tools, toy):
    exempt = {
        "one_client_gets_its_own_params_back": "no parameters travel",
        "an_incremental_aggregator_reads_updates_once_and_in_order": "there is nothing to read",
    }
    return replace(toy, make_tools=make_tools, exempt=exempt)
