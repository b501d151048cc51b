"""Per-FedAvg, algorithm 1 of arXiv:2002.07948, in float64 with Hessians of the caller's."""

import numpy as np


class PerFedAvg:
    """A server and its clients.

    Args:
        gradient: of a client's name, a point and a batch.
        hessian: its diagonal, where there is no more of it; None: left out (FO).
        w: where the server starts.
        alpha, beta: rates of the step that adapts, and of the steps that learn.
    """

    def __init__(self, gradient, w, *, alpha, beta, hessian=None):
        self.gradient, self.hessian = gradient, hessian
        self.w, self.alpha, self.beta = np.array(w, np.float64), alpha, beta
        self.adapted = {}

    def round(self, cohort, batches, examples):
        """One round.

        Args:
            cohort: names.
            batches: by client, for each of its steps the batches D, D' (and D'').
            examples: by client, all that it has.
        """
        found = {name: self._client(name, batches[name]) for name in cohort}
        for name, w in found.items():
            self.adapted[name] = w - self.alpha * self.gradient(name, w, examples[name])
        self.w = np.mean(list(found.values()), axis=0)

    def _client(self, name, steps):
        w = self.w
        for parts in steps:
            near = w - self.alpha * self.gradient(name, w, parts[0])
            meta = self.gradient(name, near, parts[1])
            if self.hessian is not None:
                meta = meta - self.alpha * self.hessian(name, w, parts[2]) * meta
            w = w - self.beta * meta
        return w
