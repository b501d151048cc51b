"""Losses, statistics and scores by Python, for the browser's: ``golden_tasks.py FILE``."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.tasks import TASKS
from protofleet.tensors import TaskName

_ROWS, _OUTPUTS = 40, 4


def cases() -> list[dict[str, Any]]:
    """One case for each task and kind of examples; numbers that are none stand as null."""
    rng = np.random.default_rng(3)
    outputs = (2 * rng.standard_normal((_ROWS, _OUTPUTS))).astype(np.float32)
    # A class and a label that do not occur, a target that does not vary, and values to cut.
    classes = rng.integers(0, _OUTPUTS - 1, _ROWS)
    targets = rng.standard_normal((_ROWS, _OUTPUTS)).astype(np.float32)
    targets[:, 1] = 3
    flags = (rng.random((_ROWS, _OUTPUTS)) < 0.4).astype(np.float32)
    flags[:, 2], outputs[:, 3] = 0, np.minimum(outputs[:, 3], -0.5)
    wild = outputs.copy()
    wild[0, 0], wild[1, 1], wild[2, 2] = np.nan, np.inf, -3e38
    return [
        _case("classification", outputs, classes),
        _case("classification", wild, classes),
        _case("classification", outputs[:0], classes[:0]),
        _case("regression", outputs, targets),
        _case("regression", wild, targets),
        _case("regression", outputs[:0], targets[:0]),
        _case("multilabel", outputs, flags),
        _case("multilabel", outputs[:0], flags[:0]),
    ]


def _case(name: TaskName, outputs: NDArray[np.float32], y: NDArray[Any]) -> dict[str, Any]:
    task = TASKS[name]
    statistics = task.statistics(outputs, y, _OUTPUTS)
    with np.errstate(all="ignore"):
        losses = {loss: _number(mean(outputs, y)) for loss, mean in task.losses.items()}
    return {
        "task": name,
        "outputs": [[_number(value) for value in row] for row in outputs.tolist()],
        "y": y.tolist(),
        "statistics": statistics.tolist(),
        "losses": losses,
        "scores": {metric: _number(value) for metric, value in task.score(statistics).items()},
        "quality": _number(task.quality(statistics)),
        "worths": task.worths(outputs, y).tolist(),
    }


def _number(value: float) -> float | str | None:
    if math.isinf(value):
        return "infinite"
    return None if math.isnan(value) else float(value)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(cases()) + "\n")
