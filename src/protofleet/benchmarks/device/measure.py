"""What a device pays for a bundle, measured on the machine at hand.

Every combination of backend, precision and threads runs in a process of its own, as on a device:
without PyTorch, with imports, memory and caches of its own. One that crashes loses itself alone.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from protofleet.benchmarks._rows import machine_facts
from protofleet.benchmarks.device.energy import EnergyMeter, Found, idle_watts, open_meter
from protofleet.benchmarks.device.plan import (
    Options,
    absence,
    infer_program,
    program_file,
    training_program,
)
from protofleet.benchmarks.device.progress import Progress
from protofleet.benchmarks.device.report import (
    RANDOM,
    BundleFacts,
    Combination,
    DeviceReport,
    DeviceRun,
    Energy,
    Phase,
    Score,
    StrategyTraffic,
)
from protofleet.benchmarks.device.request import Request
from protofleet.benchmarks.device.traffic import TrafficRequest
from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Manifest, Program
from protofleet.bundle.rules import PARAMS, STATE
from protofleet.edge import load_local_data
from protofleet.edge.learning.training import check_data
from protofleet.errors import InputError, UnavailableError
from protofleet.strategies import DESCRIPTIONS, check_known
from protofleet.threads import thread_variables

_BASE = "fedavg"
"""What others are compared with."""


def open_device_bundle(options: Options, trusted: Collection[bytes]) -> Bundle:
    """The bundle, after the options.

    Raises:
        InputError: an unknown strategy.
        RefusedError: the bundle is not whole, or not of a trusted signer.
    """
    for name in options.strategies:
        check_known(name)
    return Bundle.open(options.bundle, trusted=trusted)


def reports(
    options: Options, bundle: Bundle, open_steps: Callable[[int], AbstractContextManager[Progress]]
) -> Iterator[DeviceReport]:
    """Measure; the report so far after every process, so that what is done is not lost.

    Args:
        options: what to measure.
        bundle: from ``open_device_bundle``.
        open_steps: tells a person about so many steps.

    Raises:
        InputError: the data do not fit the bundle.
    """
    combinations, strategies = options.combinations, _strategies(options, bundle.manifest)
    with (
        _data_file(options, bundle.manifest) as data,
        open_steps(len(combinations) + len(strategies)) as progress,
        open_meter() as found,
    ):
        progress.at("idle power")
        energy = _energy(options, found)
        report = DeviceReport(
            machine=machine_facts(),
            bundle=_facts(bundle),
            settings=options.settings,
            load_average=round(os.getloadavg()[0], 2),
            data=options.data or RANDOM,
            energy=energy,
            runs=[],
            traffic=[],
        )
        for what in combinations:
            report.runs.append(
                _run(options, bundle, data, what, _Listener(found.meter, energy, what, progress))
            )
            progress.done(f"{what.label}: {report.runs[-1].status}")
            yield report
        for strategy in strategies:
            report.traffic.extend(_traffic(options, bundle, data, strategy, progress))
            progress.done(f"bytes of {strategy}")
            yield report


@contextmanager
def _data_file(options: Options, manifest: Manifest) -> Iterator[str]:
    """An ``.npz`` file for the processes, so that none of them loads a whole data set."""
    if not options.data:
        yield ""
        return
    loaded = load_local_data(options.data, manifest.preprocessing, data_root=options.data_root)
    check_data(loaded, manifest)
    if not len(loaded.own.y_train):
        raise InputError(f"data '{options.data}': expected training examples, got none")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        loaded.own.save(path)
        yield str(path)


def _run(
    options: Options, bundle: Bundle, data: str, what: Combination, listener: _Listener
) -> DeviceRun:
    manifest = bundle.manifest
    reason = absence(what, manifest)
    if reason:
        return DeviceRun(what=what, status="absent", reason=reason)
    training, no_training = training_program(what, manifest)
    if training and not options.batches:
        training, no_training = None, "not asked for"
    request = Request(
        bundle=str(options.bundle),
        digest=bundle.digest,
        what=what,
        objective=(manifest.programs[training].objective or "") if training else "",
        batches=_batches(options, manifest.programs[training]) if training else (),
        stream_batch=options.settings.stream_batch,
        seconds=options.seconds,
        least=5 if options.quick else 20,
        least_infer=20 if options.quick else 100,
        seed=options.seed,
        data=data,
    )
    failure = run_process("child", request, threads=what.threads, hear=listener.hear)
    programs = [infer_program(what.precision), *([training] if training else [])]
    files = {program_file(manifest.programs[name], what.backend) or "" for name in programs}
    weights = (PARAMS, STATE) if what.precision == "float32" else ()
    return DeviceRun(
        what=what,
        status="failed" if failure else "measured",
        reason=failure,
        phases=tuple(listener.phases),
        no_training=no_training,
        program_bytes={file: manifest.files[file].bytes for file in sorted(files)},
        weight_bytes=sum(manifest.files[w].bytes for w in weights if w in manifest.files),
        **listener.facts,
    )


def _batches(options: Options, program: Program) -> tuple[int, ...]:
    """Those of the options that the training program takes."""
    return tuple(size for size in options.batches if size >= program.min_batch)


def _traffic(
    options: Options, bundle: Bundle, data: str, strategy: str, progress: Progress
) -> list[StrategyTraffic]:
    """A row for each codec; one with the reason if the bundle cannot run the strategy."""
    progress.at(f"bytes of {strategy}")
    found: list[StrategyTraffic] = []
    request = TrafficRequest(
        bundle=str(options.bundle),
        digest=bundle.digest,
        strategy=strategy,
        seed=options.seed,
        data=data,
        examples=options.settings.traffic_examples,
    )
    failure = run_process(
        "traffic",
        request,
        threads=1,
        hear=lambda line: found.append(msgspec.convert(line["traffic"], StrategyTraffic)),
    )
    return (
        [*found, StrategyTraffic(strategy=strategy, codec="raw", reason=failure)]
        if failure
        else found
    )


class _Listener:
    """Turns a process's lines into phases, with the energy of each."""

    def __init__(
        self, meter: EnergyMeter | None, energy: Energy, what: Combination, progress: Progress
    ) -> None:
        self._meter, self._idle_w = meter, energy.idle_w
        self._progress, self._label = progress, what.label
        self._before: float | None = None
        self.phases: list[Phase] = []
        self.facts: dict[str, Any] = {}

    def hear(self, line: dict[str, Any]) -> None:
        """One line."""
        if "begin" in line:
            batch = f", batch {line['batch']}" if line["batch"] else ""
            self._progress.at(f"{self._label}: {line['begin']}{batch}")
            self._before = _joules(self._meter)
        elif "phase" in line:
            self.phases.append(self._with_energy(msgspec.convert(line["phase"], Phase)))
        elif "score" in line:
            self.facts["score"] = msgspec.convert(line["score"], Score)
        else:
            self.facts |= line.get("training", line)

    def _with_energy(self, phase: Phase) -> Phase:
        after = _joules(self._meter)
        if after is None or self._before is None or self._idle_w is None:
            return phase
        joules = after - self._before
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
    try:
        idle_w = idle_watts(found.meter, options.seconds)
    except UnavailableError as error:
        return Energy(source=None, reason=f"not measured: {error}")
    return Energy(source=found.meter.source, idle_w=idle_w)


