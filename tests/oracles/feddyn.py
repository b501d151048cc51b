"""FedDyn in float64: algorithm 1 of arXiv:2111.04263, and the form that the authors' code has."""

import numpy as np


class FedDyn:
    """A server and its clients, with full gradients of the caller's.

    Args:
        gradients: by client, the gradient of its loss at a point.
        theta: where the server starts.
        alpha, lr, steps: α, and the plain steps that stand for the minimum.
        population: N; None: h is the mean of g_i over those that have taken part.
    """

    def __init__(self, gradients, theta, *, alpha, lr, steps, population=None):
        self.gradients, self.theta = gradients, np.array(theta, np.float64)
        self.alpha, self.lr, self.steps, self.population = alpha, lr, steps, population
        self.h = np.zeros_like(self.theta)
        self.own = {name: np.zeros_like(self.theta) for name in gradients}
        self.seen = set()

    def round(self, cohort):
        """One round with these clients."""
        found = [self._client(name) for name in cohort]
        self.seen |= set(cohort)
        if self.population is None:
            self.h = sum(self.own.values()) / len(self.seen)
        else:
            self.h = self.h - self.alpha / self.population * sum(y - self.theta for y in found)
        self.theta = np.mean(found, axis=0) - self.h / self.alpha

    def _client(self, name):
        gradient, own, alpha = self.gradients[name], self.own[name], self.alpha
        y = self.theta
        for _ in range(self.steps):
            y = y - self.lr * (gradient(y) - own + alpha * (y - self.theta))
        self.own[name] = own - alpha * (y - self.theta)
        return y


class FedDynCode:
    """As the authors' code has it: α by client, a clipped gradient, and a mean over all clients.

    Args:
        gradients, theta, alpha, lr, steps: as above.
        examples: number of each client's.
        max_norm: of the gradient with the linear term, before α_i θ is added as weight decay.
    """

    def __init__(self, gradients, theta, *, alpha, lr, steps, examples, max_norm):
        self.gradients, self.cloud = gradients, np.array(theta, np.float64)
        self.alpha, self.lr, self.steps = alpha, lr, steps
        self.examples, self.max_norm = examples, max_norm
        self.moves = {name: np.zeros_like(self.cloud) for name in gradients}
        self.seen, self.clipped = set(), 0

    def round(self, cohort):
        """One round; α_i is of the clients that took part before it."""
        alphas = {name: self._alpha(name) for name in cohort}
        found = {name: self._client(name, alphas[name]) for name in cohort}
        for name, y in found.items():
            self.moves[name] = self.moves[name] + y - self.cloud
        self.seen |= set(cohort)
        every = sum(self.moves.values()) / len(self.seen)
        self.cloud = np.mean(list(found.values()), axis=0) + every

    def _alpha(self, name):
        if not self.seen:
            return self.alpha
        mean = np.mean([self.examples[one] for one in self.seen])
        return self.alpha * mean / self.examples[name]

    def _client(self, name, alpha):
        linear = alpha * (self.moves[name] - self.cloud)
        y = self.cloud
        for _ in range(self.steps):
            grad = self.gradients[name](y) + linear
            norm = np.linalg.norm(grad)
            if norm > self.max_norm:
                grad, self.clipped = grad * self.max_norm / norm, self.clipped + 1
            y = y - self.lr * (grad + alpha * y)
        return y
