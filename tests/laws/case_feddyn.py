"""The server goes beyond the clients' mean, by what all of them have moved."""

from dataclasses import replace


def case(make_tools, toy):
    exempt = {
        "one_client_gets_its_own_params_back": "the server adds the mean of all moves (-h/α)",
    }
    return replace(toy, make_tools=make_tools, exempt=exempt)
