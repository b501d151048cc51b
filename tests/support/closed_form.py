"""Clients whose gradients are known in closed form, so that oracles can follow them in float64.

Client i's loss of an example, in each of two parameters, is a_i (d²/2 - cos(d)/2), d = w - x:
convex, and neither its gradient nor its curvature is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from toy_model import changed, new_rng, server_tools

from protofleet.strategies.types import Step
from protofleet.tensors import TensorMap

EXAMPLES = {
    "a": [[2, 4], [1, 3], [0.5, 1.5], [3, -1]],
    "b": [[6, 0], [6, 2], [7, 4], [5, 1], [6.5, 2.5]],
    "c": [[-3, 0.5]],
    "d": [[0.5, -8], [4, 4], [1, -2]],
}
COHORTS = ("ab", "bcd", "a", "acd", "abcd", "cd")
_CURVATURE = {"a": [1, 0.25], "b": [0.5, 2], "c": [2, 1], "d": [0.1, 1]}


def gradient(name, w, x):
    """Of client ``name`` at ``w (2,)``, of a batch ``(n, 2)``."""
    d = w - x
    return np.array(_CURVATURE[name], w.dtype) * np.mean(d + np.sin(d) / 2, axis=0)


def curvature(name, w, x):
    """The diagonal of the Hessian, which has nothing else."""
    return np.array(_CURVATURE[name]) * np.mean(1 + np.cos(w - x) / 2, axis=0)


def examples_of(name):
    """As the client has them, in float64."""
    return np.array(EXAMPLES[name], np.float32).astype(np.float64)


def batches(name, size, epochs=1) -> Iterator:
    """A client's batches of a round, in the order of its seed (1, anew in every round)."""
    x, rng = examples_of(name), np.random.default_rng(1)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x), size):
            yield x[order[start : start + size]]


class Clients:
    """A strategy's server and such clients.

    Args:
        strategy, model: of each other.
        make_tools: the fixture.
        examples: by client.
        gradient: of a client's name, parameters and batch.

    Attributes:
        server: its state.
        states: of the clients.
        sent: what each client got last.
    """

    def __init__(self, strategy, model, make_tools, examples=None, gradient=gradient):
        self.strategy, self.make_tools = strategy, make_tools
        self.examples, self._gradient = examples or EXAMPLES, gradient
        self._layout = model.params.layout
        self.server = strategy.server_init(model, new_rng())
        self.states = {name: strategy.client_init(model) for name in self.examples}
        self.sent = {}

    def round(self, cohort):
        """The updates of these clients, which the server has aggregated."""
        updates = []
        for name in cohort:
            self.sent[name] = self.strategy.downlink(self.server, name)
            self.states[name], update = self.strategy.client_update(
                self.states[name], self.sent[name], self.tools(name)
            )
            updates.append(update)
        self.server = self.strategy.aggregate(self.server, updates, server_tools())
        return updates

    def tools(self, name):
        """Of a client; the programs know its loss."""
        tools, _ = self.make_tools(name, self.examples[name])
        # A program's next call overwrites what its last one returned.
        grads = TensorMap.zeros(self._layout)

        def grad_fn(network, batch, _rng):
            grads["w"][...] = self._gradient(name, network.params["w"], batch["x"])
            return Step(loss=0.0, grads=grads, buffers=network.buffers)

        return changed(tools, grad_fns={"task_loss": grad_fn})
