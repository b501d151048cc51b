"""From one data set to each client's own data: who gets which rows, and which of them test."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from protofleet.datasets import partition as rules
from protofleet.datasets.device_data import DeviceData
from protofleet.datasets.partition import (
    Rows,
    divide_like,
    folds_split,
    in_time_split,
    random_split,
)
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError

Count = Annotated[int, Meta(ge=1)]
Alpha = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(gt=0, lt=1)]
Labels = NDArray[np.int64]
Rng = np.random.Generator
Sides = tuple[Rows, Rows]


class _Settings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    pass


class Natural(_Settings, frozen=True, kw_only=True, tag="natural"):
    """Each person of the data set is a client; people without train or test rows are left out.

    Attributes:
        all_classes: leave out people who lack a class (FedAli on HHAR).
        clients: at most so many, the first by name; None: all.
    """

    all_classes: bool = False
    clients: Count | None = None


class Iid(_Settings, frozen=True, kw_only=True, tag="iid"):
    """``partition.iid``: random equal parts.

    Attributes:
        clients: how many.
    """

    clients: Count

    def divide(self, labels: Labels, rng: Rng) -> list[Rows]:
        """Row numbers of each client."""
        return rules.iid(len(labels), self.clients, rng=rng)


class Dirichlet(_Settings, frozen=True, kw_only=True, tag="dirichlet"):
    """``partition.dirichlet`` (Hsu et al.).

    Attributes:
        clients: how many.
        alpha: concentration of the draws; small: few classes each.
        min_examples: fewest that a client may have.
    """

    clients: Count
    alpha: Alpha
    min_examples: Count = 10

    def divide(self, labels: Labels, rng: Rng) -> list[Rows]:
        """Row numbers of each client."""
        least = self.min_examples
        return rules.dirichlet(labels, self.clients, alpha=self.alpha, rng=rng, min_examples=least)


class DirichletShared(_Settings, frozen=True, kw_only=True, tag="dirichlet_shared"):
    """``partition.dirichlet_shared`` (FedHP): one draw serves the train and the test rows.

    Attributes:
        clients: how many.
        alpha: concentration of the draws; small: few classes each.
        min_per_class: rows of each class and part that every client gets first.
    """

    clients: Count
    alpha: Alpha
    min_per_class: Annotated[int, Meta(ge=0)] = 2


class DirichletBalanced(_Settings, frozen=True, kw_only=True, tag="dirichlet_balanced"):
    """``partition.dirichlet_balanced`` (FedALA's practical setting).

    Attributes:
        clients: how many.
        alpha: concentration of the draws; small: few classes each.
        least: fewest rows that a client may have.
    """

    clients: Count
    alpha: Alpha = 0.1
    least: Count = 40

    def divide(self, labels: Labels, rng: Rng) -> list[Rows]:
        """Row numbers of each client."""
        return rules.dirichlet_balanced(
            labels, self.clients, alpha=self.alpha, rng=rng, least=self.least
        )


class Pathological(_Settings, frozen=True, kw_only=True, tag="pathological"):
    """``partition.pathological`` (FedALA).

    Attributes:
        clients: how many.
        classes_per_client: how many classes each has.
    """

    clients: Count
    classes_per_client: Count = 2

    def divide(self, labels: Labels, rng: Rng) -> list[Rows]:
        """Row numbers of each client."""
        count = self.classes_per_client
        return rules.pathological(labels, self.clients, classes_per_client=count, rng=rng)


class Stratified(_Settings, frozen=True, kw_only=True, tag="stratified"):
    """The publisher's parts are merged; a share of each client's rows of each class tests.

    Attributes:
        test_fraction: the share.
        shuffled: choose at random; else the last rows of each class test.
    """

    test_fraction: Fraction = 0.25
    shuffled: bool = True

    def cut(self, pool: Pool, rows: Rows, rng: Rng) -> Sides:
        """One client's train and test rows."""
        train, test = rules.stratified_split(
            pool.y[rows],
            test_fraction=self.test_fraction,
            rng=rng if self.shuffled else None,
        )
        return rows[train], rows[test]


class Random(_Settings, frozen=True, kw_only=True, tag="random"):
    """The publisher's parts are merged; a share of each client's rows tests, of whatever class.

    Attributes:
        test_fraction: the share.
    """

    test_fraction: Fraction = 0.25

    def cut(self, _: Pool, rows: Rows, rng: Rng) -> Sides:
        """One client's train and test rows."""
        train, test = random_split(len(rows), test_fraction=self.test_fraction, rng=rng)
        return rows[train], rows[test]


class InTime(_Settings, frozen=True, kw_only=True, tag="in_time"):
    """The last share of each activity tests; windows that overlap a training window are unused.

    Only for natural clients: other partitions have no time order.

    Attributes:
        test_fraction: the share.
    """

    test_fraction: Fraction = 0.3

    def cut(self, pool: Pool, rows: Rows, _: Rng) -> Sides:
        """One client's train and test rows."""
        if pool.recording is None:
            raise InputError("split 'in_time': the data set's examples have no order in time")
        follows = np.zeros(len(rows), bool) if pool.follows is None else pool.follows[rows]
        train, test = in_time_split(pool.y[rows], follows, test_fraction=self.test_fraction)
        return rows[train], rows[test]


class Folds(_Settings, frozen=True, kw_only=True, tag="folds"):
    """``folds_split``: stratified folds without shuffling; the first ones train (FedAli).

    Attributes:
        folds: how many there are.
        train_folds: how many of them train.
    """

    folds: Annotated[int, Meta(ge=2)] = 10
    train_folds: Count = 7

    def cut(self, pool: Pool, rows: Rows, _: Rng) -> Sides:
        """One client's train and test rows."""
        train, test = folds_split(pool.y[rows], folds=self.folds, train_folds=self.train_folds)
        return rows[train], rows[test]


class Publisher(_Settings, frozen=True, kw_only=True, tag="publisher"):
    """The published test part tests; each client gets test rows in its own class proportions."""

    def cut(self, pool: Pool, rows: Rows, _: Rng) -> Sides:
        """One client's train and test rows."""
        if pool.is_test is None:
            raise InputError("split 'publisher': the data set has no published test part")
        return rows[~pool.is_test[rows]], rows[pool.is_test[rows]]


Generated = Iid | Dirichlet | DirichletBalanced | Pathological
Partition = Natural | Iid | Dirichlet | DirichletShared | DirichletBalanced | Pathological
Split = Stratified | Random | InTime | Folds | Publisher


def federate(pool: Pool, partition: Partition, split: Split, *, seed: int) -> dict[str, DeviceData]:
    """Each client's data, by client id; the same for the same seed.

    A client's id is its owner's name (natural) or ``client-000`` and so on; the ids are sorted.
    No row is used twice.

    Raises:
        InputError: partition, split and data set do not fit together, or a client is left without
            train or test rows.
    """
    if pool.targets:
        _check_needs_no_classes(partition, split)
    rngs = np.random.default_rng(seed).spawn(2)
    whole = by_main_class(pool)
    match partition:
        case Natural():
            parts = _people(whole, partition, split, rngs[1])
        case DirichletShared():
            parts = _shared(whole, partition, split, rngs)
        case _:
            parts = _generated(whole, partition, split, rngs)
    for name, (train, test) in parts.items():
        if not len(train) or not len(test):
            raise InputError(
                f"client '{name}': got {len(train)} train and {len(test)} test rows, expected "
                "some of both; use fewer clients, a larger alpha or another split"
            )
    return {name: _device_data(pool, *sides) for name, sides in parts.items()}


def by_main_class(pool: Pool) -> Pool:
    """The same examples, where steps have classes with that of most steps; ties: the first."""
    if pool.targets or pool.y.ndim == 1:
        return pool
    counts = [np.bincount(steps, minlength=len(pool.classes)) for steps in pool.y]
    return replace(pool, y=np.array(counts).reshape(len(pool.y), -1).argmax(axis=1))


def _check_needs_no_classes(partition: Partition, split: Split) -> None:
    """Raise InputError where a data set of numbers is to be divided by its classes."""
    if not isinstance(partition, Natural | Iid) or not isinstance(split, Random):
        raise InputError(
            "a data set of targets: expected the partition 'natural' or 'iid' and the split "
            f"'random', which look at no class, got '{_kind(partition)}' and '{_kind(split)}'"
        )


def pooled(clients: Mapping[str, DeviceData]) -> DeviceData:
    """All clients' data in the order of their ids.

    Raises:
        InputError: no clients, or their inputs, classes or boxes have different forms.
    """
    ordered = [clients[name] for name in sorted(clients)]
    forms = {(data.x_train.shape[1:], data.classes, data.targets) for data in ordered}
    if len(forms) != 1:
        raise InputError(f"pooled data: expected clients of one form, got {len(forms)} forms")
    return DeviceData(
        x_train=np.concatenate([data.x_train for data in ordered]),
        y_train=np.concatenate([data.y_train for data in ordered]),
        x_test=np.concatenate([data.x_test for data in ordered]),
        y_test=np.concatenate([data.y_test for data in ordered]),
        classes=ordered[0].classes,
        targets=ordered[0].targets,
        boxes_train=_joined([data.boxes_train for data in ordered]),
        boxes_test=_joined([data.boxes_test for data in ordered]),
    )


def without_classes(data: DeviceData, removed: Collection[int]) -> DeviceData:
    """The data without train and test examples of some classes; the classes keep their numbers."""
    train = ~np.isin(data.y_train, list(removed))
    test = ~np.isin(data.y_test, list(removed))
    return DeviceData(
        x_train=data.x_train[train],
        y_train=data.y_train[train],
        x_test=data.x_test[test],
        y_test=data.y_test[test],
        classes=data.classes,
        boxes_train=None if data.boxes_train is None else data.boxes_train[train],
        boxes_test=None if data.boxes_test is None else data.boxes_test[test],
    )


def _people(pool: Pool, partition: Natural, split: Split, rng: Rng) -> dict[str, Sides]:
    if pool.client is None:
        raise InputError("partition 'natural': the data set has no owners; use another partition")
    parts: dict[str, Sides] = {}
    for name, rows in rules.natural(pool.client).items():
        lacks = partition.all_classes and len(np.unique(pool.y[rows])) < len(pool.classes)
        train, test = split.cut(pool, rows, rng)
        if not lacks and len(train) and len(test):
            parts[name] = train, test
    if not parts:
        raise InputError("partition 'natural': nobody has train and test rows of what is asked")
    return dict(list(parts.items())[: partition.clients])


def _shared(
    pool: Pool, partition: DirichletShared, split: Split, rngs: list[Rng]
) -> dict[str, Sides]:
    """The whole data set is split first, because the proportions serve both sides."""
    if not isinstance(split, Stratified | Random | Publisher):
        raise InputError(
            "partition 'dirichlet_shared': expected the split 'stratified', 'random' or "
            f"'publisher', got '{_kind(split)}'"
        )
    is_test = np.zeros(len(pool.y), bool)
    is_test[split.cut(pool, np.arange(len(pool.y)), rngs[1])[1]] = True
    owned = rules.dirichlet_shared(
        pool.y,
        is_test,
        partition.clients,
        alpha=partition.alpha,
        rng=rngs[0],
        min_per_class=partition.min_per_class,
    )
    return _named([(rows[~is_test[rows]], rows[is_test[rows]]) for rows in owned])


def _generated(pool: Pool, partition: Generated, split: Split, rngs: list[Rng]) -> dict[str, Sides]:
    everything = np.arange(len(pool.y))
    if isinstance(split, InTime):
        raise InputError(
            f"split 'in_time': expected the partition 'natural', got '{_kind(partition)}'"
        )
    if not isinstance(split, Publisher):
        owned = partition.divide(pool.y, rngs[0])
        return _named([split.cut(pool, rows, rngs[1]) for rows in owned])
    train, test = split.cut(pool, everything, rngs[1])
    owned = [train[mine] for mine in partition.divide(pool.y[train], rngs[0])]
    counts = [np.bincount(pool.y[rows], minlength=len(pool.classes)) for rows in owned]
    tests = divide_like(pool.y[test], np.stack(counts), rng=rngs[1])
    return _named([(rows, test[mine]) for rows, mine in zip(owned, tests, strict=True)])


def _named(parts: list[Sides]) -> dict[str, Sides]:
    width = max(3, len(str(len(parts) - 1)))
    return {f"client-{number:0{width}d}": sides for number, sides in enumerate(parts)}


def _device_data(pool: Pool, train: Rows, test: Rows) -> DeviceData:
    return DeviceData(
        x_train=pool.x[train],
        y_train=pool.y[train],
        x_test=pool.x[test],
        y_test=pool.y[test],
        classes=pool.classes,
        targets=pool.targets,
        boxes_train=None if pool.boxes is None else pool.boxes[train],
        boxes_test=None if pool.boxes is None else pool.boxes[test],
    )


def _joined(boxes: list[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    """All boxes; None only if no client has any."""
    known = [value for value in boxes if value is not None]
    if not known:
        return None
    if len(known) != len(boxes) or len({value.shape[1] for value in known}) != 1:
        raise InputError("pooled data: expected boxes of one form for every client or for none")
    return np.concatenate(known)


def _kind(settings: Partition | Split) -> str:
    return str(settings.__struct_config__.tag)
