"""Parameters moved by the Python optimisers, for the browser's: ``golden_optimisers.py FILE``.

Parameters, gradients and references are drawn by NumPy from a seed, as the browser draws them, so
that the file holds hashes of results alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from protofleet.strategies.optimisers import Adam, Group, Optimiser, Sgd
from protofleet.tensors import Layout, TensorMap

SHAPES = {"a": (40, 25), "b": (500,), "c": (10, 100)}
_STEPS = 4

CASES: list[dict[str, Any]] = [
    {"optimiser": {"kind": "sgd", "lr": 0.05}},
    {"optimiser": {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}, "mu": 0.3},
    {"optimiser": {"kind": "adam", "lr": 0.01}},
    {"optimiser": {"kind": "adam", "lr": 0.01, "eps_form": "torch", "weight_decay": 0.1}, "mu": 1},
    {"optimiser": {"kind": "adam", "lr": 0.3, "eps": 1e-3}, "names": ["a", "c"], "clip_norm": 3},
]
"""``mu`` of a proximal term, ``names`` of what moves, ``clip_norm`` of the gradient."""


def hashes() -> list[dict[str, Any]]:
    """The cases, each with the SHA-256 of the parameters and moments after some steps."""
    return [{**case, **_run(case)} for case in CASES]


def _run(case: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(np.random.SeedSequence([5]))
    layout = Layout.of(SHAPES)

    def drawn() -> TensorMap:
        return TensorMap(layout, rng.standard_normal(layout.size, dtype=np.float32))

    params, reference = drawn(), drawn()
    settings = msgspec.convert(case["optimiser"], Adam | Sgd)
    optimiser = Optimiser(layout, [Group(names=case.get("names"), optimiser=settings)])
    for _ in range(_STEPS):
        grads = drawn()
        if "clip_norm" in case:
            optimiser.clip(grads, case["clip_norm"])
        proximal = (case["mu"], reference) if "mu" in case else None
        optimiser.step(params, grads, proximal=proximal)
    moments = {name: _sha256(value) for name, value in optimiser.moments().items()}
    return {"params": _sha256(params.buffer), "moments": moments}


def _sha256(values: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(values.tobytes()).hexdigest()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(hashes(), indent=1) + "\n")
