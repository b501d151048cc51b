"""FedHome (TMC 2020) in float64, example by example: a linear autoencoder with a linear classifier.

Parameters: ``encoder`` (D, d), ``decoder`` (d, D), ``head`` (d, C). Steps are plain SGD with full
gradients.
"""

import numpy as np


def smote(features, y, k, draws):
    """Rows and classes after oversampling.

    Args:
        features, y: of the client.
        k: neighbours.
        draws: by class, a list of (row of the class, number of its neighbour, place from 0 to 1).
    """
    rows, labels = list(features), list(y)
    for label in sorted(draws):
        own = [row for row, of in zip(features, y, strict=True) if of == label]
        for start, neighbour, place in draws[label]:
            others = [other for other in range(len(own)) if other != start]
            others.sort(key=lambda other: np.linalg.norm(own[other] - own[start]))
            nearest = others[:k]
            end = own[nearest[neighbour]] if nearest else own[start]
            rows.append(own[start] + place * (end - own[start]))
            labels.append(label)
    return np.array(rows), np.array(labels)


def _error(head, feature, label):
    """Gradient of one cross-entropy by the logits."""
    logits = feature @ head
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    shares[label] -= 1
    return shares


def gradients(params, x, y, weight):
    """Of the mean cross-entropy and the weighted mean squared error of the reconstruction."""
    found = {name: np.zeros_like(value) for name, value in params.items()}
    for row, label in zip(x, y, strict=True):
        feature = row @ params["encoder"]
        error = _error(params["head"], feature, label) / len(x)
        gap = 2 * weight * (feature @ params["decoder"] - row) / (len(x) * len(row))
        to_feature = params["head"] @ error + params["decoder"] @ gap
        found["head"] += np.outer(feature, error)
        found["decoder"] += np.outer(feature, gap)
        found["encoder"] += np.outer(row, to_feature)
    return found


class FedHome:
    """A server and its clients.

    Args:
        data: by client, examples and classes.
        start: parameters by name.
        lr, epochs, refine_epochs, weight, k: of the method.
    """

    def __init__(self, data, start, *, lr, epochs, refine_epochs, weight, k):
        self.data, self.lr, self.epochs, self.weight, self.k = data, lr, epochs, weight, k
        self.refine_epochs = refine_epochs
        self.server = {name: np.array(value, np.float64) for name, value in start.items()}

    def round(self, cohort):
        """FedAvg of the whole model."""
        sent = {name: self._trained(name) for name in cohort}
        total = sum(len(self.data[name][1]) for name in cohort)
        self.server = {
            key: sum(len(self.data[name][1]) * sent[name][key] for name in cohort) / total
            for key in self.server
        }

    def _trained(self, name):
        params = dict(self.server)
        for _ in range(self.epochs):
            grads = gradients(params, *self.data[name], self.weight)
            params = {key: value - self.lr * grads[key] for key, value in params.items()}
        return params

    def refined(self, name, draws):
        """The server's model with the client's own head."""
        x, y = self.data[name]
        features, labels = smote(x @ self.server["encoder"], y, self.k, draws)
        head = self.server["head"]
        for _ in range(self.refine_epochs):
            errors = [_error(head, f, label) for f, label in zip(features, labels, strict=True)]
            outer = [np.outer(f, error) for f, error in zip(features, errors, strict=True)]
            head = head - self.lr * np.mean(outer, axis=0)
        return {**self.server, "head": head}
