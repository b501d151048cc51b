"""What single pages read of a run folder when they are asked for: too much to hold in snapshots."""

from __future__ import annotations

from pathlib import Path

import msgspec

from protofleet.coordinator.ledger.queries import opened_ledger, phases, round_times, tasks_of
from protofleet.coordinator.ledger.reading import reading_of
from protofleet.federation.records import RoundBytes, StatisticRows
from protofleet.hub.dashboard.reading import own_score
from protofleet.tensors import TaskName, kind_of
from protofleet.units import median

_HISTORY = 500


class DeviceRound(msgspec.Struct, frozen=True, kw_only=True):
    """One invitation of a device and what came of it.

    Attributes:
        delivered: whether its update was taken; the fields after it are the update's.
        counted_in: the round in which it counts.
        bytes_up, bytes_down: at the device, in this round.
    """

    round_id: int
    delivered: bool
    counted_in: int = 0
    num_examples: int = 0
    loss: float | None = None
    own_loss: float | None = None
    score: float | None = None
    train_step_ms: float | None = None
    phases_s: dict[str, float] = {}
    bytes_up: int = 0
    bytes_down: int = 0


class DeviceHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A device's rounds in order, at most the last 500, and what its last model was scored by.

    Attributes:
        confusion: counts of its last update, rows true and columns predicted; None: not told.
        outputs: names of the classes, targets or labels; empty: not told.
    """

    rounds: tuple[DeviceRound, ...] = ()
    confusion: StatisticRows | None = None
    outputs: tuple[str, ...] = ()


class RoundTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When a round was opened, and wall seconds by phase of each update of its tasks.

    Attributes:
        seconds: from its opening to its commit; None: it is not committed.
        phases_s: device → phases; empty: its update is not in.
    """

    round_id: int
    opened_s: float
    seconds: float | None
    phases_s: dict[str, dict[str, float]]


def read_device(folder: Path, device_id: str, task: TaskName) -> DeviceHistory:
    """A device's history from the ledger.

    Raises:
        InputError: the ledger cannot be read.
    """
    with opened_ledger(folder) as db:
        tasks = tasks_of(db, device_id, _HISTORY)
        ledger = reading_of(db, folder)
        paid = {one.round_id: one for one in ledger.usage.of_device(device_id)}
        about = ledger.about()
    found, confusion = [], None
    for round_id, record, counted_in in reversed(tasks):
        traffic = paid.get(round_id) or RoundBytes(round_id=round_id, bytes_up=0, bytes_down=0)
        up, down = traffic.bytes_up, traffic.bytes_down
        if record is None:
            one = DeviceRound(round_id=round_id, delivered=False, bytes_up=up, bytes_down=down)
            found.append(one)
            continue
        confusion = record.evaluation.own if kind_of(task) == "classes" else None
        found.append(
            DeviceRound(
                round_id=round_id,
                delivered=True,
                counted_in=counted_in or 0,
                num_examples=record.num_examples,
                loss=record.loss,
                own_loss=record.evaluation.own_loss,
                score=own_score(task, record.evaluation),
                train_step_ms=median(record.costs.train_step_ms),
                phases_s=dict(record.costs.phases_s),
                bytes_up=up,
                bytes_down=down,
            )
        )
    return DeviceHistory(
        rounds=tuple(found), confusion=confusion, outputs=() if about is None else about.outputs
    )


def read_round(folder: Path, round_id: int) -> RoundTimes | None:
    """When the members of a round did what; None: there is no such round.

    Raises:
        InputError: the ledger cannot be read.
    """
    with opened_ledger(folder) as db:
        times, told = round_times(db, round_id), phases(db, round_id)
    if times is None:
        return None
    opened_s, seconds = times
    return RoundTimes(round_id=round_id, opened_s=opened_s, seconds=seconds, phases_s=told)
