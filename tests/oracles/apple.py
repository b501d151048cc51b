"""APPLE, arXiv:2110.08394, in float64, with full gradients of the caller's."""

import numpy as np


class Apple:
    """Clients; who knows whom is the caller's. The first round collects the core models.

    Args:
        gradients: by client, the gradient of its loss at a point.
        counts: examples of each client.
        start: where everyone's core model starts.
        lr, relation_lr: η_1, η_2.
        steps: of local training.
        mu, rounds: μ, L.
    """

    def __init__(self, gradients, counts, start, *, lr, relation_lr, steps, mu, rounds):
        self.gradients, self.counts = gradients, counts
        self.lr, self.relation_lr, self.steps = lr, relation_lr, steps
        self.mu, self.rounds = mu, rounds
        self.cores = {name: np.array(start, np.float64) for name in gradients}
        self.relations = {name: {} for name in gradients}
        self.known = {name: {} for name in gradients}
        self.personal = dict(self.cores)
        self.round_id = 0

    def round(self, received):
        """One round of the clients that get these others' core models, by client."""
        cores = dict(self.cores)
        for name, others in received.items():
            self.known[name] |= {other: cores[other] for other in others}
            if self.round_id:
                self._train(name)
        self.round_id += 1

    def _train(self, name):
        w = {**self.known[name], name: self.cores[name]}
        total = sum(self.counts[j] for j in w)
        p0 = {j: self.counts[j] / total for j in w}
        p = self._relations(name, p0)
        r, last = self.round_id, self.rounds
        fading = (1 + np.cos(r * np.pi / last)) / 2 if r < last else 0
        for _ in range(self.steps):
            g = self.gradients[name](sum(p[j] * w[j] for j in w))
            slopes = {j: g @ w[j] + fading * self.mu * (p[j] - p0[j]) for j in w}
            w[name] = w[name] - self.lr * p[name] * g
            p = {j: p[j] - self.relation_lr * slopes[j] for j in w}
        self.cores[name], self.relations[name] = w[name], p
        self.personal[name] = sum(p[j] * w[j] for j in w)

    def _relations(self, name, p0):
        """As learnt, scaled to leave those that are new their share."""
        old = self.relations[name]
        if not old:
            return dict(p0)
        rest = 1 - sum(share for j, share in p0.items() if j not in old)
        return {j: rest * old[j] if j in old else share for j, share in p0.items()}
