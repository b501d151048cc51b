"""Exported bundles and what the Python runtime makes of them, for the browser's runtime.

``program_cases.py FOLDER`` writes, for each bundle, a folder with its files, a batch,
and the results of every program as raw little-endian arrays; ``case.json`` names them.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Port, Program
from protofleet.cli.export import export
from protofleet.federation.randomness import client_rng
from protofleet.runtime import Programs, open_programs

BUNDLES: Mapping[str, tuple[str, ...]] = {
    "mlp": (
        *("mlp", "--set", "inputs=20", "--set", "classes=4", "--input-shape", "20"),
        *("--classes", "a,b,c,d", "--strategy", "fedavg", "--strategy", "moon"),
        *("--strategy", "fedproto"),
    ),
    "cnn_prototypes": ("cnn_prototypes", "--strategy", "fedhp"),
    "vit_digits": (
        "vit_digits",
        "--set",
        "depth=1",
        "--set",
        "prototypes=[8]",
        "--strategy",
        "fedali",
    ),
}
"""Arguments of ``protofleet export``: every objective, noise, buffers and functions among them."""

BATCH = 7
ROWS = 40
"""More than one batch of an evaluation."""


def write(folder: Path, name: str) -> None:
    """Export a bundle and write its case."""
    folder.mkdir(parents=True)
    path = folder / "bundle.pfb"
    with contextlib.redirect_stdout(None):
        export.main(
            [*BUNDLES[name], "--formats", "onnx", "--out", str(path)], standalone_mode=False
        )
    bundle = Bundle.open(path, any_signer=True)
    for file in bundle.manifest.files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(bundle.read(file))
    (folder / "manifest.json").write_bytes(bundle.source.read("manifest.json", 1 << 22))
    case = Case(folder, bundle)
    (folder / "case.json").write_text(json.dumps(case.described()))


class Case:
    """One bundle's inputs and results, written as they are computed."""

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        self._folder = folder
        self._bundle = bundle
        self._network = bundle.model().network
        self._drawn = np.random.default_rng(0)

    def described(self) -> dict[str, Any]:
        """What ``case.json`` holds."""
        programs = open_programs(self._bundle, kernels="graph")
        return {
            "params": self._array("params", self._network.params.buffer),
            "buffers": self._array("buffers", self._network.buffers.buffer),
            "steps": [
                self._step(programs, program)
                for program in self._bundle.manifest.programs.values()
                if program.objective is not None
            ],
            **self._forward(programs),
        }

    def _step(self, programs: Programs, program: Program) -> dict[str, Any]:
        objective = str(program.objective)
        batch = {p.key: self._input(p) for p in program.inputs if p.role == "input"}
        rng = client_rng(5, 2, objective)
        network, losses = self._network, []
        for _ in range(2):
            step = programs.grad_fns[objective](network, batch, rng)
            losses.append(step.loss)
        return {
            "objective": objective,
            "inputs": {
                key: self._array(f"{objective}.{key}", value) for key, value in batch.items()
            },
            "losses": losses,
            "grads": self._array(f"{objective}-grads", step.grads.buffer),
            "buffers": self._array(f"{objective}-buffers", step.buffers.buffer),
        }

    def _forward(self, programs: Programs) -> dict[str, Any]:
        shape = (ROWS, *self._bundle.manifest.preprocessing.input_shape)
        x = self._drawn.standard_normal(shape).astype(np.float32)
        return {
            "x": self._array("x", x),
            "logits": self._array("logits", programs.predict(self._network, x, batch_size=32)),
            "features": self._array("features", programs.features(self._network, x, batch_size=32)),
        }

    def _input(self, port: Port) -> NDArray[Any]:
        shape = tuple(BATCH if axis == "batch" else int(axis) for axis in port.shape)
        if port.key == "y":
            return self._drawn.integers(0, len(self._bundle.manifest.classes), shape)
        drawn = self._drawn.standard_normal(shape) if shape else 0.5
        return np.asarray(drawn, np.float32)

    def _array(self, name: str, values: NDArray[Any]) -> dict[str, Any]:
        file = f"{name}.bin"
        (self._folder / file).write_bytes(np.ascontiguousarray(values).tobytes())
        return {"file": file, "dtype": values.dtype.name, "shape": list(values.shape)}


if __name__ == "__main__":
    for chosen in BUNDLES:
        write(Path(sys.argv[1]) / chosen, chosen)
