"""Ways to divide one data set: among clients, and rows into a train and a test part.

Each function returns row numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError

_MAX_DRAWS = 1000
Rows = NDArray[np.int64]


def natural(owners: NDArray[np.str_]) -> dict[str, Rows]:
    """Everybody keeps their own rows, in order; the clients are sorted by name.

    Args:
        owners: ``(n,) str``: whose row it is.
    """
    return {str(name): np.flatnonzero(owners == name) for name in np.unique(owners)}


def iid(count: int, clients: int, *, rng: np.random.Generator) -> list[Rows]:
    """Random parts of ``count`` rows whose sizes differ by at most one.

    Raises:
        InputError: fewer rows than clients.
    """
    _check_clients(count, clients)
    return np.array_split(rng.permutation(count), clients)


def dirichlet(
    labels: NDArray[np.int64],
    clients: int,
    *,
    alpha: float,
    rng: np.random.Generator,
    min_examples: int = 10,
) -> list[Rows]:
    """Label-skewed partition: each class is divided by proportions drawn from Dir(alpha).

    Hsu, Qi, Brown, arXiv:1909.06335. Redrawn until every client has ``min_examples``.

    Args:
        labels: ``(n,) int64``.
        clients: number of parts.
        alpha: concentration; small values give each client few classes.
        rng: source of the proportions and of the order.
        min_examples: fewest examples that a client may have.

    Returns:
        For each client the indices of its examples, in random order.

    Raises:
        InputError: no draw out of many gave every client enough.
    """
    _check_clients(len(labels), clients)
    _check_alpha(alpha)
    for _ in range(_MAX_DRAWS):
        parts: list[list[Rows]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
            for part, piece in zip(parts, np.split(rows, cuts.astype(np.int64)), strict=True):
                part.append(piece)
        drawn = [rng.permutation(np.concatenate(part)) for part in parts]
        if min(map(len, drawn)) >= min_examples:
            return drawn
    raise _never(len(labels), clients, alpha, min_examples)


def dirichlet_shared(  # noqa: PLR0913 - settings go by keyword
    labels: NDArray[np.int64],
    is_test: NDArray[np.bool_],
    clients: int,
    *,
    alpha: float,
    rng: np.random.Generator,
    min_per_class: int = 2,
) -> list[Rows]:
    """FedHP's rule: one draw of Dir(alpha) per class serves the train and the test rows.

    Fonio et al., ESANN 2024, and the authors' code. In each part every client first gets
    ``min_per_class`` rows of each class, as far as there are any; the rest of the class is drawn
    row by row with the class's proportions.

    Args:
        labels: ``(n,) int64``.
        is_test: ``(n,) bool``: which part a row is in.
        clients: number of clients.
        alpha: concentration.
        rng: source of everything random.
        min_per_class: rows of each class and part that every client gets first.

    Returns:
        For each client its rows of both parts, in random order.
    """
    _check_clients(len(labels), clients)
    _check_alpha(alpha)
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        shares = rng.dirichlet(np.full(clients, alpha))
        for side in (False, True):
            rows = rng.permutation(np.flatnonzero((labels == label) & (is_test == side)))
            first = np.tile(rng.permutation(clients), min_per_class)[: len(rows)]
            rest = rng.choice(clients, size=len(rows) - len(first), p=shares)
            owner = np.concatenate([first, rest])
            for client, part in enumerate(parts):
                part.append(rows[owner == client])
    return [rng.permutation(np.concatenate(part)) for part in parts]


def dirichlet_balanced(
    labels: NDArray[np.int64],
    clients: int,
    *,
    alpha: float,
    rng: np.random.Generator,
    least: int = 40,
) -> list[Rows]:
    """FedALA's practical setting: Dir(alpha) per class with a brake on large clients.

    Zhang et al., AAAI 2023, and the authors' code: a client that already has n/clients rows gets
    nothing of the classes that follow, and everything is drawn again until every client has
    ``min(least, n / clients / 2)`` rows. Unlike there, rounding gives no row to a full client.

    Returns:
        For each client the indices of its examples, in random order.

    Raises:
        InputError: no draw out of many gave every client enough.
    """
    _check_clients(len(labels), clients)
    _check_alpha(alpha)
    enough = int(min(least, len(labels) / clients / 2))
    for _ in range(_MAX_DRAWS):
        drawn = _draw_balanced(labels, clients, alpha, rng)
        if min(map(len, drawn)) >= enough:
            return [rng.permutation(rows) for rows in drawn]
    raise _never(len(labels), clients, alpha, enough)


def pathological(
    labels: NDArray[np.int64], clients: int, *, classes_per_client: int, rng: np.random.Generator
) -> list[Rows]:
    """Every client has ``classes_per_client`` classes; owners of a class have random shares of it.

    FedALA's code: each class goes to clients x classes_per_client / classes clients, the first ones
    that still want classes; a share is uniform between a tenth of the mean and the mean, the last
    owner has what is left. Where these numbers do not divide, owners per class differ by one.

    Returns:
        For each client the indices of its examples, in random order.

    Raises:
        InputError: more classes wanted than there are, a class would have no owner, or fewer rows
            than owners.
    """
    _check_clients(len(labels), clients)
    classes = np.unique(labels)
    if not 1 <= classes_per_client <= len(classes) <= clients * classes_per_client:
        raise InputError(
            f"pathological partition: expected 1…{len(classes)} classes per client and an owner "
            f"for each of {len(classes)} classes, got {clients} clients with {classes_per_client}"
        )
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for label, owners in zip(
        classes, _owners(len(classes), clients, classes_per_client), strict=True
    ):
        rows = rng.permutation(np.flatnonzero(labels == label))
        sizes = _unbalanced(len(rows), len(owners), rng)
        for client, piece in zip(owners, np.split(rows, np.cumsum(sizes)[:-1]), strict=True):
            parts[client].append(piece)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def stratified_split(
    labels: NDArray[np.int64], *, test_fraction: float, rng: np.random.Generator | None
) -> tuple[Rows, Rows]:
    """Indices of a train and a test part with (nearly) the same class proportions.

    A class with a single example goes to the train part.

    Args:
        labels: ``(n,) int64``.
        test_fraction: share of each class that tests.
        rng: source of the choice and of the order; None: the last rows of each class test, and
            both parts keep the rows' order.
    """
    train: list[Rows] = []
    test: list[Rows] = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rows = rows[::-1] if rng is None else rng.permutation(rows)
        cut = min(round(test_fraction * len(rows)), len(rows) - 1)
        test.append(rows[:cut])
        train.append(rows[cut:])
    order = np.sort if rng is None else rng.permutation
    return order(np.concatenate(train)), order(np.concatenate(test))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRemoval:
    """Which classes a client lacks in which round: FedSub's dynamic scenario.

    Attributes:
        order: for each affected client the removed classes in the order in which they come back.
        every: rounds until one more comes back.
    """

    order: Mapping[str, tuple[int, ...]]
    every: int

    def removed(self, client_id: str, round_id: int) -> frozenset[int]:
        """Classes that the client lacks in round ``round_id`` (from 1), in train and test."""
        return frozenset(self.order.get(client_id, ())[(round_id - 1) // self.every :])


def label_removal(
    classes_of_client: Mapping[str, Sequence[int]],
    *,
    every: int,
    rng: np.random.Generator,
    share: float = 0.6,
) -> LabelRemoval:
    """Draw which clients start without some of their classes.

    Campana, Delmastro (FedSub): 60 % of the clients lose classes before the start, and every
    ``every`` rounds each of them gets one back. How many is not published: here 1 to one less than
    the client has, at random. A client with a single class keeps it and is never drawn.

    Args:
        classes_of_client: the classes that each client has.
        every: rounds until one removed class comes back.
        rng: source of the choice.
        share: share of all clients that lose classes.

    Raises:
        InputError: ``share`` is outside 0…1 or ``every`` is no positive number.
    """
    if not 0 <= share <= 1 or every < 1:
        raise InputError(
            f"label removal: expected a share in 0…1 and at least 1 round, got {share} and {every}"
        )
    able = [name for name in sorted(classes_of_client) if len(set(classes_of_client[name])) > 1]
    count = min(round(share * len(classes_of_client)), len(able))
    order = {}
    for index in np.sort(rng.permutation(len(able))[:count]):
        classes = rng.permutation(sorted(set(classes_of_client[able[index]])))
        lost = classes[: rng.integers(1, len(classes))]
        order[able[index]] = tuple(int(label) for label in lost)
    return LabelRemoval(order=order, every=every)


def _draw_balanced(
    labels: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> list[Rows]:
    parts: list[list[Rows]] = [[np.empty(0, np.int64)] for _ in range(clients)]
    sizes = np.zeros(clients, np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        hungry = np.flatnonzero(sizes < len(labels) / clients)
        # Shares of a very small alpha may underflow to zero for all who may still get rows.
        weights = shares[hungry] + np.finfo(np.float64).tiny
        cuts = np.cumsum(weights / weights.sum())[:-1] * len(rows)
        for client, piece in zip(hungry, np.split(rows, cuts.astype(np.int64)), strict=True):
            parts[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(part) for part in parts]


def _owners(classes: int, clients: int, per_client: int) -> list[NDArray[np.int64]]:
    """Who owns each class, such that every client owns exactly ``per_client`` of them."""
    wanted = np.full(clients, per_client)
    slots = clients * per_client
    owners = []
    for index in range(classes):
        count = (index + 1) * slots // classes - index * slots // classes
        # Who wants as many classes as are left must have this one.
        must = wanted == classes - index
        asking = np.concatenate([np.flatnonzero(must), np.flatnonzero(~must & (wanted > 0))])
        chosen = np.sort(asking[:count])
        wanted[chosen] -= 1
        owners.append(chosen)
    return owners


def _unbalanced(count: int, owners: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if count < owners:
        raise InputError(f"pathological partition: a class of {count} rows has {owners} owners")
    mean = count / owners
    low = max(1, int(mean / 10))
    sizes = rng.integers(low, max(low + 1, int(mean)), owners - 1)
    return np.append(sizes, count - sizes.sum())


def _check_clients(count: int, clients: int) -> None:
    if not 1 <= clients <= count:
        raise InputError(f"partition: expected 1…{count} clients for {count} rows, got {clients}")


def _check_alpha(alpha: float) -> None:
    if not alpha > 0:
        raise InputError(f"partition: expected a positive alpha, got {alpha}")


def _never(rows: int, clients: int, alpha: float, least: int) -> InputError:
    return InputError(
        f"Dirichlet partition: {rows} examples over {clients} clients with alpha {alpha} "
        f"never gave every client {least}; use fewer clients or a larger alpha"
    )


def random_split(
    count: int, *, test_fraction: float, rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """Train and test rows at random, whatever their class, in random order; at least one trains."""
    rows = rng.permutation(count)
    cut = min(round(test_fraction * count), count - 1)
    return rows[cut:], rows[:cut]


def folds_split(labels: NDArray[np.int64], *, folds: int, train_folds: int) -> tuple[Rows, Rows]:
    """The first ``train_folds`` of stratified folds without shuffling train, the others test.

    FedAli's published split is 7 of 10. Rows keep their order. The folds are those of
    scikit-learn's ``StratifiedKFold(shuffle=False)``: the classes, sorted by their first
    appearance, are dealt like cards to learn how many of each a fold gets, and each class is then
    cut into consecutive pieces. Neighbouring windows that overlap may be on both sides of a cut.

    Args:
        labels: ``(n,) int64``.
        folds: number of folds.
        train_folds: how many of them train.
    """
    _, first, code = np.unique(labels, return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first))[code]
    dealt = np.sort(by_appearance)
    fold = np.empty(len(labels), np.int64)
    for index in range(len(first)):
        sizes = [np.count_nonzero(dealt[start::folds] == index) for start in range(folds)]
        fold[by_appearance == index] = np.repeat(np.arange(folds), sizes)
    return np.flatnonzero(fold < train_folds), np.flatnonzero(fold >= train_folds)


def in_time_split(
    labels: NDArray[np.int64], follows: NDArray[np.bool_], *, test_fraction: float
) -> tuple[Rows, Rows]:
    """The first part of each class trains and the rest tests; test rows that overlap are left out.

    Args:
        labels: ``(n,) int64`` of one person's rows in time order.
        follows: ``(n,) bool``: the row's window overlaps the one before it.
        test_fraction: share of each class that tests.
    """
    train = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        train[rows[: len(rows) - round(test_fraction * len(rows))]] = True
    touches = np.zeros(len(labels), bool)
    touches[1:] |= train[:-1] & follows[1:]
    touches[:-1] |= train[1:] & follows[1:]
    return np.flatnonzero(train), np.flatnonzero(~train & ~touches)


def divide_like(
    labels: NDArray[np.int64], counts: NDArray[np.int64], *, rng: np.random.Generator
) -> list[Rows]:
    """Divide test rows such that each client's have the class proportions of its train rows.

    Args:
        labels: ``(n,) int64`` of the test rows.
        counts: ``(clients, classes) int64``: train rows of each client and class.
        rng: source of the choice.

    Returns:
        For each client its test rows, in random order; rows of a class that nobody trains on
        are left out.
    """
    parts: list[list[Rows]] = [[np.empty(0, np.int64)] for _ in counts]
    for label in np.flatnonzero(counts.sum(axis=0)):
        rows = rng.permutation(np.flatnonzero(labels == label))
        grown = np.cumsum(counts[:, label])
        cuts = np.rint(grown[:-1] * len(rows) / grown[-1]).astype(np.int64)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.append(piece)
    return [rng.permutation(np.concatenate(part)) for part in parts]
