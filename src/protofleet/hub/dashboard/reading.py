"""Reads a run folder while its coordinator writes into it: only what is new, and never a lock.

The ledger is opened to read; SQLite gives a reader the last commit and keeps no writer waiting.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from protofleet.coordinator.devices.sightings import SightingsReader
from protofleet.coordinator.ledger import queries
from protofleet.coordinator.ledger.control import OperatorOrder, is_served, read_order
from protofleet.coordinator.ledger.device_rows import DeviceRows
from protofleet.coordinator.ledger.reading import (
    RunAbout,
    reading_of,
    to_calibration,
    to_early_end,
)
from protofleet.coordinator.ledger.rollout_rows import Rollout, RolloutDevice, RolloutRows
from protofleet.coordinator.ledger.usage_rows import UsageRows
from protofleet.coordinator.status import operation_now
from protofleet.errors import InputError, RefusedError
from protofleet.federation.coding import to_evaluation
from protofleet.federation.outcomes.calibration import CalibrationProgress
from protofleet.federation.outcomes.outcome import Outcome, OwnerOutcome, followed, outcome_of
from protofleet.federation.records import (
    EvaluationRecord,
    RoundRecord,
    StatisticRows,
    UpdateRecord,
)
from protofleet.federation.schedules.early_stopping import EarlyEnd
from protofleet.federation.schedules.schedule_settings import ScheduleSettings
from protofleet.hub.dashboard.event_stream import EventStream
from protofleet.hub.dashboard.records import CurrentRound, DeviceView, RunSnapshot
from protofleet.strategies import DESCRIPTIONS
from protofleet.strategies.tasks import TASKS
from protofleet.tensors import TaskName
from protofleet.units import median
from protofleet.wire.mqtt.usage import NO_USAGE, DeviceUsage, merged

_record = msgspec.json.Decoder(UpdateRecord).decode
_DISK_EVERY_S = 10.0


class RunReader:
    """Makes snapshots of one run.

    Args:
        key: names it in addresses.
        folder: its run folder; it may be made later.
        name: of its federation, until its ledger tells.
        rounds: how many it is to have, until its events tell.
    """

    def __init__(self, key: str, folder: Path, name: str = "", rounds: int = 0) -> None:
        self._key, self._folder, self._name, self._rounds = key, folder, name, rounds
        self._sightings = SightingsReader(folder)
        self._stream = EventStream(folder)
        self._ledger = _LedgerReader(folder)
        self._found: RunSnapshot | None = None
        self._seen = ("", False)
        self._disk, self._disk_read_s = (0, 0), float("-inf")

    def read(self) -> RunSnapshot:
        """The run as it is now, the same object while nothing has changed.

        Of a folder that cannot be read the snapshot says why.
        """
        trouble, news = "", False
        try:
            news = self._ledger.read()
            news = self._stream.read() or news
            with suppress(sqlite3.Error):  # not whole yet, or being made anew
                news = self._sightings.read() or news
        except (OSError, sqlite3.Error, msgspec.DecodeError, InputError, UnicodeDecodeError) as bad:
            trouble = f"run folder '{self._folder}': {bad}"
        self._read_disk()
        now = (trouble, is_served(self._folder))
        if self._found is None or news or now != self._seen:
            self._seen = now
            self._found = self._snapshot(*now)
        return self._found

    def _read_disk(self) -> None:
        now = time.monotonic()
        if now < self._disk_read_s + _DISK_EVERY_S:
            return
        self._disk_read_s = now
        with suppress(OSError):
            found = shutil.disk_usage(self._folder)
            self._disk = (found.free, found.total)

    def _snapshot(self, trouble: str, served: bool) -> RunSnapshot:  # noqa: FBT001 - as seen
        ledger, stream = self._ledger, self._stream
        rounds = max(self._rounds, stream.rounds, ledger.order.rounds)
        end = ledger.early_end
        if end is not None:
            rounds = end.limit(rounds, end.stop)
        waiting = stream.waiting
        return RunSnapshot(
            key=self._key,
            name=ledger.identity.get("federation", self._name) or self._folder.name,
            folder=str(self._folder),
            read_s=time.time(),
            operation=operation_now(ledger.phase(rounds), ledger.order.wish, served=served),
            served=served,
            identity=dict(ledger.identity),
            task=ledger.task,
            rounds=rounds,
            committed=tuple(ledger.committed),
            current=self._current(),
            needed=None if waiting is None else waiting.needed,
            live=None if waiting is None else waiting.live,
            devices=self._merged(),
            outcome=ledger.outcome,
            device_troubles=ledger.device_troubles,
            early_end="" if end is None or end.lifted else end.text,
            calibration=ledger.calibration,
            events=tuple(stream.events),
            event_counts=dict(stream.counts),
            logs=dict(stream.logs),
            joining=ledger.joining,
            update_times={key: dict(value) for key, value in stream.update_times.items()},
            rollout=ledger.rollout,
            rollout_devices=ledger.rollout_devices,
            disk_free_bytes=self._disk[0],
            disk_bytes=self._disk[1],
            trouble=trouble,
        )

    def _current(self) -> CurrentRound | None:
        found = self._ledger.current
        if found is None:
            return None
        return replace(found, deadline_s=self._stream.deadlines.get(found.round_id))

    def _merged(self) -> dict[str, DeviceView]:
        """All devices, each from everything that tells of it."""
        ledger, seen, against = self._ledger, self._sightings.known, self._stream.against
        names = {*ledger.updates, *seen, *ledger.invited, *ledger.refused}
        return {name: self._device(name, against) for name in sorted(names)}

    def _device(self, name: str, against: dict[str, tuple[str, str]]) -> DeviceView:
        ledger = self._ledger
        known = ledger.updates.get(name) or DeviceView(device_id=name)
        usage = merged(known.usage, ledger.usage.get(name, NO_USAGE))
        rule, reason = ledger.refused.get(name) or against.get(name, ("", ""))
        changed: dict[str, Any] = {
            "usage": usage,
            "rule": rule,
            "reason": reason,
        }
        seen = self._sightings.known.get(name)
        if seen is not None:
            changed |= {
                "state": seen.state,
                "since_s": seen.since_s,
                "heard_s": seen.heard_s,
                "conditions": seen.conditions,
                "bundle": seen.bundle,
                "phase": seen.phase,
                "phase_since_s": seen.phase_since_s,
                "phase_round": seen.round_id,
                "usage": merged(usage, seen.usage),
            }
        elif name in ledger.refused:
            changed["state"] = "refused"
        return replace(known, **changed)


class _LedgerReader:
    """What the ledger says, read on with every commit.

    Attributes:
        updates: device → what its updates say of it.
        invited: devices that were ever invited.
        usage: device → what it had used when it told last.
        outcome: of all owners together.
        joining: bytes up and down that devices paid before their first round.
        refused: device → rule and reason.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._ledger = queries.FollowedLedger(run_dir, self._forget)
        self._forget()

    def _forget(self) -> None:
        self.identity: dict[str, str] = {}
        self.committed: list[RoundRecord] = []
        self.current: CurrentRound | None = None
        self.order = OperatorOrder()
        self.early_end: EarlyEnd | None = None
        self.calibration: CalibrationProgress | None = None
        self.updates: dict[str, DeviceView] = {}
        self.invited: set[str] = set()
        self.usage: dict[str, DeviceUsage] = {}
        self.outcome: Outcome | None = None
        self._reported: dict[str, OwnerOutcome | None] = {}
        self.refused: dict[str, tuple[str, str]] = {}
        self.device_troubles: dict[str, tuple[str, ...]] = {}
        self.rollout: Rollout | None = None
        self.rollout_devices: tuple[RolloutDevice, ...] = ()
        self.task: TaskName = "classification"
        self.joining = (0, 0)
        self._admitted = self._invited_row = 0

    def phase(self, rounds: int) -> str:
        """``waiting``, ``open``, ``closing`` or ``finished``."""
        if self.current is None:
            return "waiting"
        if self.current.phase != "committed":
            return self.current.phase
        fits = DESCRIPTIONS.get(self.identity.get("strategy", ""))
        enough = rounds and self.current.round_id >= rounds and not (fits and fits.final_fit)
        return "finished" if self.current.final or enough else "waiting"

    def read(self) -> bool:
        """Read on; whether there was news.

        Raises:
            InputError: another version has written it.
            sqlite3.Error: it cannot be read.
        """
        with self._ledger.news() as db:
            if db is None:
                return False
            self._read_all(db)
        return True

    def _read_all(self, db: sqlite3.Connection) -> None:
        self.identity = queries.checked_identity(db, self._run_dir)
        if "about" in self.identity:
            self.task = msgspec.json.decode(self.identity["about"], type=RunAbout).task
        self.order = read_order(db)
        self.early_end = to_early_end(self.identity.get("early_end"))
        self.calibration = to_calibration(self.identity.get("calibration"))
        before = len(self.committed)
        self._read_committed(db)
        self._read_updates(db)
        self._read_current(db)
        if before != len(self.committed) or not self.usage:
            self._read_usage(db)
        self.refused = queries.refused(db)
        self.device_troubles = DeviceRows(db).troubles()
        rows = RolloutRows(db)
        self.rollout = rows.latest()
        self.rollout_devices = () if self.rollout is None else tuple(rows.devices(self.rollout.id))

    def _read_committed(self, db: sqlite3.Connection) -> None:
        last = self.committed[-1].round_id if self.committed else 0
        reading = reading_of(db, self._run_dir)
        self.committed += reading.committed_since(last)
        if self.committed:
            self.task = self.committed[-1].scores.task
        self._read_reported(reading.reported_since(last))

    def _read_reported(self, records: Iterable[tuple[str, UpdateRecord]]) -> None:
        """Of a root: its members are cells, and owners are those of the devices in them."""
        latest: dict[str, UpdateRecord] = {}
        starts: dict[str, StatisticRows] = {}
        for name, record in records:
            latest[name] = record
            if record.evaluation.start is not None:
                starts[name] = record.evaluation.start
        for name, record in latest.items():
            told = replace(record.evaluation, start=starts.get(name))
            self._reported[name] = self._owner(self._reported.get(name), name, told)
        if latest:
            self._sum_up(self._reported.values())

    def _read_updates(self, db: sqlite3.Connection) -> None:
        latest: dict[str, tuple[int, str]] = {}
        starts: dict[str, str] = {}
        counts: Counter[str] = Counter()
        for admitted, device_id, round_id, text, start in queries.updates_since(db, self._admitted):
            self._admitted = admitted
            counts[device_id] += 1
            latest[device_id] = (round_id, text)
            if start is not None:
                starts[device_id] = start
        for device_id, (round_id, text) in latest.items():
            record = _record(text)
            memory = replace(NO_USAGE, peak_rss_bytes=record.costs.peak_rss_bytes)
            known = self.updates.get(device_id) or DeviceView(device_id=device_id)
            self.updates[device_id] = replace(
                known,
                last_round=round_id,
                rounds=known.rounds + counts[device_id],
                num_examples=record.num_examples,
                loss=record.loss,
                score=own_score(self.task, record.evaluation),
                owner=self._owner(
                    known.owner,
                    device_id,
                    replace(record.evaluation, start=_start(starts.get(device_id))),
                ),
                train_step_ms=median(record.costs.train_step_ms),
                infer_ms=median(record.costs.infer_ms),
                phases_s=dict(record.costs.phases_s),
                backend=record.costs.backend_name,
                usage=merged(known.usage, memory),
            )
        if latest:
            self._sum_up(one.owner for one in self.updates.values())

    def _sum_up(self, owners: Iterable[OwnerOutcome | None]) -> None:
        found = outcome_of(self.task, owners)
        self.outcome = self.outcome if found is None else found.summary

    def _owner(
        self, known: OwnerOutcome | None, name: str, told: EvaluationRecord
    ) -> OwnerOutcome | None:
        try:
            return followed(known, name, self.task, to_evaluation(told))
        except (IndexError, KeyError, ValueError, RefusedError):
            return known  # as in own_score

    def _read_current(self, db: sqlite3.Connection) -> None:
        latest = queries.latest_round(db)
        if latest is None:
            self.current = None
            return
        self.current = CurrentRound(
            round_id=latest.round_id,
            phase=latest.phase,
            final=latest.final,
            size=latest.size,
            attempt=latest.attempt,
            opened_s=latest.opened_s,
            cohort=tuple(queries.members(db, latest.round_id)),
            delivered=frozenset(queries.counted(db, latest.round_id)),
            late=() if latest.final else self._late(db, latest.awaited),
        )
        for row, device_id in queries.invited_since(db, self._invited_row):
            self._invited_row = max(row, self._invited_row)
            self.invited.add(device_id)

    def _late(self, db: sqlite3.Connection, awaited: int) -> tuple[str, ...]:
        """Devices whose task is of an earlier round than the awaited one, and not too old."""
        told = self.identity.get("schedule", "{}")
        patience = msgspec.json.decode(told, type=ScheduleSettings).patience
        if not patience:
            return ()
        tasks = DeviceRows(db).late(awaited)
        return tuple(sorted(one for one, task in tasks.items() if awaited - task <= patience))

    def _read_usage(self, db: sqlite3.Connection) -> None:
        rows = UsageRows(db)
        self.usage = {device_id: usage for device_id, _, usage in rows.latest()}
        paid = rows.by_round()
        self.joining = paid.get(0, (0, 0))
        self.committed = [
            replace(one, bytes_up=up, bytes_down=down)
            for one in self.committed
            for up, down in [paid.get(one.round_id, (0, 0))]
        ]


def _start(text: str | None) -> StatisticRows | None:
    return None if text is None else msgspec.json.decode(text, type=StatisticRows)


def own_score(task: TaskName, evaluation: EvaluationRecord) -> float | None:
    """The task's headline score of a device's model on its own test part; None: not defined."""
    rows = evaluation.own
    if rows is None or not rows:
        return None
    learning = TASKS[task]
    try:
        value = learning.score(np.asarray(rows, np.float64))[learning.headline]
    except (IndexError, KeyError, ValueError):
        return None  # of another task, before the first committed round tells which it is
    return None if np.isnan(value) else float(value)
