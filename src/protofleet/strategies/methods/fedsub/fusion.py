"""How FedSub's server fuses subnetworks inside clusters (section 5.3, step 4 of the server).

Everything is computed in blocks of rows of one tensor, so that memory grows with the fleet's
weights once, and sums run in float64 in the order of the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Fusion = Literal["overlap", "average", "leadership"]
Subnetworks = Literal["masked", "whole"]
Untouched = Literal["keep", "zero"]
Normalise = Literal["halve", "norm", "unit", "none"]
Doubles = NDArray[np.float64]
Flags = NDArray[np.bool_]
Weights = NDArray[np.float32]

_BLOCK = 1 << 12
"""Weights of a client that are fused at once: all clients' stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the settings say of fusion; ``strategy.FedSubSettings`` explains them."""

    fusion: Fusion
    subnetworks: Subnetworks
    untouched: Untouched
    normalise: Normalise


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Clients that are alike in one class.

    Attributes:
        label: the class.
        members: numbers of the clients.
        owners: those of them that have examples of the class; at least one.
        shares: ``(owners,)`` p, their weights.
        leader: the owner with the largest accuracy times number of examples.
    """

    label: int
    members: NDArray[np.int64]
    owners: NDArray[np.int64]
    shares: Doubles
    leader: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """What all clients sent, by their numbers.

    Attributes:
        owned: ``(M, C)``, which classes a client has examples of.
        clusters: of all classes.
    """

    owned: Flags
    clusters: Sequence[Cluster]


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """Where the clients' subnetworks of each class reach in a tensor.

    Attributes:
        rows: ``(M, C, r)``, whether the unit of a row is active.
        columns: ``(M, C, c)``, whether the unit of the previous layer is active.
    """

    rows: Flags
    columns: Flags

    def part(self, rows: slice) -> Active:
        """The same for some of the rows."""
        return Active(rows=self.rows[:, :, rows], columns=self.columns)

    def of(self, clients: NDArray[np.int64], label: int) -> Flags:
        """``(n, r, c)``: the subnetworks of a class."""
        return _outer(self.rows[clients, label], self.columns[clients, label])

    def common(self, clients: NDArray[np.int64], label: int) -> Flags:
        """``(r, c)``: where the subnetworks of all these clients overlap."""
        rows, columns = self.rows[clients, label], self.columns[clients, label]
        return _outer(rows.all(axis=0), columns.all(axis=0))

    def own(self, owned: Flags) -> Flags:
        """``(M, r, c)``: what any class that the client owns needs."""
        found = np.zeros((*self.rows.shape[::2], self.columns.shape[2]), np.bool_)
        for y in range(owned.shape[1]):
            found |= _outer(self.rows[:, y] & owned[:, y, None], self.columns[:, y])
        return found


def clusters_of(
    labels: NDArray[np.int64], counts: Doubles, accuracy: Doubles, *, literal: bool
) -> list[Cluster]:
    """Clusters with at least one owner.

    Args:
        labels: ``(M, C)`` from ``cluster_by_class``.
        counts: ``(M, C)``, examples of each class; nobody owns a class of which all are 0.
        accuracy: ``(M, C)``, of the client's model on its own examples of the class.
        literal: weigh by the share among all clients, so that a cluster's weights add up to less
            than 1; otherwise by the share inside the cluster.
    """
    found = []
    for y in range(labels.shape[1]):
        for label in np.unique(labels[:, y]):
            members = np.flatnonzero(labels[:, y] == label)
            owners = members[counts[members, y] > 0]
            if not len(owners):
                continue
            sizes = counts[owners, y]
            total = counts[:, y].sum() if literal else sizes.sum()
            found.append(
                Cluster(
                    label=y,
                    members=members,
                    owners=owners,
                    shares=sizes / total,
                    leader=int(owners[np.argmax(accuracy[owners, y] * sizes)]),
                )
            )
    return found


def fuse(
    weights: Sequence[Weights], active: Active, fleet: Population, rules: Rules
) -> list[Weights]:
    """New values of one tensor for every client.

    Args:
        weights: of each client, all of one shape, rows first.
        active: reach of the subnetworks in it.
        fleet: clusters and owners.
        rules: the settings.

    Returns:
        New arrays, one for each client.
    """
    tables = [value.reshape(len(value), -1) for value in weights]
    fused = [np.empty(table.shape, np.float32) for table in tables]
    for rows in _blocks(*tables[0].shape):
        own = np.array([table[rows] for table in tables], np.float64)
        block = _fuse_block(own, active.part(rows), fleet, rules)
        for table, values in zip(fused, block, strict=True):
            table[rows] = values
    if rules.normalise in ("norm", "unit"):
        fused = [
            _scaled(table, _norm(before) if rules.normalise == "norm" else 1.0)
            for table, before in zip(fused, tables, strict=True)
        ]
    return [table.reshape(weights[0].shape) for table in fused]


def _fuse_block(own: Doubles, active: Active, fleet: Population, rules: Rules) -> Doubles:
    """One block ``(M, r, c)``."""
    value_of = _VALUES[rules.fusion, rules.subnetworks]
    total, hits = np.zeros_like(own), np.zeros(own.shape, np.int16)
    for cluster in fleet.clusters:
        value, reach = value_of(own, active, cluster)
        total[cluster.members] += value
        hits[cluster.members] += reach
    touched = hits > 0
    mean = np.divide(total, hits, out=total, where=touched)
    if rules.fusion != "overlap":
        return np.where(touched, mean, own)
    needed = active.own(fleet.owned)
    mean += own  # Eq. 7
    if rules.normalise == "halve":
        mean /= 2
    rest = own if rules.untouched == "keep" else own * needed
    return np.where(touched & needed, mean, rest)


_Value = tuple[Doubles, Flags | bool]
"""What a cluster gives its members ``(r, c)``, and where it gives anything."""


def _overlap(own: Doubles, active: Active, cluster: Cluster) -> _Value:
    reach = active.common(cluster.owners, cluster.label)
    return _weighted(own[cluster.owners], cluster.shares) * reach, reach  # Eq. 6


def _average(own: Doubles, active: Active, cluster: Cluster) -> _Value:
    masked = own[cluster.owners] * active.of(cluster.owners, cluster.label)
    return _weighted(masked, cluster.shares), True  # Eq. 3 and 4


def _average_whole(own: Doubles, _active: Active, cluster: Cluster) -> _Value:
    return _weighted(own[cluster.owners], cluster.shares), True


def _leader(own: Doubles, active: Active, cluster: Cluster) -> _Value:
    mask = active.common(np.array([cluster.leader]), cluster.label)
    return own[cluster.leader] * mask, True  # Eq. 5


def _leader_whole(own: Doubles, _active: Active, cluster: Cluster) -> _Value:
    return own[cluster.leader], True


# Where all owners overlap, all of them are active: there is nothing to mask.
_VALUES: Mapping[tuple[str, str], Callable[[Doubles, Active, Cluster], _Value]] = {
    ("overlap", "masked"): _overlap,
    ("overlap", "whole"): _overlap,
    ("average", "masked"): _average,
    ("average", "whole"): _average_whole,
    ("leadership", "masked"): _leader,
    ("leadership", "whole"): _leader_whole,
}


def _weighted(values: Doubles, shares: Doubles) -> Doubles:
    """Sum of ``values (n, r, c)`` times ``shares (n,)``; no library decides on the order."""
    scaled = values * shares[:, None, None]
    total: Doubles = scaled.sum(axis=0)
    return total


def _outer(rows: Flags, columns: Flags) -> Flags:
    flags: Flags = rows[..., :, None] & columns[..., None, :]
    return flags


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _BLOCK // max(columns, 1))
    return (slice(start, start + step) for start in range(0, rows, step))


def _norm(table: Weights) -> float:
    return float(np.sqrt(np.square(table, dtype=np.float64).sum()))


def _scaled(table: Weights, length: float) -> Weights:
    """``table`` brought to a Frobenius norm; zeros stay zeros."""
    norm = _norm(table)
    if not norm:
        return table
    return (table.astype(np.float64) * (length / norm)).astype(np.float32)
