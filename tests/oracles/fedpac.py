"""FedPAC, algorithm 1 of arXiv:2306.11867, in float64, full batches, on ``perceptron``."""

import numpy as np
from oracles import perceptron as net
from oracles import simplex

HEAD = ("head.weight", "head.bias")


class FedPac:
    """A server and its clients.

    Args:
        params: where all start.
        data: by client, its examples and classes.
        classes: C.
        weight: λ.
        head_sgd, body_sgd: keyword arguments of ``perceptron.descend``.
        mean: whether the distance is the mean over the features.
        smallest, rescale: what becomes of small weights.
    """

    def __init__(
        self, params, data, classes, *, weight, head_sgd, body_sgd, mean, smallest, rescale
    ):
        start = net.wide(params)
        self.body = {name: value for name, value in start.items() if name not in HEAD}
        self.heads = {client: {name: start[name] for name in HEAD} for client in data}
        self.data = {client: (x.astype(np.float64), y) for client, (x, y) in data.items()}
        self.classes, self.weight, self.mean = classes, weight, mean
        self.head_sgd, self.body_sgd = head_sgd, body_sgd
        self.smallest, self.rescale = smallest, rescale
        self.centres, self.rounds = {}, 0
        self.alphas = {}

    def round(self, cohort):
        """One round of these clients."""
        self.rounds += 1
        told = [self._client(client) for client in cohort]
        n = np.array([len(self.data[client][1]) for client in cohort])
        heads, bodies, means, h, v = zip(*told, strict=True)
        self.body = {
            name: sum(k * body[name] for k, body in zip(n, bodies, strict=True)) / n.sum()
            for name in self.body
        }
        for k in range(self.classes):
            own = [np.sum(self.data[client][1] == k) for client in cohort]
            if sum(own):
                self.centres[k] = sum(a * m[k] for a, m in zip(own, means, strict=True)) / sum(own)
        for i, client in enumerate(cohort):
            alpha = simplex.least(self._form(i, h, np.array(v) / n))
            alpha[alpha < self.smallest] = 0
            if self.rescale:
                alpha = alpha / alpha.sum()
            self.alphas[client] = alpha
            self.heads[client] = {
                name: sum(a * head[name] for a, head in zip(alpha, heads, strict=True))
                for name in HEAD
            }

    def _form(self, i, h, v):
        """Eq. 11's matrix entry by entry."""
        size = len(h)
        form = np.diag(v)
        for j in range(size):
            for k in range(size):
                form[j, k] += np.sum((h[i] - h[j]) * (h[i] - h[k]))
        return form

    def _client(self, client):
        x, y = self.data[client]
        params = {**self.body, **self.heads[client]}
        found = net.features(params, x)
        means = net.class_means(found, y, self.classes)
        shares = np.bincount(y, minlength=self.classes) / len(y)
        h = shares[:, None] * means
        v = 0.0
        for k in range(self.classes):
            if shares[k]:
                rows = found[y == k]
                v += shares[k] * np.mean(np.sum(rows**2, axis=1)) - np.sum(h[k] ** 2)
        target = np.array([self.centres.get(label, means[label]) for label in y.tolist()])
        params = net.descend(params, HEAD, lambda at: self._head(at, x, y), **self.head_sgd)
        params = net.descend(
            params, tuple(self.body), lambda at: self._body(at, x, y, target), **self.body_sgd
        )
        self.heads[client] = {name: params[name] for name in HEAD}
        after = net.class_means(net.features(params, x), y, self.classes)
        return self.heads[client], params, after, h, v

    def _error(self, params, found, y):
        return net.error_of(found @ params["head.weight"].T + params["head.bias"], y)

    def _head(self, params, x, y):
        found = net.features(params, x)
        error = self._error(params, found, y)
        return {"head.weight": error.T @ found, "head.bias": error.sum(axis=0)}

    def _body(self, params, x, y, target):
        found = net.features(params, x)
        by_features = self._error(params, found, y) @ params["head.weight"]
        if self.rounds > 1:
            count = found.size if self.mean else len(y)
            by_features = by_features + self.weight * 2 * (found - target) / count
        return net.through_body(params, x, by_features)
