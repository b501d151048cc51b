"""FedHKD, algorithm 1 of arXiv:2301.08968, in float64, full batches, on ``perceptron``."""

import numpy as np
from oracles import perceptron as net


class FedHKD:
    """A server and its clients.

    Args:
        params: where all start.
        data: by client, its examples and classes.
        classes: C.
        lam, gamma, temperature: λ, the weight of features, T.
        sgd: keyword arguments of ``perceptron.descend``.
    """

    def __init__(self, params, data, classes, *, lam, gamma, temperature, sgd):
        self.params = net.wide(params)
        self.data = {client: (x.astype(np.float64), y) for client, (x, y) in data.items()}
        self.classes, self.sgd = classes, sgd
        self.lam, self.gamma, self.temperature = lam, gamma, temperature
        self.features, self.predictions = {}, {}

    def round(self, cohort):
        """One round of these clients; their models."""
        models = {client: self._client(client) for client in cohort}
        told = [self._told(models[client], *self.data[client]) for client in cohort]
        n = np.array([len(self.data[client][1]) for client in cohort])
        self.params = {
            name: sum(k * models[c][name] for k, c in zip(n, cohort, strict=True)) / n.sum()
            for name in self.params
        }
        for label in range(self.classes):
            own = np.array([np.sum(self.data[client][1] == label) for client in cohort])
            if own.sum():
                shares = own / own.sum()
                for known, index in ((self.features, 0), (self.predictions, 1)):
                    known[label] = sum(
                        p * one[index][label] for p, one in zip(shares, told, strict=True)
                    )
        return models

    def loss(self, params, x, y):
        """The local objective at a point."""
        found = net.features(params, x)
        shares = net.softmax(self._logits(params, found))
        value = -np.mean(np.log(shares[np.arange(len(y)), y]))
        known = self._known(y)
        if known:
            gaps = [self._soft(params, k) - self.predictions[k] for k in known]
            value += self.lam * np.mean([np.linalg.norm(gap) for gap in gaps])
        pulls = [
            np.linalg.norm(f - self.features[k]) if k in known else 0.0
            for f, k in zip(found, y.tolist(), strict=True)
        ]
        return value + self.gamma * np.mean(pulls)

    def _known(self, y):
        return sorted(set(y.tolist()) & self.features.keys())

    def _logits(self, params, features):
        return features @ params["head.weight"].T + params["head.bias"]

    def _soft(self, params, label):
        return net.softmax(self._logits(params, self.features[label][None]) / self.temperature)[0]

    def _told(self, params, x, y):
        found = net.features(params, x)
        soft = net.softmax(self._logits(params, found) / self.temperature)
        return tuple(net.class_means(rows, y, self.classes) for rows in (found, soft))

    def _client(self, client):
        x, y = self.data[client]
        return net.descend(
            self.params, tuple(self.params), lambda at: self.gradient(at, x, y), **self.sgd
        )

    def gradient(self, params, x, y):
        """Of ``loss``, term by term."""
        found = net.features(params, x)
        error = net.error_of(self._logits(params, found), y)
        weight, bias = error.T @ found, error.sum(axis=0)
        by_features = error @ params["head.weight"]
        known = self._known(y)
        for label in known:
            soft = self._soft(params, label)
            gap = soft - self.predictions[label]
            by_soft = self.lam * gap / np.linalg.norm(gap) / len(known)
            by_logits = soft * (by_soft - by_soft @ soft) / self.temperature
            weight = weight + np.outer(by_logits, self.features[label])
            bias = bias + by_logits
        for row, label in enumerate(y.tolist()):
            if label in known:
                gap = found[row] - self.features[label]
                by_features[row] += self.gamma * gap / np.linalg.norm(gap) / len(y)
        return {
            "head.weight": weight,
            "head.bias": bias,
            **net.through_body(params, x, by_features),
        }
