"""Clients whose losses are quadratic, so that an oracle in float64 can follow them round by round.

A client's loss is curvature · (θ - target)² / 2, summed over all five parameters, whatever its
examples are: every step sees the full gradient.
"""

import numpy as np
from closed_form import Clients
from toy_model import changed, frozen_map

from protofleet.strategies.types import Step
from protofleet.tensors import Model, TensorMap

TARGETS = {
    "a": [1, 3, -1, 0.5, 2],
    "b": [1.5, 2.5, -1, 0, 2],
    "c": [-3, 0.5, 2, 2, -1],
    "d": [-2.5, 1, 2, 1.5, 0],
}
CURVATURES = {
    "a": [1, 0.25, 1, 0.5, 2],
    "b": [0.5, 2, 1, 1, 0.25],
    "c": [2, 1, 0.5, 1, 1],
    "d": [0.1, 1, 1, 2, 0.5],
}
COUNTS = {"a": 2, "b": 3, "c": 1, "d": 2}
"""Examples of each client."""


def start():
    """The bundle's model: parameters w (2,) and head.b (3,)."""
    return Model(
        params=frozen_map({"w": [0.5, -0.5], "head.b": [0, 1, 0]}),
        buffers=frozen_map({"norm.mean": [5]}),
        num_classes=2,
        input_shape=(2,),
        head=("head.b",),
        features=5,
    )


def gradients():
    """By client: the gradient of its loss at a point, float64."""
    return {
        name: lambda w, name=name: np.array(CURVATURES[name]) * (w - np.array(TARGETS[name]))
        for name in TARGETS
    }


def _task_loss(grad_fn):
    return {"task_loss": grad_fn}


class QuadraticClients(Clients):
    """A strategy's server and its four clients.

    Args:
        strategy: for ``start()``.
        make_tools: the fixture.
        programs: makes of the gradient of a client's own loss its training programs.
        tools: by field of the tools, what makes it of a client's name.
    """

    def __init__(self, strategy, make_tools, programs=_task_loss, **tools):
        examples = {name: [[0, 0]] * count for name, count in COUNTS.items()}
        super().__init__(strategy, start(), make_tools, examples)
        self.programs, self.more = programs, tools

    def tools(self, name):
        """Of a client; the programs know its loss."""
        tools, _ = self.make_tools(name, self.examples[name])
        curvature, target = (np.float32(of[name]) for of in (CURVATURES, TARGETS))

        def grad_fn(network, _batch, _rng):
            w = network.params
            apart = w.buffer - target
            grads = TensorMap(w.layout, curvature * apart)
            loss = float((curvature * apart * apart).sum() / 2)
            return Step(loss=loss, grads=grads, buffers=network.buffers)

        more = {key: make(name) for key, make in self.more.items()}
        return changed(tools, grad_fns=self.programs(grad_fn), **more)


def flat(tensors, prefix="params/"):
    """The parameters among tensors as one vector, in the order of the model."""
    return np.concatenate([np.ravel(tensors[prefix + name]) for name in ("w", "head.b")])


def relative_error(found, expected):
    """Largest difference by the largest expected number."""
    expected = np.asarray(expected, np.float64)
    return float(np.abs(np.asarray(found, np.float64) - expected).max() / np.abs(expected).max())
