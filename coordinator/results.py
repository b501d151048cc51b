"""What a run leaves to read: ``result.json`` and ``devices.json``, rewritten after every round."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from protofleet.coordinator.ledger import Ledger
from protofleet.coordinator.ledger_rows import Accepted, Totals, Traffic
from protofleet.federation.records import (
    DeviceDetails,
    DeviceRecord,
    EvaluationRecord,
    FleetDetails,
    RoundBytes,
    RunRecord,
    UpdateRecord,
    percentiles,
    save_by_device,
)
from protofleet.federation.scores import last_scores, run_scores
from protofleet.federation.settings import CodecSettings
from protofleet.tensors import TaskName

_Told = TypeVar("_Told")
_Made = TypeVar("_Made", DeviceRecord, DeviceDetails)

_SAMPLES = 2000
"""Latencies kept per device: percentiles are those of its last so many ..."""
_SAMPLES_IN_ALL = 400_000
"""... or of fewer in a large fleet, of which each has an equal share."""


_NO_SAMPLES: array[float] = array("d")
_NOTHING: Mapping[str, float] = {}
_NOT_EVALUATED = EvaluationRecord()


class _Device(msgspec.Struct, gc=False):
    """What is kept of a device; what it has not told takes no memory of its own."""

    train_step_ms: array[float] = _NO_SAMPLES
    infer_ms: array[float] = _NO_SAMPLES
    peak_rss_bytes: int = 0
    num_examples: int = 0
    rounds: int = 0
    evaluation: EvaluationRecord = _NOT_EVALUATED
    phases_s: Mapping[str, float] = _NOTHING
    cpu_s: Mapping[str, float] = _NOTHING
    backend: str = ""

    def add(self, record: UpdateRecord, most_samples: int) -> None:
        costs = record.costs
        self.train_step_ms = _latest(self.train_step_ms, costs.train_step_ms, most_samples)
        self.infer_ms = _latest(self.infer_ms, costs.infer_ms, most_samples)
        self.peak_rss_bytes = max(self.peak_rss_bytes, costs.peak_rss_bytes)
        self.num_examples = record.num_examples
        self.rounds += 1
        evaluated = record.evaluation != _NOT_EVALUATED
        self.evaluation = record.evaluation if evaluated else _NOT_EVALUATED
        self.phases_s, self.cpu_s = costs.phases_s or _NOTHING, costs.cpu_s or _NOTHING
        self.backend = costs.backend_name


def _latest(samples: array[float], more: Sequence[float], most: int) -> array[float]:
    """The last so many; of a large fleet most devices have few, and a deque takes a page."""
    return (samples + array("d", more))[-most:] if more or len(samples) > most else samples


class Results:
    """Accumulates what the ledger holds and writes it.

    Args:
        ledger: the run's ledger; its committed rounds are read once, here.
        strategy, seed: of the run.
        codec: how its tensors travel, for people.
        switched_off: what devices are told not to send, for people.
        task: of the bundle.
        outputs: names of classes, targets or labels, for the devices' statistics.
    """

    def __init__(  # noqa: PLR0913 - what the run is, each named at the call
        self,
        ledger: Ledger,
        *,
        strategy: str,
        seed: int,
        task: TaskName,
        outputs: tuple[str, ...],
        codec: str = CodecSettings().text,
        switched_off: str = "",
    ) -> None:
        self._ledger = ledger
        self._strategy, self._seed, self._codec = strategy, seed, codec
        self._task, self._outputs, self._switched_off = task, outputs, switched_off
        self._devices: dict[str, _Device] = {}
        for done in ledger.committed():
            for one in ledger.accepted(done.round_id):
                self.add(one)

    def add(self, accepted: Accepted) -> None:
        """Take one of a round's accepted updates, by device."""
        device = self._devices.get(accepted.device_id)
        if device is None:
            device = self._devices[accepted.device_id] = _Device()
        most = max(1, min(_SAMPLES, _SAMPLES_IN_ALL // len(self._devices)))
        device.add(accepted.record, most)

    def write(self) -> RunRecord:
        """Rewrite both files; returns the content of ``result.json`` but for its devices."""
        traffic: dict[int, tuple[int, int]] = {}
        told = _summed(self._ledger.traffic.by_device(), traffic)
        save_by_device(
            FleetDetails(task=self._task, outputs=self._outputs, devices=()),
            self._of_devices(told, _details),
            self._ledger.folder / "devices.json",
        )
        record = self._record(traffic)
        save_by_device(record, self._of_devices(self._ledger.traffic.latest(), _device), self.path)
        return record

    def _record(self, traffic: Traffic) -> RunRecord:
        rounds = self._ledger.committed(traffic)
        scored = [done.scores for done in rounds if not done.final]
        final = next((done.scores for done in rounds if done.final), None)
        return RunRecord(
            strategy=self._strategy,
            seed=self._seed,
            codec=self._codec,
            rounds=rounds,
            start=self._ledger.run.start(),
            scores=run_scores(scored, final),
            last=last_scores(scored, final),
            devices=(),
            switched_off=self._switched_off,
            cells=self._ledger.cells(),
        )

    @property
    def path(self) -> Path:
        """Where ``result.json`` lies."""
        return self._ledger.folder / "result.json"

    def _of_devices(
        self, told: Iterator[tuple[str, _Told]], make: Callable[[str, _Device, _Told | None], _Made]
    ) -> Iterator[_Made]:
        """What is written of each device, by id; ``told``: by device, also of others."""
        latest = next(told, None)
        for name in sorted(self._devices):
            while latest is not None and latest[0] < name:
                latest = next(told, None)
            known = latest is not None and latest[0] == name
            yield make(name, self._devices[name], latest[1] if latest and known else None)
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


def _device(name: str, device: _Device, totals: Totals | None) -> DeviceRecord:
    return DeviceRecord(
        id=name,
        bytes_up=totals.bytes_up if totals else 0,
        bytes_down=totals.bytes_down if totals else 0,
        train_step_ms=percentiles(device.train_step_ms, 50, 95),
        infer_ms=percentiles(device.infer_ms, 50, 95, 99),
        peak_rss_bytes=max(device.peak_rss_bytes, totals.peak_rss_bytes if totals else 0),
    )


def _details(name: str, device: _Device, traffic: tuple[RoundBytes, ...] | None) -> DeviceDetails:
    return DeviceDetails(
        id=name,
        num_examples=device.num_examples,
        rounds=device.rounds,
        bytes_by_round=traffic or (),
        evaluation=device.evaluation,
        train_step_ms=tuple(device.train_step_ms),
        infer_ms=tuple(device.infer_ms),
        phases_s=dict(device.phases_s),
        cpu_s=dict(device.cpu_s),
        peak_rss_bytes=device.peak_rss_bytes,
        backend=device.backend,
    )
