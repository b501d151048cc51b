"""Decisions of the gate by Python, for the browser's: ``golden_gate.py FILE``."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.federation.outcomes.gate import (
    FOLDS,
    ComparedExamples,
    GateEvidence,
    compare,
    folds_of,
    pooled,
)
from protofleet.strategies.tasks import TASKS
from protofleet.tensors import TaskName
from protofleet.wire.messages import FleetGain

_OUTPUTS = 3
_FLEETS = (
    None,
    FleetGain(owners=40, mean=0.12, sd=0.05),
    FleetGain(owners=7, mean=-0.08, sd=0.01),
)


def golden() -> dict[str, Any]:
    """All of it."""
    return {"cases": cases(), "rounds": rounds(), "folds": folds()}


def rounds() -> list[dict[str, Any]]:
    """What a device knows after each of 14 rounds: test examples, and a fold in every third."""
    rng, found = np.random.default_rng(6), []
    evidence = None
    for _ in range(14):
        tests = _compared(rng, 5)
        evidence = pooled("classification", tests).following(evidence)
        fold, place = None, evidence.next_fold
        if place is not None:
            fold = _compared(rng, int(rng.integers(0, 9)))
            evidence = evidence.with_fold(fold)
        found.append(
            {
                "tests": msgspec.to_builtins(tests),
                "next_fold": place,
                "fold": msgspec.to_builtins(fold),
                "evidence": _told(evidence),
                "held_out": msgspec.to_builtins(evidence.held_out_gain),
            }
        )
    return found


def folds() -> list[dict[str, Any]]:
    """Which examples go to which fold."""
    rng = np.random.default_rng(7)
    labels = [rng.integers(0, 4, count) for count in (0, 1, 3, 10, 41)]
    return [
        {"y": y.tolist(), "count": count, "folds": folds_of(y, count).tolist()}
        for y in labels
        for count in (2, FOLDS, 10)
    ]


def _compared(rng: np.random.Generator, count: int) -> ComparedExamples:
    gains = rng.integers(-1, 2, count)
    before = int(rng.integers(0, count + 1))
    return ComparedExamples(
        examples=count,
        before=float(before),
        now=float(before + gains.sum()),
        gain=float(gains.sum()),
        squares=float(np.square(gains).sum()),
    )


def _told(evidence: GateEvidence) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(evidence))
    told["heldOut"], told["oneClass"] = told.pop("held_out"), told.pop("one_class")
    del told["kind"]
    return told


def cases() -> list[dict[str, Any]]:
    """Owners with few and many test examples, whose personal models are better, worse or alike."""
    rng = np.random.default_rng(5)
    tasks: tuple[TaskName, ...] = ("classification", "regression", "multilabel")
    return [
        _case(rng, task, count, nearer, _FLEETS[at % len(_FLEETS)])
        for task in tasks
        for at, (count, nearer) in enumerate(product((0, 1, 4, 30), (-0.5, 0.0, 0.3, 0.6)))
    ]


def _case(
    rng: np.random.Generator, name: TaskName, count: int, nearer: float, fleet: FleetGain | None
) -> dict[str, Any]:
    """``nearer``: by which share the personal model's outputs are nearer to the truth."""
    flags = (rng.random((count, _OUTPUTS)) < 0.4).astype(np.float32)
    classes = rng.integers(0, _OUTPUTS, count)
    ideal = np.eye(_OUTPUTS, dtype=np.float32)[classes] if name == "classification" else flags
    before = ideal + rng.standard_normal((count, _OUTPUTS)).astype(np.float32).round(1)
    now = (before + np.float32(nearer) * (ideal - before)).round(2)
    y = classes if name == "classification" else flags
    evidence = pooled(name, compare(TASKS[name], before, now, y))
    evidence = msgspec.structs.replace(evidence, fleet=fleet)
    told = {"evidence": _told(evidence), "helps": evidence.helps}
    return {"before": _short(before), "now": _short(now), "y": y.tolist(), **told}


def _short(outputs: NDArray[np.float32]) -> list[list[float]]:
    """Decimals that are these numbers as float32."""
    return [[float(str(value)) for value in row] for row in outputs]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(golden()) + "\n")
