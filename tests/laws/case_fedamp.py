"""FedAMP's server keeps a model for each client."""

from dataclasses import replace


def case(make_tools, toy):
    exempt = {
        "one_client_gets_its_own_params_back": "its server keeps them under the client's name; "
        "test_fedamp.py holds it"
    }
    return replace(toy, make_tools=make_tools, exempt=exempt)
