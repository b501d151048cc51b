"""What a device pays for a bundle, measured on the machine at hand.

Every combination of backend, precision and threads runs in a process of its own, as on a device:
without PyTorch, with imports, memory and caches of its own. One that crashes loses itself alone.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from protofleet.benchmarks._device_energy import Found, Meter, idle_watts, open_meter
from protofleet.benchmarks._device_process import run_process
from protofleet.benchmarks._device_progress import Progress
from protofleet.benchmarks._device_report import (
    Backend,
    BundleFacts,
    Combination,
    DeviceReport,
    Energy,
    Phase,
    Run,
    Score,
    Settings,
    Traffic,
)
from protofleet.benchmarks._device_request import Request, device_data
from protofleet.benchmarks._device_traffic import TrafficRequest
from protofleet.benchmarks._rows import machine_facts
from protofleet.errors import InputError
from protofleet.strategies import DESCRIPTIONS
from protofleet.wire.bundle import Bundle
from protofleet.wire.bundle_rules import PARAMS, STATE
from protofleet.wire.manifest import Manifest, Precision, Program

BACKENDS: tuple[Backend, ...] = ("onnx", "litert")
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8")
BATCHES = (1, 8, 32, 64)

_PACKAGES = {"onnx": ("onnxruntime", "edge"), "litert": ("ai_edge_litert", "litert")}
_STREAM_BATCH = 32
_BASE = "fedavg"
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
        data: ``.npz`` file of examples; None: random ones.
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
    data: Path | None = None
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


def open_device_bundle(options: Options, trusted: Collection[bytes]) -> Bundle:
    """The bundle; options and data are checked against it before minutes of measuring.

    Raises:
        InputError: an unknown strategy, or data that do not fit.
        RefusedError: the bundle is not whole, or not of a trusted signer.
    """
    unknown = sorted(set(options.strategies) - DESCRIPTIONS.keys())
    if unknown:
        raise InputError(
            f"strategy '{unknown[0]}': unknown; expected one of {', '.join(sorted(DESCRIPTIONS))}"
        )
    bundle = Bundle.open(options.bundle, trusted=trusted)
    device_data(str(options.data or ""), bundle.manifest, seed=options.seed)
    return bundle


def reports(
    options: Options, bundle: Bundle, open_steps: Callable[[int], AbstractContextManager[Progress]]
) -> Iterator[DeviceReport]:
    """Measure; the report so far after every process, so that what is done is not lost.

    Args:
        options: what to measure.
        bundle: from ``open_device_bundle``.
        open_steps: tells a person about so many steps.
    """
    combinations, strategies = options.combinations, _strategies(options, bundle.manifest)
    with open_steps(len(combinations) + len(strategies)) as progress, open_meter() as found:
        progress.at("idle power")
        energy = _energy(options, found)
        report = DeviceReport(
            machine=machine_facts(),
            bundle=_facts(bundle),
            settings=options.settings,
            load_average=round(os.getloadavg()[0], 2),
            data=str(options.data or "random"),
            energy=energy,
            runs=[],
            traffic=[],
        )
        for what in combinations:
            report.runs.append(
                _run(options, bundle, what, _Listener(found.meter, energy, what, progress))
            )
            progress.done(f"{what.label}: {report.runs[-1].status}")
            yield report
        for strategy in strategies:
            report.traffic.extend(_traffic(options, bundle, strategy, progress))
            progress.done(f"bytes of {strategy}")
            yield report


def absence(what: Combination, manifest: Manifest) -> str:
    """Why bundle or machine lack a combination, and what helps; empty: they have it."""
    package, extra = _PACKAGES[what.backend]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed: pip install 'protofleet[{extra}]'"
    name = infer_program(what.precision)
    program = manifest.programs.get(name)
    if program is None:
        return f"the bundle has no program '{name}'; export it with --precision {what.precision}"
    if _file(program, what.backend) is None:
        return f"the bundle has no TFLite file of '{name}'; export it again with this version"
    return ""


def infer_program(precision: Precision) -> str:
    """The program that classifies at a precision."""
    return "infer" if precision == "float32" else f"infer_{precision}"


def training_program(what: Combination, manifest: Manifest) -> tuple[str | None, str]:
    """Name of the training program that the bundle's strategy runs, or None and why."""
    if what.precision != "float32":
        return None, f"{what.precision} programs only infer: training needs float32"
    described = DESCRIPTIONS.get(manifest.strategy.name)
    wanted = described.programs if described else ()
    trained = {p.objective: name for name, p in manifest.programs.items() if p.objective}
    if not trained:
        return None, "the bundle has no training program"
    objective = next((one for one in wanted if one in trained), next(iter(trained)))
    name = trained[objective]
    if _file(manifest.programs[name], what.backend) is None:
        return None, f"the bundle has no TFLite file of '{name}'; export it again"
    return name, ""


