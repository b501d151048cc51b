"""Every method on every architecture of the sweep: a real federation of two devices for each pair.

One device runs ONNX Runtime, the other LiteRT. Broker, wire, programs, training, aggregation and
stores are those of any federation; only the processes around coordinator and devices are left out,
which would take longer than all that two rounds do.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protofleet import __version__
from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.coordinator.events import (
    CoordinatorEvent,
    DeviceRefused,
    RoundClosed,
    TaskRefused,
    UpdateRejected,
)
from protofleet.coordinator.process.run import open_service
from protofleet.datasets import DeviceData
from protofleet.edge.join import JoinOptions, open_agent
from protofleet.edge.learning.training import LocalData
from protofleet.errors import InputError, ProtofleetError, UnavailableError
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.classifier.prepare import ALL, Wishes
from protofleet.export.methods import choose_methods
from protofleet.export.sweep.cases import CLASSES, SweepCase, classifier
from protofleet.export.sweep.collect import all_cases
from protofleet.federation.settings import (
    CohortSettings,
    FederationConfig,
    LivenessSettings,
    RoundSettings,
    StrategySettings,
)
from protofleet.federation.suitability import why_not
from protofleet.firmware_sim.broker import local_broker
from protofleet.runtime import BackendName
from protofleet.wire.mqtt.broker_access import BrokerAccess

_ROUNDS = 2
_EXAMPLES = 20
_LIMIT_S = 120.0
_IMAGE_AXES = 3  # channels, height, width: numbers from 0 to 1
_BACKENDS: Mapping[str, BackendName] = {"on-onnx": "onnx", "on-litert": "litert"}
# The drawn images have no faces, and so no boxes around them.
_SETTINGS: Mapping[str, Mapping[str, object]] = {"cdfl": {"pixelise": "whole"}}
_NAMES = tuple(f"class {number}" for number in range(CLASSES))

Outcome = Literal["runs", "refused", "failed"]

# What a model is made ready for: as it is, with a prototype or a direction for each class, with
# alignment layers.
_WISHES = (
    Wishes(strategies=("fedavg", ALL)),
    Wishes(strategies=("fedhp",), head_kind="prototypes"),
    Wishes(strategies=("fednh",), head_kind="cosine"),
    Wishes(strategies=("fedali",)),
)


_INTRODUCTION = """# Methods on architectures

Written by `protofleet bench methods --json methods.jsonl --out docs/results/methods.md`, which goes
on from the cells in `methods.jsonl`.

Each cell is a federation over a real broker: two devices, one with ONNX Runtime and one with
LiteRT, two rounds, one bundle of the architecture as its author wrote it. *runs*: both updates
counted in both rounds. *refused*: the export or the coordinator said so before any device took
part; the number says why, and what to do. FedHP's bundle is exported with `--head-kind prototypes`,
FedNH's with `--head-kind cosine`, FedAli's with `--strategy fedali`, which puts alignment layers
into the model; all others share one bundle, exported with `--strategy all`. The architectures
stand in `export/sweep/`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What became of one method on one architecture.

    Attributes:
        architecture, strategy: which.
        outcome: ``refused``: before any device took part, with what to do in ``note``.
        note: of the refusal or the failure.
        seconds: that the federation took.
        version: of Protofleet that it ran with.
        day: when it ended, UTC, as 2026-01-31.
    """

    architecture: str
    strategy: str
    outcome: Outcome
    note: str = ""
    seconds: float = 0.0
    version: str
    day: str


Pair = tuple[str, str]
"""Architecture and method."""


class CellStore:
    """Cells in a file, a JSON object a line, each written as it comes.

    Args:
        path: the file, which may be still to be made; None: the cells are kept in memory alone. A
            line that an interruption has cut off at its end is removed.

    Attributes:
        cells: by pair; of several lines of a pair the last.

    Raises:
        InputError: a line is no cell.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        found = [] if path is None or not path.exists() else _whole_lines(path)
        self.cells: dict[Pair, Cell] = {(one.architecture, one.strategy): one for one in found}

    def add(self, cell: Cell) -> None:
        """Keep a cell, in the file too."""
        self.cells[cell.architecture, cell.strategy] = cell
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(cell) + b"\n")

    def settled(self) -> set[Pair]:
        """The pairs that need no other run: all but those that failed."""
        return {pair for pair, cell in self.cells.items() if cell.outcome != "failed"}


