"""FedSub's server by loops over single weights, straight from the equations, in float64.

A client is a dict: ``tensors`` name → array, ``masks`` layer → (C, units) bool, ``counts`` (C,),
``accuracy`` (C,), ``prototypes`` (C, d). ``chain`` lists the fused layers; every unit of a layer
without masks is active.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from oracles.clusters import davies_bouldin, predicted, similarity


def clusters(prototypes, owned, neighbours=5):
    """Labels (M, C): for each class the best of all ways to divide the clients."""
    similarities = similarity(prototypes, owned)
    filled = predicted(prototypes, owned, similarities, neighbours)
    return np.array([divide(filled[:, y]) for y in range(owned.shape[1])]).T


def divide(points):
    """Least Davies-Bouldin index among the least inertias of 2 to M / 2 clusters."""
    best = [], np.inf
    for k in range(2, len(points) // 2 + 1):
        labels = min(partitions(len(points), k), key=lambda one: inertia(points, one))
        index = davies_bouldin(points, np.array(labels))
        if index < best[1]:
            best = labels, index
    return best[0] or [0] * len(points)


def partitions(n, k):
    """All ways to put n points into exactly k clusters, each once."""
    for labels in itertools.product(range(k), repeat=n):
        firsts = [labels.index(label) for label in range(k) if label in labels]
        if len(firsts) == k and firsts == sorted(firsts):
            yield list(labels)


def inertia(points, labels):
    groups = [points[np.array(labels) == label] for label in set(labels)]
    return sum(((group - group.mean(axis=0)) ** 2).sum() for group in groups)


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything the server knows."""

    clients: list
    labels: np.ndarray
    chain: tuple
    rules: dict

    def active(self, k, y, place):
        """Whether a weight (or a bias, where its source is None) is in k's subnetwork of y."""
        layer, unit, source = place
        masks = self.clients[k]["masks"]
        if masks.get(layer) is not None and not masks[layer][y, unit]:
            return False
        if source is None or self.rules["mask"] == "out" or layer == self.chain[0]:
            return True
        return bool(masks[self.chain[self.chain.index(layer) - 1]][y, source])

    def owners(self, u, y):
        """Who has examples of y in u's cluster."""
        everyone = range(len(self.clients))
        cluster = [k for k in everyone if self.labels[k, y] == self.labels[u, y]]
        return [k for k in cluster if self.clients[k]["counts"][y] > 0]

    def share(self, k, y, owners):
        everyone = range(len(self.clients)) if self.rules["literal_shares"] else owners
        counts = [float(self.clients[i]["counts"][y]) for i in everyone]
        return float(self.clients[k]["counts"][y]) / sum(counts)


def fuse(clients, labels, chain, rules):
    """New tensors of every client, name → array float64."""
    world = World(clients=clients, labels=labels, chain=chain, rules=rules)
    return [
        {
            f"{layer}.{kind}": tensor(world, u, layer, kind)
            for layer, kind in itertools.product(chain, ("weight", "bias"))
        }
        for u in range(len(clients))
    ]


def tensor(world, u, layer, kind):
    own = world.clients[u]["tensors"][f"{layer}.{kind}"]
    value = np.zeros(own.shape)
    for where in np.ndindex(value.shape):
        column = [float(one["tensors"][f"{layer}.{kind}"][where]) for one in world.clients]
        place = layer, where[0], where[1] if kind == "weight" else None
        value[where] = entry(world, u, column, place)
    return normalised(value, own, world.rules["normalise"])


def entry(world, u, column, place):
    """The new value of one entry, of which ``column`` holds every client's."""
    rules, classes = world.rules, range(world.labels.shape[1])
    values = []
    for y in classes:
        if owners := world.owners(u, y):
            values += contribution(world, y, owners, (column, place))
    if rules["fusion"] != "overlap":
        return sum(values) / len(values) if values else column[u]
    owned = [y for y in classes if world.clients[u]["counts"][y] > 0]
    if not any(world.active(u, y, place) for y in owned):
        return column[u] if rules["untouched"] == "keep" else 0.0
    if not values:
        return column[u]
    added = column[u] + sum(values) / len(values)
    return added / 2 if rules["normalise"] == "halve" else added


def contribution(world, y, owners, where):
    """What a cluster gives to an entry: a list of one number or none."""
    rules, (column, place) = world.rules, where
    used = {k: world.active(k, y, place) for k in owners}
    if rules["fusion"] == "overlap":
        every = all(used.values())
        return [sum(column[k] * world.share(k, y, owners) for k in owners)] if every else []
    if rules["subnetworks"] == "whole":
        used = dict.fromkeys(owners, True)
    if rules["fusion"] == "average":
        return [sum(column[k] * world.share(k, y, owners) for k in owners if used[k])]
    clients = world.clients
    merit = {k: clients[k]["accuracy"][y] * clients[k]["counts"][y] for k in owners}
    leader = max(owners, key=lambda k: (merit[k], -k))
    return [column[leader] if used[leader] else 0.0]


def normalised(value, before, rule):
    norm = np.sqrt((value**2).sum())
    if rule not in ("norm", "unit") or norm == 0:
        return value
    wanted = np.sqrt((before.astype(np.float64) ** 2).sum()) if rule == "norm" else 1.0
    return value * wanted / norm
