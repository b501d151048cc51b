"""What a run leaves to read: ``result.json`` and ``devices.json``, rewritten after every round."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from protofleet.coordinator.ledger import Ledger
from protofleet.coordinator.ledger_rows import Accepted, Totals, Traffic, traffic_by_round
from protofleet.federation.records import (
    Costs,
    DeviceDetails,
    DeviceRecord,
    EvaluationRecord,
    FleetDetails,
    RoundBytes,
    RunRecord,
    percentiles,
    save_by_device,
)
from protofleet.federation.scores import last_scores, run_scores
from protofleet.federation.settings import CodecSettings
from protofleet.tensors import TaskName

_SAMPLES = 2000
"""Latencies kept per device: percentiles are those of its last so many ..."""
_SAMPLES_IN_ALL = 400_000
"""... or of fewer in a large fleet, of which each has an equal share."""


@dataclass(slots=True)
class _Device:
    train_step_ms: array[float] = field(default_factory=lambda: array("d"))
    infer_ms: array[float] = field(default_factory=lambda: array("d"))
    peak_rss_bytes: int = 0
    num_examples: int = 0
    rounds: int = 0
    evaluation: EvaluationRecord = field(default_factory=EvaluationRecord)
    last: Costs = field(default_factory=Costs)

    def add(self, accepted: Accepted, most_samples: int) -> None:
        record = accepted.record
        _keep(self.train_step_ms, record.costs.train_step_ms, most_samples)
        _keep(self.infer_ms, record.costs.infer_ms, most_samples)
        self.peak_rss_bytes = max(self.peak_rss_bytes, record.costs.peak_rss_bytes)
        self.num_examples = record.num_examples
        self.rounds += 1
        self.evaluation = record.evaluation
        self.last = msgspec.structs.replace(record.costs, train_step_ms=(), infer_ms=())


def _keep(samples: array[float], more: Iterable[float], most: int) -> None:
    """The last so many; of a large fleet most devices have few, and a deque takes a page."""
    samples.extend(more)
    del samples[:-most]


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
            self.add(ledger.accepted(done.round_id))

    def add(self, accepted: Iterable[Accepted]) -> None:
        """Take a committed round's accepted updates."""
        for one in accepted:
            device = self._devices.setdefault(one.device_id, _Device())
            device.add(one, max(1, min(_SAMPLES, _SAMPLES_IN_ALL // len(self._devices))))

    def write(self) -> RunRecord:
        """Rewrite both files; returns the content of ``result.json`` but for its devices."""
        totals = self._ledger.totals()
        traffic = traffic_by_round(totals)
        record = self._record(traffic)
        save_by_device(
            record, (self._device(name, totals.get(name, {})) for name in self._names), self.path
        )
        del totals  # as large as what follows
        save_by_device(
            FleetDetails(task=self._task, outputs=self._outputs, devices=()),
            (
                self._details(name, (one[name] for one in traffic.values() if name in one))
                for name in self._names
            ),
            self._ledger.folder / "devices.json",
        )
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

    @property
    def _names(self) -> list[str]:
        return sorted(self._devices)

    def _device(self, name: str, totals: Mapping[int, Totals]) -> DeviceRecord:
        device = self._devices[name]
        last = list(totals.values())
        return DeviceRecord(
            id=name,
            bytes_up=last[-1].bytes_up if last else 0,
            bytes_down=last[-1].bytes_down if last else 0,
            train_step_ms=percentiles(device.train_step_ms, 50, 95),
            infer_ms=percentiles(device.infer_ms, 50, 95, 99),
            peak_rss_bytes=max([device.peak_rss_bytes, *(t.peak_rss_bytes for t in last)]),
        )

    def _details(self, name: str, traffic: Iterable[RoundBytes]) -> DeviceDetails:
        device = self._devices[name]
        return DeviceDetails(
            id=name,
            num_examples=device.num_examples,
            rounds=device.rounds,
            bytes_by_round=tuple(traffic),
            evaluation=device.evaluation,
            train_step_ms=tuple(device.train_step_ms),
            infer_ms=tuple(device.infer_ms),
            phases_s=device.last.phases_s,
            cpu_s=device.last.cpu_s,
            peak_rss_bytes=device.peak_rss_bytes,
            backend=device.last.backend_name,
        )
