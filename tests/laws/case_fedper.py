"""FedPer's model has a head."""

from dataclasses import replace

from toy_model import frozen_map

from protofleet.tensors import Model


def case(make_tools, toy):
    params = frozen_map({"w": [0, 0], "head.b": [7]})
    model = Model(params=params, buffers=toy.model.buffers, num_classes=2)
    return replace(toy, model=model, make_tools=make_tools)
