"""How far a device is believed in what it says of itself, and how far it may move the model.

- Its number of examples counts up to a multiple of the round's median.
- The difference between its update and its payload may be as long as a multiple of the median
  difference of the rounds before, which the ledger keeps; before there are any, as long as
  ``limits.update_norm`` allows.
- A state that would leave no room for honest updates in the next round is not committed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from protofleet.errors import RefusedError
from protofleet.federation.records import UpdateRecord
from protofleet.kernels import squared_distance, squared_distance_and_norm
from protofleet.strategies.types import Update, Updates
from protofleet.tensors import Tensors

Norms = Mapping[str, float]
"""Euclidean norms by group of tensors: what stands before the first ``/`` of their names."""

MULTIPLE = 100.0
"""Of the median norm of accepted differences: devices with more data take more steps, and some
have a long way to go."""
_ROUNDS = 10
_ROOM = 0.5
"""Share of ``limits.update_norm`` that a state may take: the rest is for the updates' own way."""


class Admitted(Protocol):
    """An update that counts: what its device says of it, and how far it differs."""

    @property
    def record(self) -> UpdateRecord:
        """What its device says of it."""
        ...

    @property
    def norms(self) -> Norms:
        """From ``difference_norms``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """A claim that was believed in part.

    Attributes:
        client_id: whose.
        claim: its number of examples, or the norm of a difference.
        stated: what it said.
        limit: what it counted as.
    """

    client_id: str
    claim: Literal["num_examples", "difference"]
    stated: float
    limit: float


def difference_norms(tensors: Tensors, baseline: Tensors) -> dict[str, float]:
    """Norms of an update's difference to what its client started from; integers are passed over.

    Args:
        tensors: finite.
        baseline: what has no name in it is compared with zero.
    """
    return measured(tensors, baseline)[0]


def measured(tensors: Tensors, baseline: Tensors) -> tuple[dict[str, float], dict[str, float]]:
    """``difference_norms``, and the norm of each tensor itself, in one pass over their memory.

    Args:
        tensors: the norm of one that is not finite is not either.
        baseline: as there.
    """
    squares: dict[str, float] = {}
    norms: dict[str, float] = {}
    for name, value in sorted(tensors.items()):
        if value.dtype.kind != "f":
            continue
        start = baseline.get(name)
        same = start is not None and start.shape == value.shape
        apart, square = squared_distance_and_norm(value, start if same else None)
        group = name.partition("/")[0]
        squares[group] = squares.get(group, 0.0) + apart
        norms[name] = math.sqrt(square)
    return {group: math.sqrt(square) for group, square in squares.items()}, norms


def median_norms(norms: Iterable[Norms]) -> dict[str, float]:
    """Of a round's accepted updates, group by group over those that have it."""
    columns: dict[str, list[float]] = {}
    for one in norms:
        for group, norm in one.items():
            columns.setdefault(group, []).append(norm)
    return {group: float(np.median(column)) for group, column in sorted(columns.items())}


class LearnedBounds:
    """How far updates may differ from their payloads, by group, as the rounds before show it.

    Each is ``MULTIPLE`` times the largest of the last ten rounds in which something moved: a model
    that has been spoilt needs long ways back, and a minority moves no median.

    Args:
        rounds: ``median_norms`` of the rounds before, in order.

    Attributes:
        now: by group, for the next round.
    """

    def __init__(self, rounds: Iterable[Norms] = ()) -> None:
        self._recent: dict[str, deque[float]] = {}
        self.now: dict[str, float] = {}
        for one in rounds:
            self._note(one)
        self._learn()

    def add(self, norms: Norms) -> None:
        """Another round has ended."""
        self._note(norms)
        self._learn()

    def _note(self, norms: Norms) -> None:
        for group, norm in norms.items():
            if norm > 0:
                self._recent.setdefault(group, deque(maxlen=_ROUNDS)).append(norm)

    def _learn(self) -> None:
        self.now = {group: MULTIPLE * max(norms) for group, norms in self._recent.items()}


def learned_bounds(rounds: Iterable[Norms]) -> dict[str, float]:
    """``LearnedBounds`` of all rounds at once."""
    return LearnedBounds(rounds).now


def relaxed_bounds(bounds: Norms, attempt: int) -> dict[str, float]:
    """The same for a round that was extended so often: ten times as much each time.

    Where most devices are refused it may be the bounds that are wrong.
    """
    return {group: bound * 10.0**attempt for group, bound in bounds.items()}


