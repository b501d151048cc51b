"""A model small enough for arithmetic by hand: parameter w (2,), one ALP layer of two prototypes.

Training program: loss = mean over the batch of |w - x|²/2, so that the gradient is w - mean(x) and
a full-batch step of rate 1/2 goes half the way to the mean of the examples. Its new local
prototypes are the old ones plus 0.1.
"""

from dataclasses import replace

import numpy as np

from protofleet.strategies.types import ServerTools, Step
from protofleet.tensors import TensorMap

LOCAL, GLOBAL = "block.local_prototypes", "block.global_prototypes"
SGD = {"epochs": 1, "optimiser": {"kind": "sgd", "lr": 0.5}}


def array(values):
    made = np.array(values, np.float32)
    made.flags.writeable = False
    return made


def zeros(size):
    return array([0.0] * size)


def frozen_map(tensors):
    made = TensorMap.pack({name: np.array(value, np.float32) for name, value in tensors.items()})
    made.buffer.flags.writeable = False
    return TensorMap(made.layout, made.buffer)


def grad_fn(network, batch, _rng):
    difference = network.params["w"] - batch["x"]
    buffers = network.buffers.copy()
    if LOCAL in buffers:
        buffers[LOCAL][...] += np.float32(0.1)
    grads = TensorMap.zeros(network.params.layout)
    grads["w"][...] = difference.mean(axis=0)
    return Step(loss=float((difference**2).sum(axis=1).mean() / 2), grads=grads, buffers=buffers)


def changed(tools, **changes):
    """Tools of a client with other fields, those of its ``training`` among them."""
    inner = {name: changes.pop(name) for name in ("x", "y", "grad_fns", "rng") if name in changes}
    return replace(tools, training=replace(tools.training, **inner), **changes)


def new_rng():
    return np.random.default_rng(0)


def server_tools():
    """Tools of a server that asks for no programs."""
    return ServerTools(grad_fns={}, predict=None, rng=new_rng())
