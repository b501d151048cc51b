"""What a run leaves to read: ``result.json`` and ``devices.json``, made from its ledger.

The coordinator writes them when a run pauses, stops or ends, and whoever reads a run that goes on
has them made then (``refresh``): a round costs no more for the rounds that were before it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from msgspec.structs import asdict, replace

from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.queries import checked_identity, opened_ledger
from protofleet.coordinator.ledger.reading import LedgerReading, RunAbout, one_state, reading_of
from protofleet.coordinator.ledger.rows import Traffic
from protofleet.durable import lock
from protofleet.errors import UnavailableError
from protofleet.federation.coding import to_evaluation
from protofleet.federation.outcomes.alone import ALONE
from protofleet.federation.outcomes.outcome import Outcome, OwnerOutcome, outcome_of, owner_outcome
from protofleet.federation.outcomes.scores import last_scores, run_scores
from protofleet.federation.outcomes.trouble import Trouble, troubles
from protofleet.federation.records import (
    DeviceDetails,
    DeviceRecord,
    FleetDetails,
    RoundBytes,
    RunRecord,
    UpdateRecord,
    percentiles,
    save_by_device,
)
from protofleet.wire.mqtt.usage import NO_USAGE, DeviceUsage, merged

_log = logging.getLogger(__name__)

_SAMPLES = 2000
"""Latencies of a device: percentiles are those of its last so many ..."""
_SAMPLES_IN_ALL = 400_000
"""... or of fewer in a large fleet, of which each has an equal share."""
_PATIENCE_S = 30.0
RESULT, DEVICES = "result.json", "devices.json"


class Results:
    """Writes what the ledger holds.

    Args:
        ledger: of the run.
        about: the run as a whole.
    """

    def __init__(self, ledger: LedgerReading, about: RunAbout) -> None:
        self._ledger, self._about = ledger, about

    @property
    def path(self) -> Path:
        """Where ``result.json`` lies."""
        return self._ledger.folder / RESULT

    def write(self) -> RunRecord:
        """Write both files; returns the content of ``result.json`` but for its devices."""
        folder, about = self._ledger.folder, self._about
        taken = f"run folder {folder}: another process writes its results"
        with lock(folder / "results.lock", taken=taken, patience_s=_PATIENCE_S):
            sums: dict[int, tuple[int, int]] = {}
            summaries: list[DeviceRecord] = []
            owners: list[OwnerOutcome | None] = []
            save_by_device(
                FleetDetails(task=about.task, outputs=about.outputs, devices=()),
                self._devices(sums, summaries, owners),
                folder / DEVICES,
            )
            record = self._record(sums, outcome_of(about.task, owners))
            save_by_device(record, summaries, self.path)
        return record

    def outcome(self) -> Outcome | None:
        """What the run has done for the devices' owners so far; None: nobody has told."""
        owners = (self._owner(self._details(one, None, 1)) for one in self._ledger.device_ids())
        return outcome_of(self._about.task, owners)

    def _devices(
        self,
        sums: dict[int, tuple[int, int]],
        summaries: list[DeviceRecord],
        owners: list[OwnerOutcome | None],
    ) -> Iterator[DeviceDetails]:
        """Details of each device, by id; beside them grows what is told of all of them."""
        names = self._ledger.device_ids()
        most = max(1, min(_SAMPLES, _SAMPLES_IN_ALL // max(1, len(names))))
        paid = _summed(self._ledger.usage.by_device(), sums)
        latest = ((one, usage) for one, _, usage in self._ledger.usage.latest())
        for name, of_rounds, usage in _beside(names, paid, latest):
            details = self._details(name, of_rounds, most)
            owners.append(self._owner(details))
            summaries.append(_summary(details, usage))
            yield details

    def _details(
        self, name: str, of_rounds: tuple[RoundBytes, ...] | None, most: int
    ) -> DeviceDetails:
        rounds, peak = self._ledger.device_totals(name)
        records = self._ledger.device_records(name)
        last = next(records)
        train, infer = _latest_samples(chain([last], records), most)
        return DeviceDetails(
            id=name,
            num_examples=last.num_examples,
            rounds=rounds,
            bytes_by_round=of_rounds or (),
            evaluation=last.evaluation,
            train_step_ms=train,
            infer_ms=infer,
            phases_s=dict(last.costs.phases_s),
            cpu_s=dict(last.costs.cpu_s),
            peak_rss_bytes=peak,
            backend=last.costs.backend_name,
        )

    def _owner(self, device: DeviceDetails) -> OwnerOutcome | None:
        start = self._ledger.device_start(device.id)
        told = to_evaluation(replace(device.evaluation, start=start))
        return owner_outcome(
            device.id, self._about.task, told.start, told.kept, told.more.get(ALONE)
        )

    def _record(self, traffic: Traffic, outcome: Outcome | None) -> RunRecord:
        rounds, end = self._ledger.committed(traffic), self._ledger.early_end()
        calibration = self._ledger.calibration()
        scored = [done.scores for done in rounds if not done.final]
        final = next((done.scores for done in rounds if done.final), None)
        return RunRecord(
            strategy=self._about.strategy,
            seed=self._about.seed,
            codec=self._about.codec,
            rounds=rounds,
            start=self._ledger.start(),
            scores=run_scores(scored, final),
            last=last_scores(scored, final),
            devices=(),
            switched_off=self._about.switched_off,
            outcome=outcome,
            early_end=None if end is None or end.lifted else end,
            calibration=None if calibration is None else calibration.chosen,
            device_troubles=self._ledger.device_troubles(),
            cells=self._ledger.cells(),
        )


def refresh(run_dir: Path) -> None:
    """Make the results of a run as its ledger has it now: it may go on, or have been killed.

    A folder without a ledger, such as a demonstration's, is left as it is, and so is one in which
    no round is committed, or that an earlier version has left.

    Raises:
        InputError: the ledger is damaged, or of another version.
    """
    if not (run_dir / LEDGER).is_file():
        return
    with opened_ledger(run_dir) as db, one_state(db):
        checked_identity(db, run_dir)
        ledger = reading_of(db, run_dir)
        about = ledger.about()
        if about is None or not ledger.device_ids():
            return
        try:
            Results(ledger, about).write()
        except (OSError, UnavailableError) as error:
            _log.warning("%s: not written, shown as it was: %s", run_dir / RESULT, error)


def troubles_of(run_dir: Path) -> tuple[Trouble, ...] | None:
    """What is wrong with the results of a run as its ledger has it now; None: it has none.

    Nothing is written.

    Raises:
        InputError: the ledger is damaged, or of another version.
    """
    with opened_ledger(run_dir) as db, one_state(db):
        checked_identity(db, run_dir)
        ledger = reading_of(db, run_dir)
        about, rounds = ledger.about(), ledger.committed()
        devices = ledger.device_troubles()
        if about is None or not (rounds or devices):
            return None
        return troubles(rounds, Results(ledger, about).outcome(), devices)


def _beside(
    names: list[str],
    paid: Iterator[tuple[str, tuple[RoundBytes, ...]]],
    latest: Iterator[tuple[str, DeviceUsage]],
) -> Iterator[tuple[str, tuple[RoundBytes, ...] | None, DeviceUsage | None]]:
    """Each name with what it told; all are by name, and of other devices is told, too."""
    told = zip(paid, latest, strict=True)
    current = next(told, None)
    for name in names:
        while current is not None and current[0][0] < name:
            current = next(told, None)
        if current is not None and current[0][0] == name:
            yield name, current[0][1], current[1][1]
        else:
            yield name, None, None
    for _ in told:
        pass  # of devices of which no update counted


def _summed(
    told: Iterator[tuple[str, tuple[RoundBytes, ...]]], sums: dict[int, tuple[int, int]]
) -> Iterator[tuple[str, tuple[RoundBytes, ...]]]:
    """The same, while ``sums`` becomes what all devices together paid in each round."""
    for name, traffic in told:
        for one in traffic:
            up, down = sums.get(one.round_id, (0, 0))
            sums[one.round_id] = (up + one.bytes_up, down + one.bytes_down)
        yield name, traffic


def _latest_samples(
    records: Iterable[UpdateRecord], most: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The last ``most`` latencies of a training step and of an inference, in their order.

    Args:
        records: of one device, the last one first; read no further than needed.
        most: of each.
    """
    train: list[tuple[float, ...]] = []
    infer: list[tuple[float, ...]] = []
    counts = [0, 0]
    for record in records:
        costs = record.costs
        for kept, samples, place in ((train, costs.train_step_ms, 0), (infer, costs.infer_ms, 1)):
            kept.append(samples)
            counts[place] += len(samples)
        if min(counts) >= most:
            break
    return _tail(train, most), _tail(infer, most)


def _tail(newest_first: list[tuple[float, ...]], most: int) -> tuple[float, ...]:
    return tuple(chain.from_iterable(reversed(newest_first)))[-most:]


def _summary(device: DeviceDetails, usage: DeviceUsage | None) -> DeviceRecord:
    of_updates = replace(NO_USAGE, peak_rss_bytes=device.peak_rss_bytes)
    return DeviceRecord(
        id=device.id,
        train_step_ms=percentiles(device.train_step_ms, 50, 95),
        infer_ms=percentiles(device.infer_ms, 50, 95, 99),
        **asdict(merged(usage or NO_USAGE, of_updates)),
    )
