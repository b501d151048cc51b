"""What ``protofleet bench device`` measures: combinations, and which of them can be."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protofleet.benchmarks.device.report import Backend, Combination, Settings
from protofleet.bundle.manifest import Manifest, Precision, Program
from protofleet.runtime._choice import PACKAGES
from protofleet.strategies import DESCRIPTIONS

BACKENDS: tuple[Backend, ...] = ("onnx", "litert")
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8")
BATCHES = (1, 8, 32, 64)

_STREAM_BATCH = 32
_MOST_THREADS = 4


def default_threads() -> tuple[int, ...]:
    """1, 2 and 4, as far as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return tuple(n for n in (1, 2, _MOST_THREADS) if n <= (cores or 1))


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, and how long.

    Attributes:
        bundle: its path.
        threads, backends, precisions: every combination is measured.
        batches: examples in a training step, each measured; none: inference alone.
        strategies: whose bytes are counted; empty: all that there are, or, when it must be quick,
            FedAvg and the bundle's own.
        data: examples as ``protofleet device join`` takes them; empty: random ones.
        data_root: folder of the published data sets.
        seconds: of a phase of many calls.
        seed: of random examples, noise and strategies.
        quick: few calls.
    """

    bundle: Path
    threads: Sequence[int] = field(default_factory=default_threads)
    backends: Sequence[Backend] = BACKENDS
    precisions: Sequence[Precision] = PRECISIONS
    batches: Sequence[int] = BATCHES
    strategies: Sequence[str] = ()
    data: str = ""
    data_root: Path | None = None
    seconds: float = 2.0
    seed: int = 0
    quick: bool = False

    @property
    def combinations(self) -> list[Combination]:
        """In the order of measuring."""
        return [
            Combination(backend=backend, precision=precision, threads=threads)
            for backend in self.backends
            for precision in self.precisions
            for threads in self.threads
        ]

    @property
    def settings(self) -> Settings:
        """For the report."""
        return Settings(
            seconds=self.seconds,
            seed=self.seed,
            quick=self.quick,
            stream_batch=_STREAM_BATCH,
            traffic_examples=32 if self.quick else 128,
        )


def absence(what: Combination, manifest: Manifest) -> str:
    """Why bundle or machine lack a combination, and what helps; empty: they have it."""
    package, remedy = PACKAGES[what.backend]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed: {remedy}"
    name, exact = infer_program(what.precision), what.precision == "float32"
    program = manifest.programs.get(name)
    if program is None and exact:
        return f"the bundle has no program '{name}'; export it again"
    if program is None:
        return (
            f"the bundle has no program '{name}'; make it: protofleet bundle quantise BUNDLE "
            f"--precision {what.precision} --data DATA --out OUT"
        )
    if program_file(program, what.backend) is None:
        again = "export it again" if exact else "export the bundle again, then quantise it again"
        return f"the bundle has no TFLite file of '{name}'; {again} with this version"
    return ""


def infer_program(precision: Precision) -> str:
    """The program that classifies at a precision."""
    return "infer" if precision == "float32" else f"infer_{precision}"


def training_program(what: Combination, manifest: Manifest) -> tuple[str | None, str]:
    """Name of the training program that the bundle's strategy runs, or None and why."""
    if what.precision != "float32":
        return None, f"{what.precision} programs only infer: training needs float32"
    described = DESCRIPTIONS.get(manifest.strategy.name)
    wanted = described.objectives if described else ()
    trained = {p.objective: name for name, p in manifest.programs.items() if p.objective}
    if not trained:
        return None, "the bundle has no training program"
    objective = next((one for one in wanted if one in trained), next(iter(trained)))
    name = trained[objective]
    if program_file(manifest.programs[name], what.backend) is None:
        return None, f"the bundle has no TFLite file of '{name}'; export it again"
    return name, ""


def program_file(program: Program, backend: Backend) -> str | None:
    """Where a program lies for a backend; None where the bundle has none."""
    return program.file if backend == "onnx" else program.tflite
