"""FedHome's model for arithmetic: an encoder, a decoder and a head, linear, with programs in NumPy.

Features are x · encoder, the reconstruction features · decoder, logits features · head.
"""

from dataclasses import replace

import numpy as np
from toy_model import changed, frozen_map

from protofleet.strategies.types import Step
from protofleet.tensors import Model, TensorMap

START = {
    "encoder": [[0.5, -0.2], [0.1, 0.7]],
    "decoder": [[0.3, 0.2], [-0.4, 0.6]],
    "head": [[0.2, -0.1], [0.05, 0.3]],
}


def new_model():
    return Model(
        params=frozen_map(START),
        buffers=frozen_map({"calls": [0]}),
        num_classes=2,
        input_shape=(2,),
        head=("head",),
        features=2,
    )


def features(network, x):
    return x @ network.params["encoder"]


def _step(network, loss, grads):
    found = TensorMap.zeros(network.params.layout)
    for name, value in grads.items():
        found[name][...] = value
    buffers = network.buffers.copy()
    buffers["calls"][...] += 1
    return Step(loss=float(loss), grads=found, buffers=buffers)


def _classified(codes, head, y):
    """Mean cross-entropy, and its gradient by the logits."""
    logits = codes @ head
    logits = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    loss = -np.log(shares[np.arange(len(y)), y]).mean()
    shares[np.arange(len(y)), y] -= 1
    return loss, shares / len(y)


def _wide(network):
    return {name: value.astype(np.float64) for name, value in network.params.items()}


def reconstruction(network, batch, _rng):
    p, x = _wide(network), batch["x"].astype(np.float64)
    codes = x @ p["encoder"]
    loss, errors = _classified(codes, p["head"], batch["y"])
    gaps = codes @ p["decoder"] - x
    pulls = 2 * float(batch["weight"]) * gaps / gaps.size
    grads = {
        "encoder": x.T @ (errors @ p["head"].T + pulls @ p["decoder"].T),
        "decoder": codes.T @ pulls,
        "head": codes.T @ errors,
    }
    return _step(network, loss + float(batch["weight"]) * np.square(gaps).mean(), grads)


def head_cross_entropy(network, batch, _rng):
    codes = batch["features"].astype(np.float64)
    loss, errors = _classified(codes, _wide(network)["head"], batch["y"])
    return _step(network, loss, {"head": codes.T @ errors})


PROGRAMS = {"reconstruction": reconstruction, "head_cross_entropy": head_cross_entropy}


def case(make_tools, toy):
    def make(client_id, examples):
        tools, seen = make_tools(client_id, examples)
        y = (tools.training.x[:, 0] > tools.training.x[:, 1]).astype(np.int64)
        return changed(tools, y=y, grad_fns=PROGRAMS, features=features), seen

    settings = {**toy.settings, "optimiser": {"kind": "sgd", "lr": 0.01}, "refine_from": 2}
    return replace(toy, model=new_model(), settings=settings, make_tools=make)
