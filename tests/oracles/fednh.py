"""FedNH, algorithm 1 of arXiv:2212.02758, in float64, full batches, on ``perceptron``'s body."""

import numpy as np
from oracles import perceptron as net


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


class FedNH:
    """A server and its clients.

    Args:
        params: where all start, ``directions`` and ``scale`` among them.
        data: by client, its examples and classes.
        sgd: keyword arguments of ``perceptron.descend``.
        decay: of the learning rate, a round.
        smoothing: share of a direction that stays.
        unit_means, by_examples: as the strategy's settings.
    """

    def __init__(self, params, data, *, sgd, decay, smoothing, unit_means, by_examples):
        self.params = net.wide(params)
        self.data = {client: (x.astype(np.float64), y) for client, (x, y) in data.items()}
        self.sgd, self.decay, self.smoothing = sgd, decay, smoothing
        self.unit_means, self.by_examples = unit_means, by_examples
        self.rounds = 0

    def round(self, cohort):
        """One round of these clients; their models."""
        models = {client: self.client(client) for client in cohort}
        self.rounds += 1
        counts = [np.bincount(self.data[c][1], minlength=len(self._w())) for c in cohort]
        means = [self._means(models[client], client) for client in cohort]
        n = [counts[i].sum() if self.by_examples else 1 for i in range(len(cohort))]
        new = {
            name: sum(k * models[c][name] for k, c in zip(n, cohort, strict=True)) / sum(n)
            for name in self.params
        }
        directions = self._w().copy()
        for label in range(len(directions)):
            total = sum(count[label] for count in counts)
            if total:
                pairs = zip(counts, means, strict=True)
                mean = sum(count[label] * rows[label] for count, rows in pairs) / total
                old = self.smoothing * self._w()[label]
                directions[label] = unit(old + (1 - self.smoothing) * unit(mean))
        self.params = {**new, "head.directions": directions}
        return models

    def client(self, client):
        """The client's model after its training in the next round."""
        x, y = self.data[client]
        names = [name for name in self.params if name != "head.directions"]
        rate = self.sgd["lr"] * self.decay**self.rounds
        return net.descend(
            self.params, names, lambda at: self._gradient(at, x, y), **{**self.sgd, "lr": rate}
        )

    def _w(self):
        return self.params["head.directions"]

    def _means(self, params, client):
        x, y = self.data[client]
        means = net.class_means(unit(net.features(params, x)), y, len(self._w()))
        if self.unit_means:
            there = np.any(means != 0, axis=1)
            means[there] = unit(means[there])
        return means

    def _gradient(self, params, x, y):
        found = net.features(params, x)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        near = found / lengths
        cosines = near @ params["head.directions"].T
        error = net.error_of(params["head.scale"] * cosines, y)
        by_near = params["head.scale"] * error @ params["head.directions"]
        across = by_near - near * np.sum(near * by_near, axis=1, keepdims=True)
        return {
            "head.scale": np.sum(error * cosines),
            **net.through_body(params, x, across / lengths),
        }