def check_differences(norms: Norms, baseline: Tensors, bounds: Norms, *, most: float) -> None:
    """Refuse an update that goes farther than any before.

    Args:
        norms: from ``difference_norms``.
        baseline: what its client started from; as far as that is long a client may always go.
        bounds: from ``learned_bounds``; without a group that was never accepted.
        most: bound where nothing was learned.

    Raises:
        RefusedError: rule ``norm``.
    """
    long = {group: bounds.get(group, most) for group in norms}
    if all(norm <= long[group] for group, norm in norms.items()):
        return
    started = difference_norms(baseline, {})
    for group, norm in norms.items():
        bound = max(long[group], started.get(group, 0.0))
        if norm > bound:
            raise RefusedError(
                "norm",
                f"update: expected its '{group}' to differ from the payload by a norm of at most "
                f"{bound:.4g}, got {norm:.4g}",
            )


def check_examples(record: UpdateRecord, registered: int | None) -> None:
    """Refuse more examples than the device's presence says; ``None``: nothing is known of it.

    Raises:
        RefusedError: rule ``num-examples``.
    """
    if registered is not None and record.num_examples > registered:
        raise RefusedError(
            "num-examples",
            f"update of '{record.client_id}': expected at most the {registered} examples of its "
            f"presence, got {record.num_examples}",
        )


def believed_examples(
    updates: Updates, admitted: Sequence[Admitted], multiple: float
) -> tuple[Updates, tuple[Limited, ...]]:
    """The updates as far as their numbers of examples are believed, and whose are not.

    Args:
        updates: sorted by client_id.
        admitted: the same clients.
        multiple: of the median number of those that have examples; 0: any number is believed.

    Returns:
        The very same updates where no number is larger than that.
    """
    if not multiple:
        return updates, ()
    counts = [one.record.num_examples for one in admitted if one.record.num_examples]
    limit = max(int(multiple * float(np.median(counts))), 1) if counts else 0
    limited = tuple(
        Limited(
            client_id=one.record.client_id,
            claim="num_examples",
            stated=one.record.num_examples,
            limit=limit,
        )
        for one in admitted
        if one.record.num_examples > limit
    )
    return (_Believed(updates, limit) if limited else updates), limited


@dataclass(frozen=True, slots=True)
class _Believed:
    """Updates with at most ``limit`` examples; class counts shrink alike."""

    updates: Updates
    limit: int

    def __len__(self) -> int:
        return len(self.updates)

    def __iter__(self) -> Iterator[Update]:
        for update in self.updates:
            yield update if update.num_examples <= self.limit else self._shrunk(update)

    def _shrunk(self, update: Update) -> Update:
        counts = update.class_counts
        if counts is not None:
            share = self.limit / update.num_examples
            counts = np.where(counts > 0, np.maximum(counts * share, 1), 0).astype(np.int64)
        return replace(update, num_examples=self.limit, class_counts=counts)


@dataclass(frozen=True, slots=True)
class Without:
    """Updates but for those of some clients."""

    updates: Updates
    clients: Collection[str]

    def __len__(self) -> int:
        return len(self.updates) - len(self.clients)

    def __iter__(self) -> Iterator[Update]:
        return (update for update in self.updates if update.client_id not in self.clients)


def by_length(admitted: Sequence[Admitted]) -> list[str]:
    """Ids of the clients, the one that moved farthest first.

    A group counts in multiples of its median, so that no group hides behind another.
    """
    middle = median_norms(one.norms for one in admitted)

    def farthest(one: Admitted) -> float:
        with np.errstate(over="ignore"):  # where most have not moved, who has is infinitely far
            tiny = np.finfo(float).tiny
            return max((norm / max(middle[g], tiny) for g, norm in one.norms.items()), default=0.0)

    return [one.record.client_id for one in sorted(admitted, key=farthest, reverse=True)]


def state_fault(tensors: Tensors, update_norm: float) -> str:
    """Why a state must not be committed; empty: it may be.

    Args:
        tensors: of the state.
        update_norm: largest norm of a tensor in an update of the next round.
    """
    for name, value in tensors.items():
        if value.dtype.kind != "f":
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            norm = math.sqrt(squared_distance(value))
        if not norm <= _ROOM * update_norm:
            return (
                f"tensor '{name}' of the new state: expected finite numbers and a norm of at most "
                f"{_ROOM * update_norm:g}, half of limits.update_norm, got {norm:.4g}"
            )
    return ""