def _run(options: Options, bundle: Bundle, what: Combination, listener: _Listener) -> Run:
    manifest = bundle.manifest
    reason = absence(what, manifest)
    if reason:
        return Run(what=what, status="absent", reason=reason)
    training, no_training = training_program(what, manifest)
    if training and not options.batches:
        training, no_training = None, "not asked for"
    request = Request(
        bundle=str(options.bundle),
        digest=bundle.digest,
        what=what,
        objective=(manifest.programs[training].objective or "") if training else "",
        batches=tuple(options.batches) if training else (),
        stream_batch=_STREAM_BATCH,
        seconds=options.seconds,
        least=5 if options.quick else 20,
        least_infer=20 if options.quick else 100,
        seed=options.seed,
        data=str(options.data or ""),
    )
    failure = run_process("_device_child", request, threads=what.threads, hear=listener.hear)
    programs = [infer_program(what.precision), *([training] if training else [])]
    files = {_file(manifest.programs[name], what.backend) or "" for name in programs}
    weights = (PARAMS, STATE) if what.precision == "float32" else ()
    return Run(
        what=what,
        status="failed" if failure else "measured",
        reason=failure,
        phases=tuple(listener.phases),
        no_training=no_training,
        program_bytes={file: manifest.files[file].bytes for file in sorted(files)},
        weight_bytes=sum(manifest.files[w].bytes for w in weights if w in manifest.files),
        **listener.facts,
    )


def _traffic(options: Options, bundle: Bundle, strategy: str, progress: Progress) -> list[Traffic]:
    """A row for each codec; one with the reason if the bundle cannot run the strategy."""
    progress.at(f"bytes of {strategy}")
    found: list[Traffic] = []
    request = TrafficRequest(
        bundle=str(options.bundle),
        digest=bundle.digest,
        strategy=strategy,
        seed=options.seed,
        data=str(options.data or ""),
        examples=options.settings.traffic_examples,
    )
    failure = run_process(
        "_device_traffic",
        request,
        threads=1,
        hear=lambda line: found.append(msgspec.convert(line["traffic"], Traffic)),
    )
    return [*found, Traffic(strategy=strategy, codec="raw", reason=failure)] if failure else found


class _Listener:
    """Turns a process's lines into phases, with the energy of each."""

    def __init__(
        self, meter: Meter | None, energy: Energy, what: Combination, progress: Progress
    ) -> None:
        self._meter, self._idle_w = meter, energy.idle_w
        self._progress, self._label = progress, what.label
        self._before = 0.0
        self.phases: list[Phase] = []
        self.facts: dict[str, Any] = {}

    def hear(self, line: dict[str, Any]) -> None:
        """One line."""
        if "begin" in line:
            batch = f", batch {line['batch']}" if line["batch"] else ""
            self._progress.at(f"{self._label}: {line['begin']}{batch}")
            self._before = self._meter.joules() if self._meter else 0.0
        elif "phase" in line:
            self.phases.append(self._with_energy(msgspec.convert(line["phase"], Phase)))
        elif "score" in line:
            self.facts["score"] = msgspec.convert(line["score"], Score)
        else:
            self.facts |= line.get("training", line)

    def _with_energy(self, phase: Phase) -> Phase:
        if self._meter is None or self._idle_w is None:
            return phase
        joules = self._meter.joules() - self._before
        return msgspec.structs.replace(
            phase,
            energy_j=joules / phase.calls,
            net_energy_j=(joules - self._idle_w * phase.seconds) / phase.calls,
        )


def _strategies(options: Options, manifest: Manifest) -> Sequence[str]:
    few = tuple(dict.fromkeys((_BASE, manifest.strategy.name)))
    return options.strategies or (few if options.quick else tuple(DESCRIPTIONS))


def _energy(options: Options, found: Found) -> Energy:
    if found.meter is None:
        return Energy(source=None, reason=found.reason)
    return Energy(source=found.meter.source, idle_w=idle_watts(found.meter, options.seconds))


def _facts(bundle: Bundle) -> BundleFacts:
    manifest = bundle.manifest
    return BundleFacts(
        name=manifest.name,
        digest=bundle.digest,
        strategy=manifest.strategy.name,
        params=sum(math.prod(tensor.shape) for tensor in manifest.params),
        state=sum(math.prod(tensor.shape) for tensor in manifest.state),
        bytes=sum(entry.bytes for entry in manifest.files.values()),
    )


def _file(program: Program, backend: Backend) -> str | None:
    return program.file if backend == "onnx" else program.tflite
