"""PartialFed (NeurIPS 2021), float64, plain SGD; mode adaptive with given Gumbel noise."""

import numpy as np


class PartialFed:
    """A server and its clients; parameters are lists of one array per layer.

    Args:
        gradients: by client, from parameters to the gradients of its loss.
        counts: by client, its number of examples.
        start: parameters.
        lr, decision_lr: of weights and of the decisions' logits.
        temperature: of a round, from 1.
    """

    def __init__(self, gradients, counts, start, *, lr, decision_lr, temperature):
        self.gradients, self.counts = gradients, counts
        self.lr, self.decision_lr, self.temperature = lr, decision_lr, temperature
        self.server = [np.array(layer, np.float64) for layer in start]
        self.own = dict.fromkeys(gradients, self.server)
        self.logits = {name: np.zeros((len(start), 2)) for name in gradients}
        self.rounds = 0

    def round(self, noise):
        """One round; noise by client, an array (steps, layers, 2)."""
        self.rounds += 1
        for name, draws in noise.items():
            self.own[name] = self._trained(name, draws)
        total = sum(self.counts[name] for name in noise)
        self.server = [
            sum(self.counts[name] * self.own[name][index] for name in noise) / total
            for index in range(len(self.server))
        ]

    def _trained(self, name, draws):
        tau = self.temperature(self.rounds)
        loaded, own = list(self.server), list(self.own[name])
        logits = self.logits[name].copy()
        for gumbel in draws:
            weights = np.exp((logits + gumbel) / tau)
            shares = weights / weights.sum(axis=1, keepdims=True)
            mixed = [
                load * a + keep * b for (load, keep), a, b in zip(shares, loaded, own, strict=True)
            ]
            gradients = self.gradients[name](mixed)
            change = np.zeros_like(logits)
            for index, gradient in enumerate(gradients):
                by_share = np.array(
                    [np.sum(gradient * loaded[index]), np.sum(gradient * own[index])]
                )
                share = shares[index]
                jacobian = (np.diag(share) - np.outer(share, share)) / tau
                change[index] = jacobian @ by_share
                loaded[index] = loaded[index] - self.lr * share[0] * gradient
                own[index] = own[index] - self.lr * share[1] * gradient
            logits = logits - self.decision_lr * change
        self.logits[name] = logits
        return [
            a if load >= keep else b for (load, keep), a, b in zip(logits, loaded, own, strict=True)
        ]


class Fix:
    """Mode fix: named layers are loaded from the server in each round, the others stay; plain SGD.

    Args:
        gradients, counts, start: as above.
        loaded: for each layer whether it is.
        lr, steps: of a client's round.
    """

    def __init__(self, gradients, counts, start, *, loaded, lr, steps):
        self.gradients, self.counts, self.loaded = gradients, counts, loaded
        self.lr, self.steps = lr, steps
        self.server = [np.array(layer, np.float64) for layer in start]
        self.own = {name: list(self.server) for name in gradients}

    def round(self, cohort):
        """One round of the clients named."""
        total = sum(self.counts[name] for name in cohort)
        for name in cohort:
            own = [
                server if load else kept
                for load, server, kept in zip(self.loaded, self.server, self.own[name], strict=True)
            ]
            for _ in range(self.steps):
                own = [
                    layer - self.lr * gradient
                    for layer, gradient in zip(own, self.gradients[name](own), strict=True)
                ]
            self.own[name] = own
        for index, load in enumerate(self.loaded):
            if load:
                sent = (self.counts[name] * self.own[name][index] for name in cohort)
                self.server[index] = sum(sent) / total
