"""FedFomo, arXiv:2012.08565, in float64, with losses and full gradients of the caller's."""

import numpy as np


class FedFomo:
    """Clients, and what the server adds up.

    Args:
        losses: by client, its loss at a point, for validation.
        gradients: by client, the gradient of its loss at a point.
        start: where everyone starts.
        lr, steps: of local training.
    """

    def __init__(self, losses, gradients, start, *, lr, steps):
        self.losses, self.gradients = losses, gradients
        self.lr, self.steps = lr, steps
        self.models = {name: np.array(start, np.float64) for name in losses}
        self.preference = {name: dict.fromkeys(losses, 0.0) for name in losses}

    def round(self, received):
        """One round of the clients that get these others' models, by client; their weights."""
        before = dict(self.models)
        weights = {name: self._weights(name, others, before) for name, others in received.items()}
        for name, shares in weights.items():
            own = before[name]
            w = own + sum((s * (before[o] - own) for o, s in shares.items()), np.zeros_like(own))
            for _ in range(self.steps):
                w = w - self.lr * self.gradients[name](w)
            self.models[name] = w
            for other, share in shares.items():
                self.preference[name][other] += share
        return weights

    def _weights(self, name, others, models):
        own, loss = models[name], self.losses[name]
        gains = {}
        for other in others:
            apart = np.linalg.norm(models[other] - own)
            gains[other] = max(0.0, (loss(own) - loss(models[other])) / apart) if apart else 0.0
        total = sum(gains.values())
        return {other: gain / total if total else 0.0 for other, gain in gains.items()}
