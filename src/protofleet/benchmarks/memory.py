"""Peak memory of a device process through one local round: runtimes, with and without Numba."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.benchmarks._models import CASES, Case, export_case
from protofleet.benchmarks._rows import Row
from protofleet.errors import UnavailableError
from protofleet.threads import thread_variables

_WAYS = {
    "ONNX Runtime, with Numba": ("onnx", True),
    "ONNX Runtime, without Numba": ("onnx", False),
    "LiteRT, without Numba": ("litert", False),
}
"""Backend, and whether the kernels are compiled."""


def run(*, quick: bool) -> Iterator[list[Row]]:
    """Rows for HART with ALP (FedAli) and, unless quick, the perceptron (FedAvg)."""
    specs = ("hart_alp",) if quick else ("hart_alp", "mlp")
    return (_case(case, quick) for case in CASES if case.spec in specs)


def _case(case: Case, quick: bool) -> list[Row]:  # noqa: FBT001 - private, one call
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pfb"
        exported = export_case(case)
        exported.write(path, Ed25519PrivateKey.generate())
        strategy = exported.manifest.strategy.name
        examples = 128 if quick else 512
        return [
            Row(
                bench="memory",
                case=f"{case.name}: one {strategy} round, {how}",
                threads=1,
                details=local_round_figures(path, examples, backend=backend, numba=numba),
            )
            for how, (backend, numba) in _WAYS.items()
        ]


def local_round_figures(
    bundle: Path, examples: int, *, backend: str, numba: bool
) -> dict[str, float]:
    """What a device's process needs for one local round, by the figure's name.

    Args:
        bundle: whose strategy makes the round, for one epoch.
        examples: random ones that it trains on.
        backend: ``onnx`` or ``litert``.
        numba: whether its kernels are compiled.

    Raises:
        UnavailableError: the process fails.
    """
    command = [sys.executable, "-m", "protofleet.benchmarks._local_round"]
    environment = {**os.environ, **thread_variables(1), "PROTOFLEET_NUMBA": str(int(numba))}
    done = subprocess.run(
        [*command, str(bundle), str(examples), backend],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnavailableError(f"device round: exit status {done.returncode}: {done.stderr[-500:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return {name: round(value, 2) for name, value in figures.items()}
