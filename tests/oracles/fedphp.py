"""FedPHP (ECML PKDD 2021) in float64, with full gradients and a transfer of the caller's."""

import numpy as np


class FedPhp:
    """A server and its clients.

    Args:
        gradients: by client, the gradient of its loss at a point.
        transfer: gradient of the transfer's loss, of the model in training and the personal one.
        counts: examples of each client.
        start: where everyone starts.
        lr, steps: of local training.
        mu, participations, lam: μ, Q, λ.
    """

    def __init__(self, gradients, transfer, counts, start, *, lr, steps, mu, participations, lam):
        self.gradients, self.transfer, self.counts = gradients, transfer, counts
        self.w = np.array(start, np.float64)
        self.lr, self.steps = lr, steps
        self.mu, self.q, self.lam = mu, participations, lam
        self.personal, self.rounds = {}, dict.fromkeys(gradients, 0)

    def round(self, cohort):
        """These clients train and inherit; the server averages."""
        sent = {name: self._train(name) for name in cohort}
        total = sum(self.counts[name] for name in cohort)
        self.w = sum(self.counts[name] / total * w for name, w in sent.items())

    def _train(self, name):
        w, old = self.w, self.personal.get(name)
        for _ in range(self.steps):
            g = self.gradients[name](w)
            if old is not None:
                g = (1 - self.lam) * g + self.lam * self.transfer(w, old)
            w = w - self.lr * g
        kept = self.mu * min(self.rounds[name] / self.q, 1)
        self.personal[name] = w if old is None else kept * old + (1 - kept) * w
        self.rounds[name] += 1
        return w