def _whole_lines(path: Path) -> list[Cell]:
    """A file's cells; what follows the last newline is cut off, so that the next line is whole."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    try:
        found = [msgspec.json.decode(line, type=Cell) for line in whole.splitlines()]
    except msgspec.DecodeError as error:
        raise InputError(f"'{path}': expected a cell on every line: {error}") from error
    if whole != data:
        path.write_bytes(whole)
    return found


def run_architecture(
    case: SweepCase, strategies: Sequence[str], broker: str, folder: Path
) -> Iterator[Cell]:
    """A cell for each of ``strategies``.

    Args:
        case: a whole classifier of the sweep.
        strategies: names.
        broker: URL.
        folder: empty; bundles, stores and runs are left in it.
    """
    left = dict.fromkeys(strategies, "")
    for number, wishes in enumerate(_WISHES):
        wanted = [n for n in left if ALL in wishes.strategies or n in wishes.strategies]
        if not wanted:
            continue
        try:
            bundle = _export(case, wishes, folder / f"{number}.pfb")
        except ProtofleetError as error:
            left |= dict.fromkeys(wanted, str(error))
            continue
        reasons = why_not(Bundle.open(bundle, any_signer=True))
        for name in wanted:
            left[name] = reasons[name]
            if not reasons[name]:
                yield _run(case, name, bundle, BrokerAccess(url=broker), folder / name)
                del left[name]
    for name, reason in left.items():
        yield Cell(
            architecture=case.name,
            strategy=name,
            outcome="refused",
            note=reason,
            version=__version__,
            day=_today(),
        )


def _export(case: SweepCase, wishes: Wishes, path: Path) -> Path:
    model = classifier(case)
    spec = BundleSpec(
        name=path.stem,
        strategy=wishes.strategies[0],
        objectives=(),
        classes=_NAMES,
        preprocessing=Preprocessing(input_shape=case.input_shape, tokens=case.tokens),
    )
    chosen = choose_methods(model, spec, wishes)
    export_bundle(model, chosen.spec, out=path, key=Ed25519PrivateKey.generate())
    return path


def _run(case: SweepCase, strategy: str, bundle: Path, broker: BrokerAccess, folder: Path) -> Cell:
    """One federation to its end."""
    folder.mkdir()
    started = time.perf_counter()
    config = FederationConfig(
        federation=f"matrix-{folder.parent.name}-{strategy}",
        broker=broker,
        bundle=bundle,
        trusted=(Bundle.open(bundle, any_signer=True).signer,),
        run_dir=folder / "run",
        rounds=_ROUNDS,
        strategy=StrategySettings(name=strategy, settings=dict(_SETTINGS.get(strategy, {}))),
        cohort=CohortSettings(minimum=len(_BACKENDS)),
        round=RoundSettings(deadline_s=_LIMIT_S, quorum=1.0),
        liveness=LivenessSettings(farewell_s=1.0),
    )
    try:
        _federate(config, case, folder)
        outcome: Outcome = "runs"
        note = ""
    except ProtofleetError as error:
        outcome, note = "failed", str(error)
    return Cell(
        architecture=case.name,
        strategy=strategy,
        outcome=outcome,
        note=note,
        seconds=time.perf_counter() - started,
        version=__version__,
        day=_today(),
    )


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _federate(config: FederationConfig, case: SweepCase, folder: Path) -> None:
    """Raise ProtofleetError unless both devices' updates count in every round."""
    failures: list[ProtofleetError] = []

    def watch(report: CoordinatorEvent) -> None:
        if isinstance(report, DeviceRefused | TaskRefused | UpdateRejected):
            failures.append(UnavailableError(f"{report.device_id}: {report.reason}"))
        if isinstance(report, RoundClosed) and report.participants < len(_BACKENDS):
            failures.append(UnavailableError(f"round {report.round_id}: an update is missing"))
        if failures:
            raise failures[0]

    with ExitStack() as stack:
        # The coordinator's refusals come before any device takes part.
        service = stack.enter_context(open_service(config, watch))
        for seed, (name, backend) in enumerate(_BACKENDS.items()):
            options = JoinOptions(
                broker=config.broker,
                federation=config.federation,
                bundle=config.bundle,
                trusted=[bytes.fromhex(key) for key in config.trusted],
                store=folder / name,
                device_id=name,
                backend=backend,
            )
            stack.enter_context(_device(options, _data(case, seed), failures))
        service.run()


