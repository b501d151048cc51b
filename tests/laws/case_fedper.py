"""FedPer's model has a head."""

from dataclasses import replace

from toy_model import frozen_map


def case(make_tools, toy):
    params = frozen_map({"w": [0, 0], "head.b": [7]})
    model = replace(toy.model, params=params, head=("head.b",))
    return replace(toy, model=model, make_tools=make_tools)
