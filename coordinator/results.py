"""What a run leaves to read: ``result.json`` and ``devices.json``, rewritten after every round."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.coordinator.ledger import Accepted, Ledger, Totals
from protofleet.durable import replace_whole
from protofleet.federation.coding import Costs, EvaluationRecord, percentiles
from protofleet.federation.settings import CodecSettings
from protofleet.strategies import scores
from protofleet.strategies.types import Evaluation

_SAMPLES = 2000
"""Latencies kept per device: percentiles are those of its last so many."""

Scores = dict[str, Any]
"""``scores.Summary``, and ``global`` in the form of ``personalisation``."""

_OF_CLIENTS = ("personalisation", "generalisation", "own_loss", "more")


def round_scores(evaluations: Iterable[Evaluation], server: NDArray[np.int64] | None) -> Scores:
    """Scores of one round, without the keys that nothing was measured for.

    Args:
        evaluations: of the participants' own models.
        server: confusion counts of the server's model on the pooled test part.
    """
    found: Scores = dict(scores.summarise(evaluations))
    if server is not None:
        found["global"] = {
            "macro_f1": {"mean": scores.macro_f1(server), "std": 0.0},
            "accuracy": {"mean": scores.accuracy(server), "std": 0.0},
        }
    return found


def run_scores(rounds: Iterable[Scores], final: Scores | None = None) -> Scores:
    """Scores of a run: those of its best round, by mean accuracy, ties to the earlier one.

    The clients' scores all come from the round that is best on their own test parts, or from the
    final fit where there was one; the server's model has its own best round.
    """
    rounds = list(rounds)
    best = _best(rounds, "personalisation") if final is None else final
    found: Scores = {name: best[name] for name in _OF_CLIENTS if name in best}
    if "global" in (own := _best(rounds, "global")):
        found["global"] = own["global"]
    return found


@dataclass(slots=True)
class _Device:
    train_step_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    infer_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    peak_rss_bytes: int = 0
    num_examples: int = 0
    rounds: int = 0
    evaluation: EvaluationRecord = field(default_factory=EvaluationRecord)
    last: Costs = field(default_factory=Costs)

    def take(self, accepted: Accepted) -> None:
        record = accepted.record
        self.train_step_ms.extend(record.costs.train_step_ms)
        self.infer_ms.extend(record.costs.infer_ms)
        self.peak_rss_bytes = max(self.peak_rss_bytes, record.costs.peak_rss_bytes)
        self.num_examples = record.num_examples
        self.rounds += 1
        self.evaluation = record.evaluation
        self.last = record.costs


class Results:
    """Accumulates what the ledger holds and writes it.

    Args:
        ledger: the run's ledger; its committed rounds are read once, here.
        strategy, seed: of the run.
        codec: how its tensors travel, for people.
        classes: class names, for the confusion matrices.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        strategy: str,
        seed: int,
        classes: tuple[str, ...],
        codec: str = CodecSettings().text,
    ) -> None:
        self._ledger = ledger
        self._head = {"strategy": strategy, "seed": seed, "codec": codec}
        self._classes = classes
        self._devices: dict[str, _Device] = {}
        self._participants: dict[int, int] = {}
        for done in ledger.committed():
            self.add(done.round_id, ledger.accepted(done.round_id))

    def add(self, round_id: int, accepted: list[Accepted]) -> None:
        """Take a committed round's accepted updates."""
        self._participants[round_id] = len(accepted)
        for one in accepted:
            self._devices.setdefault(one.client_id, _Device()).take(one)

    def document(self) -> dict[str, Any]:
        """The content of ``result.json``."""
        paid = self._ledger.paid()
        traffic = _by_round(paid)
        committed = self._ledger.committed()
        rounds = [
            {
                "round_id": done.round_id,
                "final": done.final,
                "seconds": round(done.seconds, 4),
                "participants": self._participants[done.round_id],
                **_sum(traffic.get(done.round_id, {}).values()),
                "scores": done.scores,
            }
            for done in committed
        ]
        devices = [self._summary(name, paid.get(name, {})) for name in sorted(self._devices)]
        return {
            **self._head,
            "rounds": rounds,
            "scores": run_scores(
                (done.scores for done in committed if not done.final),
                next((done.scores for done in committed if done.final), None),
            ),
            "devices": devices,
        }

    def write(self) -> dict[str, Any]:
        """Rewrite both files; returns the content of ``result.json``."""
        document = self.document()
        self._write("result.json", document)
        traffic = _by_round(self._ledger.paid())
        details = [self._details(name, traffic) for name in sorted(self._devices)]
        self._write("devices.json", {"classes": self._classes, "devices": details})
        return document

    @property
    def path(self) -> Path:
        """Where ``result.json`` lies."""
        return self._ledger.folder / "result.json"

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        data = msgspec.json.format(msgspec.json.encode(document), indent=1)
        replace_whole(self._ledger.folder / name, data)

    def _summary(self, name: str, totals: Mapping[int, Totals]) -> dict[str, Any]:
        device = self._devices[name]
        last = list(totals.values())
        return {
            "id": name,
            "bytes_up": last[-1].bytes_up if last else 0,
            "bytes_down": last[-1].bytes_down if last else 0,
            "train_step_ms": percentiles(device.train_step_ms, 50, 95),
            "infer_ms": percentiles(device.infer_ms, 50, 95, 99),
            "peak_rss_bytes": max([device.peak_rss_bytes, *(t.peak_rss_bytes for t in last)]),
        }

    def _details(self, name: str, traffic: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        device = self._devices[name]
        return {
            "id": name,
            "num_examples": device.num_examples,
            "rounds": device.rounds,
            "bytes_by_round": [
                {"round_id": round_id, **devices[name]}
                for round_id, devices in traffic.items()
                if name in devices
            ],
            "confusion": device.evaluation,
            "train_step_ms": list(device.train_step_ms),
            "infer_ms": list(device.infer_ms),
            "phases_s": device.last.phases_s,
            "cpu_s": device.last.cpu_s,
            "peak_rss_bytes": device.peak_rss_bytes,
        }


def _best(rounds: list[Scores], name: str) -> Scores:
    scored = [one for one in rounds if name in one and _is_number(one[name]["accuracy"]["mean"])]
    return max(scored, key=lambda one: float(one[name]["accuracy"]["mean"]), default={})


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _by_round(paid: Mapping[str, Mapping[int, Totals]]) -> dict[int, dict[str, dict[str, int]]]:
    """Round → client → bytes of that round; round 0 is what it cost to join."""
    found: dict[int, dict[str, dict[str, int]]] = {}
    for client_id, totals in paid.items():
        up = down = 0
        for round_id, total in totals.items():
            found.setdefault(round_id, {})[client_id] = {
                "bytes_up": max(total.bytes_up - up, 0),
                "bytes_down": max(total.bytes_down - down, 0),
            }
            up, down = total.bytes_up, total.bytes_down
    return dict(sorted(found.items()))


def _sum(devices: Iterable[Mapping[str, int]]) -> dict[str, int]:
    devices = list(devices)
    return {name: sum(one[name] for one in devices) for name in ("bytes_up", "bytes_down")}
