"""FedALA drops small batches unless it is told otherwise."""

from dataclasses import replace


def case(make_tools, toy):
    return replace(toy, make_tools=make_tools, settings={**toy.settings, "drop_last": False})
