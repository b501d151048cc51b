"""SCAFFOLD, algorithm 1 of arXiv:1910.06378, in float64, with full gradients of the caller's."""

import numpy as np


class Scaffold:
    """A server and its clients.

    Args:
        gradients: by client, the gradient of its loss at a point.
        x: where the server starts.
        lr, steps, server_lr: η_l, K, η_g.
        option: of line 12, 1 or 2.
        population: N; None: clients that have taken part, whose mean c_i is c.
    """

    def __init__(self, gradients, x, *, lr, steps, server_lr=1.0, option=2, population=None):
        self.gradients, self.x = gradients, np.array(x, np.float64)
        self.lr, self.steps, self.server_lr = lr, steps, server_lr
        self.option, self.population = option, population
        self.c = np.zeros_like(self.x)
        self.controls = {name: np.zeros_like(self.x) for name in gradients}
        self.seen = set()

    def round(self, cohort):
        """Lines 4 to 17 with these clients."""
        moves, changes = zip(*[self._client(name) for name in cohort], strict=True)
        self.seen |= set(cohort)
        self.x = self.x + self.server_lr * np.mean(moves, axis=0)
        if self.population is None:
            self.c = sum(self.controls.values()) / len(self.seen)
        else:
            share = len(cohort) / self.population
            self.c = self.c + share * np.mean(changes, axis=0)

    def _client(self, name):
        gradient, old = self.gradients[name], self.controls[name]
        y = self.x
        for _ in range(self.steps):
            y = y - self.lr * (gradient(y) - old + self.c)
        if self.option == 1:
            new = gradient(self.x)
        else:
            new = old - self.c + (self.x - y) / (self.steps * self.lr)
        self.controls[name] = new
        return y - self.x, new - old
