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

from protofleet.federation.outcomes.gate import compare
from protofleet.strategies.tasks import TASKS
from protofleet.tensors import TaskName
from protofleet.wire.messages import FleetGain

_OUTPUTS = 3
_FLEETS = (
    None,
    FleetGain(owners=40, mean=0.12, sd=0.05),
    FleetGain(owners=7, mean=-0.08, sd=0.01),
)


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
    evidence = compare(TASKS[name], before, now, y)
    evidence = msgspec.structs.replace(evidence, fleet=fleet)
    told = {"evidence": msgspec.to_builtins(evidence), "helps": evidence.helps}
    del told["evidence"]["kind"]
    return {"before": _short(before), "now": _short(now), "y": y.tolist(), **told}


def _short(outputs: NDArray[np.float32]) -> list[list[float]]:
    """Decimals that are these numbers as float32."""
    return [[float(str(value)) for value in row] for row in outputs]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(cases()) + "\n")
