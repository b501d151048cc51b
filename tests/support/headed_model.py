"""A model with a head: parameters w and head.b, loss mean |w + b - x|²/2, so both gradients are
w + b - mean(x). Its single buffer counts the program's calls.
"""

from protofleet.strategies.types import Step
from protofleet.tensors import Model, TensorMap


def headed(frozen_map, w=(0, 0), b=(0, 0)):
    params = frozen_map({"w": list(w), "head.b": list(b)})
    return Model(
        params=params,
        buffers=frozen_map({"calls": [0], "beta": 0}),
        num_classes=2,
        input_shape=(2,),
        head=("head.b",),
        features=2,
    )


def headed_grad_fn(network, batch, _rng):
    params = network.params
    difference = params["w"] + params["head.b"] - batch["x"]
    grads = TensorMap.zeros(params.layout)
    grads["w"][...] = grads["head.b"][...] = difference.mean(axis=0)
    buffers = network.buffers.copy()
    buffers["calls"][...] += 1
    return Step(loss=float((difference**2).sum(axis=1).mean() / 2), grads=grads, buffers=buffers)
