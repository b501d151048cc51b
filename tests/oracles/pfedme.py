"""pFedMe, algorithm 1 of arXiv:2006.08848, in float64."""

import numpy as np


class PFedMe:
    """A server and its clients.

    Args:
        gradient: of a client's name, a point and a batch.
        w: where the server starts.
        lam, eta, beta: λ, η, β.
        lr, steps: of the K plain steps on a batch that stand for the minimum.
    """

    def __init__(self, gradient, w, *, lam, eta, beta, lr, steps):
        self.gradient, self.w = gradient, np.array(w, np.float64)
        self.lam, self.eta, self.beta, self.lr, self.steps = lam, eta, beta, lr, steps
        self.personal = {}

    def round(self, cohort, batches):
        """One round; ``batches`` by client: one for each local round r."""
        found = [self._client(name, batches[name]) for name in cohort]
        self.w = (1 - self.beta) * self.w + self.beta * np.mean(found, axis=0)

    def _client(self, name, batches):
        w = theta = self.w
        for batch in batches:
            for _ in range(self.steps):
                grad = self.gradient(name, theta, batch) + self.lam * (theta - w)
                theta = theta - self.lr * grad
            w = w - self.eta * self.lam * (w - theta)
        self.personal[name] = theta
        return w
