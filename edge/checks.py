"""What a device believes of announcements and tasks: a message never ends it.

What breaks a rule raises ``RefusedError``, and nothing has changed.
"""

from __future__ import annotations

from typing import Any

from protofleet.edge.device_info import DeviceInfo
from protofleet.edge.learning.training import Learner
from protofleet.edge.state.store import Store
from protofleet.errors import InputError, ProvisionError, RefusedError
from protofleet.federation.client import MOST_ROUNDS, MOST_SEED
from protofleet.federation.coding import largest_blob
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import TensorSchemas
from protofleet.wire.messages import Announcement, BundleOffer, Task, TransferOffer


class AnnouncedRun:
    """The run that this device has been told of, and what may be asked of it there.

    Args:
        who: what it is bound to.
        store: whose state a strategy must suit.
        learner: builds strategies.
    """

    def __init__(self, who: DeviceInfo, store: Store, learner: Learner) -> None:
        self._who, self._store, self._learner = who, store, learner
        self._announced: Announcement | None = None
        self._latest: Announcement | None = None
        self._built: tuple[str, dict[str, Any], Strategy] | None = None

    def announced(self, announcement: Announcement) -> None:
        """Take an announcement, the latest, or raise RefusedError.

        The rule is ``federation``, ``bundle``, ``layout``, ``epoch``, ``round`` or ``finish``.
        """
        self._who.check(announcement)
        self.check_epoch(announcement)
        check_announcement(announcement)
        self._announced = self._latest = announcement

    def heard(self, announcement: Announcement) -> None:
        """Take note of one that names another bundle; raises RefusedError as ``check_epoch``."""
        self.check_epoch(announcement)
        self._latest = announcement

    def check_epoch(self, record: Announcement | BundleOffer) -> None:
        """Raise RefusedError, rule ``epoch``, for a record of a coordinator that was replaced."""
        if self._latest is not None:
            check_epoch(record, self._latest)

    def check(self, task: Task) -> None:
        """Raise RefusedError unless a task can be one of this run, for this device.

        The rule is ``federation``, one of ``check_task``, ``strategy``, ``blob-size`` or
        ``raw-bytes``.
        """
        self._who.check(task)
        check_task(task, self._announced)
        if task.payload is not None:
            check_offer(task.payload, self.strategy_of(task).payload)

    def strategy_of(self, task: Task) -> Strategy:
        """What a task names, built once.

        Raises:
            RefusedError: rule ``strategy``: this device cannot run it, or its state is another's.
        """
        if self._built is None or self._built[:2] != (task.strategy, task.settings):
            try:
                self._store.check_strategy(task.strategy)
                strategy = self._learner.strategy(task.strategy, task.settings)
            except (InputError, ProvisionError) as error:
                raise RefusedError("strategy", str(error)) from error
            self._built = task.strategy, task.settings, strategy
        return self._built[2]


def check_epoch(record: Announcement | BundleOffer | Task, announced: Announcement) -> None:
    """Raise RefusedError, rule ``epoch``, for a record of a coordinator that another has replaced.

    It may not know yet: it was cut off, and returns.
    """
    if record.epoch < announced.epoch:
        raise RefusedError(
            "epoch",
            f"expected a coordinator of epoch {announced.epoch} or later, got "
            f"{_short(record.epoch)}: another one has taken over from it",
        )


def check_announcement(announcement: Announcement) -> None:
    """Raise RefusedError, rule ``round``, unless an announcement's rounds can be."""
    rounds, round_id = announcement.rounds, announcement.round_id
    # Behind the last round there is a final fit; and an operator may have lowered their number.
    if not (1 <= rounds <= MOST_ROUNDS and 0 <= round_id <= MOST_ROUNDS + 1):
        raise RefusedError(
            "round",
            f"announcement: expected rounds up to {MOST_ROUNDS}, got round {_short(round_id)} of "
            f"{_short(rounds)}",
        )
    if announcement.phase == "finished" and round_id < rounds:
        raise RefusedError("finish", f"announcement: finished, but in round {round_id} of {rounds}")