@contextmanager
def _device(
    options: JoinOptions, data: LocalData, failures: list[ProtofleetError]
) -> Iterator[None]:
    """A device in a thread of its own while the context lasts."""
    with open_agent(options, data, lambda *_: None) as agent:

        def run() -> None:
            try:
                agent.run()
            except ProtofleetError as error:
                failures.append(error)

        thread = threading.Thread(target=run, name=options.device_id)
        thread.start()
        try:
            yield
        finally:
            agent.stop()
            thread.join(_LIMIT_S)


def _data(case: SweepCase, seed: int) -> LocalData:
    """Classes that differ in their mean, or in their tokens."""
    rng = np.random.default_rng(seed)

    def part(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        y = np.arange(count, dtype=np.int64) % CLASSES
        ones = [1] * len(case.input_shape)
        if case.tokens is None:
            x = rng.normal(size=(count, *case.input_shape)) + y.reshape(-1, *ones)
            if len(ones) == _IMAGE_AXES:
                x = (x - x.min()) / (x.max() - x.min())
            return x.astype(np.float32), y
        words = rng.integers(0, case.tokens // CLASSES, (count, *case.input_shape)) * CLASSES
        return (words + y.reshape(-1, *ones)).astype(np.float32), y

    (x_train, y_train), (x_test, y_test) = part(_EXAMPLES), part(_EXAMPLES)
    own = DeviceData(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=_NAMES)
    return LocalData(own=own)


def architectures(only: Sequence[str] = ()) -> tuple[SweepCase, ...]:
    """The sweep's whole classifiers that one of the patterns fits, as ``all_cases``; else all.

    Raises:
        InputError: a pattern fits none.
    """
    chosen: dict[str, SweepCase] = {}
    for pattern in only or (None,):
        found = {case.name: case for case in all_cases(pattern) if case.whole}
        if not found:
            raise InputError(f"--only '{pattern}': that is no architecture")
        chosen |= found
    return tuple(chosen.values())


def run(
    cases: Sequence[SweepCase], strategies: Sequence[str], settled: Collection[Pair] = ()
) -> Iterator[Cell]:
    """Every pair but the settled ones, over a broker that is started for it.

    Raises:
        UnavailableError: there is no broker on this machine.
    """
    with tempfile.TemporaryDirectory() as name, local_broker() as url:
        for number, case in enumerate(cases):
            wanted = [one for one in strategies if (case.name, one) not in settled]
            if not wanted:
                continue
            folder = Path(name) / str(number)
            folder.mkdir()
            yield from run_architecture(case, wanted, url, folder)
            shutil.rmtree(folder)


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """The cells of the sweep's architectures, in its order; those of others are left out."""
    places = {case.name: number for number, case in enumerate(architectures())}
    known = (cell for cell in cells if cell.architecture in places)
    return sorted(known, key=lambda cell: places[cell.architecture])


def page(cells: Sequence[Cell]) -> str:
    """A page of the documentation: what was done, when and with which version, and the table."""
    counts = Counter(cell.outcome for cell in cells)
    told = ", ".join(f"{counts[one]} {one}" for one in get_args(Outcome) if counts[one])
    versions = ", ".join(sorted({cell.version for cell in cells}))
    days = sorted({cell.day for cell in cells})
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    measured = f"Measured with version {versions}, {when}; an empty cell is not measured."
    return f"{_INTRODUCTION}\n{told}. {measured}\n\n{table(cells)}"


def table(cells: Sequence[Cell]) -> str:
    """Markdown: a row for each architecture, a column for each method, and notes below."""
    names = sorted({cell.strategy for cell in cells})
    notes: dict[str, int] = {}
    lines = [
        f"| architecture | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for architecture in dict.fromkeys(cell.architecture for cell in cells):
        found = {cell.strategy: cell for cell in cells if cell.architecture == architecture}
        marks = (_mark(found.get(name), notes) for name in names)
        lines.append(f"| {architecture} | {' | '.join(marks)} |")
    lines += ["", *(f"{number}. {note}" for note, number in notes.items())]
    return "\n".join(lines) + "\n"


def _mark(cell: Cell | None, notes: dict[str, int]) -> str:
    if cell is None:
        return ""
    if cell.outcome == "runs":
        return "runs"
    number = notes.setdefault(cell.note, len(notes) + 1)
    return f"{cell.outcome} ({number})"