def _joules(meter: EnergyMeter | None) -> float | None:
    """None where there is no meter, or it does not answer: a phase then stands without energy."""
    if meter is None:
        return None
    try:
        return meter.joules()
    except UnavailableError:
        return None


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


def run_process(
    module: str, request: msgspec.Struct, *, threads: int, hear: Callable[[dict[str, Any]], None]
) -> str:
    """Start ``module`` of this package with ``request``; returns why it ended early, or nothing.

    Args:
        module: its name.
        request: its one argument, as JSON.
        threads: bound of its thread pools.
        hear: takes each line that it writes, as soon as it comes.
    """
    command = [sys.executable, "-m", f"protofleet.benchmarks.device.{module}"]
    environment = {**os.environ, **thread_variables(threads)}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*command, msgspec.json.encode(request).decode()],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                if line.startswith("{"):  # a runtime's own words may come between
                    hear(json.loads(line))
        except BaseException:
            process.kill()
            raise
        status = process.wait()
        errors.seek(0)
        return "" if status == 0 else _ended(status, errors.read())


def _ended(status: int, errors: str) -> str:
    """An exit status and the last words."""
    how = f"exit status {status}" if status > 0 else signal.Signals(-status).name
    if status == -signal.SIGKILL:
        how += " (the system kills what takes too much memory)"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = lines[-1].removeprefix("protofleet.errors.") if lines else "no message"
    return f"{how}: {last}"
