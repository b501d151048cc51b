"""APFL, algorithm 1 of arXiv:2003.13461 with an adaptive share, in float64."""

import numpy as np


class Apfl:
    """A server and its clients.

    Args:
        gradient: of a client's name, a point and a batch.
        clients: their names.
        w: where the server and every personal model start.
        alpha: share of the personal model at first.
        lr, alpha_lr: of both models, and of the share.
        alpha_decay: share of α that is added to its gradient.
        every_step: the share moves in every step; otherwise in the first one of a round (eq. 10).
    """

    def __init__(
        self, gradient, clients, w, *, alpha, lr, alpha_lr, alpha_decay=0.0, every_step=False
    ):
        self.decay = alpha_decay
        self.gradient, self.w = gradient, np.array(w, np.float64)
        self.lr, self.alpha_lr, self.every_step = lr, alpha_lr, every_step
        self.own = dict.fromkeys(clients, self.w)
        self.alpha = dict.fromkeys(clients, alpha)
        self.mixed = {}

    def round(self, cohort, batches):
        """One round; ``batches`` by client: one for each step."""
        self.w = np.mean([self._client(name, batches[name]) for name in cohort], axis=0)

    def _client(self, name, batches):
        w, v, alpha = self.w, self.own[name], self.alpha[name]
        for number, batch in enumerate(batches):
            slope = self.gradient(name, alpha * v + (1 - alpha) * w, batch)
            rate = self.alpha_lr if self.every_step or number == 0 else 0
            w, v, alpha = (
                w - self.lr * self.gradient(name, w, batch),
                v - self.lr * alpha * slope,
                np.clip(alpha - rate * (np.dot(v - w, slope) + self.decay * alpha), 0, 1),
            )
        self.own[name], self.alpha[name] = v, alpha
        self.mixed[name] = alpha * v + (1 - alpha) * w
        return w