def check_task(task: Task, announced: Announcement | None) -> None:
    """Raise RefusedError unless a task can be one of the run that was announced.

    Args:
        task: of the device's own federation.
        announced: the latest announcement that fits the device and has passed
            ``check_announcement``; None: it has heard none, and cannot judge.

    Raises:
        RefusedError: rule ``announcement`` (come again when there is one), ``epoch``, ``finish``,
            ``round``, ``seed``, ``offer`` or ``kind``.
    """
    if announced is None:
        raise _unannounced(task, "an announcement that fits it first")
    check_epoch(task, announced)
    if task.task == "finish":
        _check_finish(task, announced)
        return
    stands = announced.round_id
    if stands + 1 + announced.staleness < task.round_id <= announced.rounds + 1:
        heard = f"that its round is announced first; heard was round {stands}"
        raise _unannounced(task, heard)
    _check_train(task, announced)


def _unannounced(task: Task, expected: str) -> RefusedError:
    return RefusedError(
        "announcement",
        f"task of round {_short(task.round_id)}: expected {expected}; if none comes, look whether "
        "the broker lets this device read them (all/ctl)",
    )


def _check_finish(task: Task, announced: Announcement) -> None:
    rounds, stands = announced.rounds, announced.round_id
    # One announcement may have been lost.
    if not (rounds <= task.round_id <= MOST_ROUNDS + 1 and stands + 1 >= rounds):
        raise RefusedError(
            "finish",
            f"task to finish in round {_short(task.round_id)}: expected it behind round {rounds}, "
            f"the last; the federation is in round {stands}",
        )


def _check_train(task: Task, announced: Announcement) -> None:
    # One announcement may have been lost; where updates may be late, not every round has one.
    rounds, last = announced.rounds, announced.round_id + 1 + announced.staleness
    payload = task.payload
    rules = (
        ("round", 1 <= task.round_id <= last, f"round 1 to {last}", task.round_id),
        (
            "round",
            not task.final or task.round_id > rounds,
            f"a final fit behind round {rounds}, the last",
            task.round_id,
        ),
        ("seed", 0 <= task.seed <= MOST_SEED, f"a seed from 0 to {MOST_SEED}", task.seed),
        ("offer", payload is not None, "a payload", "none"),
        ("kind", payload is None or payload.kind == "payload", "a payload", "an update"),
        (
            "round",
            payload is None or payload.round_id == task.round_id,
            "its payload to be of its round",
            payload and payload.round_id,
        ),
    )
    for rule, holds, expected, got in rules:
        if not holds:
            raise RefusedError(
                rule,
                f"task of round {_short(task.round_id)}: expected {expected}, got {_short(got)}; "
                f"the federation is in round {announced.round_id} of {rounds}",
            )


def check_offer(offer: TransferOffer, forms: TensorSchemas) -> None:
    """Raise RefusedError, rule ``blob-size`` or ``raw-bytes``, for more than payloads can need."""
    most = largest_blob(forms)
    sizes = {"blob-size": offer.total_bytes, "raw-bytes": offer.raw_bytes}
    for rule, size in sizes.items():
        if size > most:
            raise RefusedError(
                rule,
                f"payload: expected at most {most} bytes for what the strategy sends, got "
                f"{_short(size)}",
            )


def _short(value: object) -> str:
    """A number of thousands of digits is not written out."""
    huge = isinstance(value, int) and abs(value) >= 2**64
    return "more than 64 bits" if huge else str(value)


def round_is_over(task: Task, last: int) -> RefusedError:
    """Why a device that has finished round ``last`` trains no such task."""
    return RefusedError(
        "offer",
        f"round {task.round_id} is over: this device has finished round {last} of federation "
        f"'{task.federation}'; a new run needs another name, or new stores on its devices",
    )
