"""FedAMP and HeurFedAMP, arXiv:2007.03797, in float64, with full gradients of the caller's."""

import numpy as np


class FedAmp:
    """A server and its clients.

    Args:
        gradients: by client, the gradient of its loss at a point.
        start: where everyone starts.
        lr, steps: of the gradient descent that solves the clients' subproblem.
        alpha: alpha_k; None: the largest with which ξ_ii >= ``self_weight`` at any distances.
        lam, sigma: λ (without ``alpha``, λ / alpha_k) and sigma.
        self_weight: ξ_ii of HeurFedAMP; of FedAMP without ``alpha``, its least.
        cosine: HeurFedAMP.
    """

    def __init__(
        self, gradients, start, *, lr, steps, lam, sigma, alpha=None, self_weight=0.5, cosine=False
    ):
        self.gradients, self.start = gradients, np.array(start, np.float64)
        self.lr, self.steps, self.cosine = lr, steps, cosine
        self.alpha, self.lam, self.sigma, self.self_weight = alpha, lam, sigma, self_weight
        self.pull = lam if alpha is None else lam / alpha
        self.models = {}

    def round(self, cohort):
        """What these clients are sent, and what they make of it."""
        sent = {name: self.combination(name) for name in cohort}
        for name in cohort:
            w = u = sent[name]
            for _ in range(self.steps):
                w = w - self.lr * (self.gradients[name](w) + self.pull * (w - u))
            self.models[name] = w
        return sent

    def combination(self, name):
        """u_i, from the last models of all that have ever delivered one."""
        own = self.models.get(name, self.start)
        others = {other: w for other, w in self.models.items() if other != name}
        shares = self._heuristic(own, others) if self.cosine else self._by_distance(own, others)
        if sum(shares.values()) > 1:  # the largest alpha_k of a convex combination
            shares = {other: s / sum(shares.values()) for other, s in shares.items()}
        u = (1 - sum(shares.values())) * own
        for other, share in shares.items():
            u = u + share * others[other]
        return u

    def _by_distance(self, own, others):
        alpha = self.alpha
        if alpha is None and others:
            alpha = self.sigma * (1 - self.self_weight) / len(self.models)
        return {
            other: alpha / self.sigma * np.exp(-np.sum((own - w) ** 2) / self.sigma)
            for other, w in others.items()
        }

    def _heuristic(self, own, others):
        unit = own / np.linalg.norm(own)
        cosines = {other: unit @ w / np.linalg.norm(w) for other, w in others.items()}
        sizes = {other: np.exp(self.sigma * cosine) for other, cosine in cosines.items()}
        return {
            other: (1 - self.self_weight) * size / sum(sizes.values())
            for other, size in sizes.items()
        }
