"""FedAMP and HeurFedAMP, arXiv:2007.03797, in float64, with full gradients of the caller's."""

import numpy as np


class FedAmp:
    """A server and its clients.

    Args:
        gradients: by client, the gradient of its loss at a point.
        start: where everyone starts.
        lr, steps: of the gradient descent that solves the clients' subproblem.
        alpha, lam, sigma: alpha_k, λ, sigma.
        self_weight: ξ_ii of HeurFedAMP; None: FedAMP.
    """

    def __init__(self, gradients, start, *, lr, steps, alpha, lam, sigma, self_weight=None):
        self.gradients, self.start = gradients, np.array(start, np.float64)
        self.lr, self.steps = lr, steps
        self.alpha, self.lam, self.sigma, self.self_weight = alpha, lam, sigma, self_weight
        self.models = {}

    def round(self, cohort):
        """What these clients are sent, and what they make of it."""
        sent = {name: self.combination(name) for name in cohort}
        for name in cohort:
            w = u = sent[name]
            for _ in range(self.steps):
                w = w - self.lr * (self.gradients[name](w) + self.lam / self.alpha * (w - u))
            self.models[name] = w
        return sent

    def combination(self, name):
        """u_i, from the last models of all that have ever delivered one."""
        own = self.models.get(name, self.start)
        others = {other: w for other, w in self.models.items() if other != name}
        shares = self._heuristic(own, others) if self.self_weight is not None else {}
        if self.self_weight is None:
            for other, w in others.items():
                apart = np.sum((own - w) ** 2)
                shares[other] = self.alpha / self.sigma * np.exp(-apart / self.sigma)
            if sum(shares.values()) > 1:  # the largest alpha_k of a convex combination
                shares = {other: s / sum(shares.values()) for other, s in shares.items()}
        u = (1 - sum(shares.values())) * own
        for other, share in shares.items():
            u = u + share * others[other]
        return u

    def _heuristic(self, own, others):
        unit = own / np.linalg.norm(own)
        cosines = {other: unit @ w / np.linalg.norm(w) for other, w in others.items()}
        sizes = {other: np.exp(self.sigma * cosine) for other, cosine in cosines.items()}
        return {
            other: (1 - self.self_weight) * size / sum(sizes.values())
            for other, size in sizes.items()
        }
