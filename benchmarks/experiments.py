"""The local engine of experiments in clients per second, beside what one would use instead.

With training and scoring: beside a plain PyTorch loop (``_plain_loop``) of the same model, data,
batches, optimiser and scores. Without training, so that the engine is all that is left: beside
Flower's simulation engine (``_flower_rounds``) where an interpreter that has it is given. Both
sides play their rounds in turns, so that a machine's moods hit them equally.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.benchmarks._process_times import cpu_s, descendants
from protofleet.benchmarks._rows import aligned, short
from protofleet.benchmarks._synthetic_bundle import (
    SETTINGS,
    synthetic_data,
    write_synthetic_bundle,
)
from protofleet.benchmarks._timing import Sample
from protofleet.datasets import DeviceData
from protofleet.errors import MissingDataError, UnavailableError
from protofleet.experiments.config import Experiment, find, load_experiment
from protofleet.experiments.local import run_local
from protofleet.experiments.prepare import ClientFiles, Preparation, PreparedData
from protofleet.experiments.processes import processes
from protofleet.experiments.run import Job
from protofleet.experiments.workers import OpenWorkers
from protofleet.federation.records import RoundRecord

Tell = Callable[[str], object]
"""Progress for people."""

_TRAINED = (
    ("perceptron 768-128-64-6", "all/ucihar-small"),
    ("HART, 2 blocks, width 48", "fedali/ucihar-small"),
)
_UNTRAINED = (("4 kB, untrained", 1_000, 200), ("5.8 MB, untrained", 1_450_000, 50))
_WARM_UP = 1
"""Rounds that are not counted: sessions open, data are read."""
_SHAPE, _CLASSES, _PEOPLE, _TRAIN, _TEST, _POOLED = (128, 6), 6, 30, 240, 103, 256
"""Of UCI-HAR's windows, as the experiments divide them."""


class EngineRow(msgspec.Struct, frozen=True, kw_only=True):
    """Clients per second of the engine and of what it is compared with.

    Attributes:
        engine: ``local``.
        model: what a client trains, or how large what it returns untrained is.
        clients: of a round.
        cores: of either side.
        data: which, or what stands in for it.
        clients_per_second: median over the rounds.
        against: what is beside it; None: nothing.
        plain_clients_per_second: of that, likewise.
        ratio: median over pairs of rounds of ours ÷ theirs; above 1 we are faster.
        ratio_p25, ratio_p75: quartiles of these.
        cpu_ratio: processor time of theirs ÷ ours, of all processes and rounds together; other work
            on the machine disturbs it less. None: not known here.
        pairs: how many.
    """

    engine: str
    model: str
    clients: int
    cores: int
    data: str
    clients_per_second: float
    against: str | None = None
    plain_clients_per_second: float | None = None
    ratio: float | None = None
    ratio_p25: float | None = None
    ratio_p75: float | None = None
    cpu_ratio: float | None = None
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePeer:
    """What plays a round in turn with the engine.

    Attributes:
        name: for the table.
        seconds: plays a round; how long it took.
        process: id of the process whose children it lives in; None: of this one's.
    """

    name: str
    seconds: Callable[[], float]
    process: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What is measured, and beside what.

    Attributes:
        quick: fewer rounds and clients.
        only: parts of models' names; empty: all.
        data_root: folder of the published data sets; UCI-HAR's shape is imitated where it lacks.
        flower: interpreter that has ``flwr[simulation]``; None: no comparison with it.
        cores: processes of either side; None: one per core.
    """

    quick: bool = False
    only: tuple[str, ...] = ()
    data_root: Path = Path("data")
    flower: Path | None = None
    cores: int | None = None

    def wants(self, model: str) -> bool:
        """Whether a model is measured."""
        return not self.only or any(part.lower() in model.lower() for part in self.only)


def run(options: EngineOptions, tell: Tell) -> Iterator[EngineRow]:
    """A row for each model; ``tell`` hears what is being done.

    Raises:
        UnavailableError: the interpreter does not play Flower's rounds.
    """
    cores = options.cores or len(os.sched_getaffinity(0))
    pairs = 3 if options.quick else 15
    with tempfile.TemporaryDirectory() as folder, processes(cores) as opened:
        for model, name in _TRAINED:
            if options.wants(model):
                tell(f"{model}: compiling and dividing the data")
                case = _Case(Path(folder) / model.split()[0], model, cores, pairs)
                yield _trained(case, name, options.data_root, opened, tell)
        for model, floats, clients in _UNTRAINED:
            if options.wants(model):
                case = _Case(Path(folder) / str(floats), model, cores, pairs)
                sizes = floats, clients // 4 if options.quick else clients
                yield _untrained(case, sizes, opened, options.flower, tell)


@dataclass(frozen=True, slots=True)
class _Case:
    folder: Path
    model: str
    cores: int
    pairs: int

    def row(
        self, job: Job, opened: OpenWorkers, peer: EnginePeer | None, data: str, tell: Tell
    ) -> EngineRow:
        """Play rounds in turns."""
        turns = _Turns(peer, lambda round_id: self._tell(tell, round_id))
        run_local(job, opened=opened, watch=turns)
        ours, theirs = turns.ours[_WARM_UP:], turns.theirs[_WARM_UP:]
        clients = len(job.clients)
        row = EngineRow(
            engine="local",
            model=self.model,
            clients=clients,
            cores=self.cores,
            data=data,
            clients_per_second=_per_second(clients, ours),
            pairs=len(ours),
        )
        if peer is None:
            return row
        ratios = sorted(b.wall_s / a.wall_s for a, b in zip(ours, theirs, strict=True))
        cpu = sum(one.cpu_s for one in ours), sum(one.cpu_s for one in theirs)
        return msgspec.structs.replace(
            row,
            against=peer.name,
            plain_clients_per_second=_per_second(clients, theirs),
            ratio=round(statistics.median(ratios), 3),
            ratio_p25=round(ratios[len(ratios) // 4], 3),
            ratio_p75=round(ratios[-1 - len(ratios) // 4], 3),
            cpu_ratio=round(cpu[1] / cpu[0], 3) if all(cpu) else None,
        )

    def _tell(self, tell: Tell, round_id: int) -> None:
        if round_id > _WARM_UP:
            tell(f"{self.model}: pair {round_id - _WARM_UP} of {self.pairs}")


def _per_second(clients: int, rounds: Sequence[Sample]) -> float:
    return round(clients / statistics.median(one.wall_s for one in rounds), 2)


class _Turns:
    """Told of a round of ours, plays one of the peer's; notes what all processes of each used.

    Attributes:
        ours, theirs: all that a round cost.
    """

    def __init__(self, peer: EnginePeer | None, tell: Callable[[int], None]) -> None:
        self._peer, self._tell = peer, tell
        self.ours: list[Sample] = []
        self.theirs: list[Sample] = []
        self._own: frozenset[int] = frozenset()
        self._began = _now(self._own)

    def __call__(self, done: RoundRecord) -> None:
        """A round of ours is over."""
        peer = self._peer
        if not self.ours:  # now all processes of ours have been started, of the peer's those in one
            theirs = descendants(peer.process) if peer and peer.process else frozenset()
            self._own = descendants(os.getpid()) - theirs
        self.ours.append(_since(self._began, self._own))
        if peer is not None:
            others = descendants(os.getpid()) - self._own
            before = _now(others)
            wall_s = peer.seconds()
            self.theirs.append(_since(before, others)._replace(wall_s=wall_s))
        self._tell(done.round_id)
        self._began = _now(self._own)


def _now(others: frozenset[int]) -> Sample:
    return Sample(time.perf_counter(), time.process_time() + sum(map(cpu_s, others)))


def _since(before: Sample, others: frozenset[int]) -> Sample:
    wall_s = time.perf_counter() - before.wall_s
    return Sample(wall_s, _now(others).cpu_s - before.cpu_s)


def _trained(case: _Case, name: str, data_root: Path, opened: OpenWorkers, tell: Tell) -> EngineRow:
    from protofleet.benchmarks._plain_loop import PlainSpec, plain_rounds  # noqa: PLC0415 - torch

    whole = load_experiment(find(name))
    method = next(one for one in whole.methods if one.strategy == "fedavg")
    experiment = msgspec.structs.replace(whole, methods=(method,), seeds=(1,))
    case.folder.mkdir()
    preparation = Preparation(experiment=experiment, folder=case.folder, data_root=data_root)
    try:
        data, told = preparation.data(1), "UCI-HAR"
    except MissingDataError:
        data, told = _imitated(case.folder), "random, of UCI-HAR's shape"
    job = _job(experiment, case, preparation.bundle(method, 1, data), data)
    training = job.plan().settings
    model = experiment.model_of(method)
    spec = PlainSpec(
        model=model.name,
        settings=model.settings,
        classes=len(data.classes),
        clients=tuple(files.own for _, files in sorted(data.clients.items())),
        pooled=data.pooled,
        optimiser=training["optimiser"],
        epochs=training["epochs"],
        batch_size=training["batch_size"],
    )
    tell(f"{case.model}: first rounds")
    with plain_rounds(spec, case.cores) as plain:
        peer = EnginePeer(name="plain PyTorch", seconds=lambda: _timed(plain.round))
        return case.row(job, opened, peer, told, tell)


def _timed(play: Callable[[], object]) -> float:
    started = time.perf_counter()
    play()
    return time.perf_counter() - started


def _imitated(folder: Path) -> PreparedData:
    """Random examples in the place of UCI-HAR's."""
    rng = np.random.default_rng(0)
    classes = tuple(f"class {number}" for number in range(_CLASSES))

    def part(count: int) -> tuple[Any, Any]:
        x = rng.normal(size=(count, *_SHAPE)).astype(np.float32)
        return x, rng.integers(0, _CLASSES, count)

    clients = {}
    for number in range(_PEOPLE):
        (x_train, y_train), (x_test, y_test) = part(_TRAIN), part(_TEST)
        path = folder / f"{number:02}.npz"
        DeviceData(
            x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=classes
        ).save(path)
        clients[f"{number:02}"] = ClientFiles(own=path)
    x, y = part(_POOLED)
    np.savez(folder / "pooled.npz", x_test=x, y_test=y)
    return _prepared(clients, classes, _SHAPE, folder / "pooled.npz")


def _prepared(
    clients: dict[str, ClientFiles],
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    pooled: Path | None,
) -> PreparedData:
    any_file = next(iter(clients.values())).own
    return PreparedData(
        clients=clients,
        merged=any_file,
        pooled=pooled,
        classes=classes,
        input_shape=shape,
        key="benchmark",
    )


def _job(experiment: Experiment, case: _Case, bundle: Path, data: PreparedData) -> Job:
    folder = case.folder / "run"
    folder.mkdir()
    return Job(
        experiment=experiment,
        method=experiment.methods[0],
        seed=1,
        rounds=_WARM_UP + case.pairs,
        bundle=bundle,
        data=data,
        folder=folder,
        name="benchmark",
    )


_UNTRAINED_EXPERIMENT: Mapping[str, Any] = {
    "title": "without training",
    "paper": "none",
    "table": "none",
    "rounds": 1,
    "data": [{"name": "digits"}],
    "partition": {"kind": "natural"},
    "model": {"name": "synthetic"},
    "training": dict(SETTINGS),
    "methods": [{"label": "FedAvg", "strategy": "fedavg"}],
}


def _untrained(
    case: _Case,
    sizes: tuple[int, int],
    opened: OpenWorkers,
    flower: Path | None,
    tell: Tell,
) -> EngineRow:
    floats, clients = sizes
    case.folder.mkdir()
    bundle, file = case.folder / "model.pfb", case.folder / "client.npz"
    write_synthetic_bundle(bundle, floats, Ed25519PrivateKey.generate())
    examples = synthetic_data()
    examples.save(file)
    files = {f"{number:04}": ClientFiles(own=file) for number in range(clients)}
    data = _prepared(files, examples.classes, examples.x_train.shape[1:], None)
    job = _job(msgspec.convert(_UNTRAINED_EXPERIMENT, Experiment), case, bundle, data)
    tell(f"{case.model}: first rounds")
    if flower is None:
        return case.row(job, opened, None, "none", tell)
    with _flower(flower, (floats, clients, case.cores)) as peer:
        return case.row(job, opened, peer, "none", tell)


@contextmanager
def _flower(interpreter: Path, numbers: Sequence[int]) -> Iterator[EnginePeer]:
    script = Path(__file__).with_name("_flower_rounds.py")
    command = [str(interpreter), "-I", str(script), *map(str, numbers)]
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        if child.stdin is None or child.stdout is None:
            raise UnavailableError("Flower: its process has no pipes")
        asked, answers = child.stdin, child.stdout

        def answer() -> str:
            if not (line := answers.readline()):
                log.seek(0)
                words = log.read().decode(errors="replace").strip().splitlines() or ["nothing"]
                raise UnavailableError(
                    f"Flower in '{interpreter}': ended, its last words: {words[-1]}; it needs an "
                    "environment with flwr[simulation] (docs/benchmarks.md)"
                )
            return line.strip()

        def play() -> float:
            asked.write("\n")
            asked.flush()
            return float(answer())

        try:
            yield EnginePeer(name=f"Flower {answer()}", seconds=play, process=child.pid)
        finally:
            asked.close()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def show(rows: Sequence[EngineRow], echo: Callable[[str], object]) -> None:
    """A table for people."""
    head = ("model", "clients", "data", "clients/s", "against", "clients/s", "ratio", "CPU ratio")
    lines = [head, *map(_cells, rows)]
    for line in aligned(lines, right=(1, 3, 5)):
        echo(line)


def _cells(row: EngineRow) -> tuple[str, ...]:
    ours = (row.model, str(row.clients), row.data, short(row.clients_per_second))
    if row.ratio is None or row.plain_clients_per_second is None:
        return (*ours, "nothing", "", "", "")
    spread = f"{row.ratio:.2f} ({row.ratio_p25:.2f} to {row.ratio_p75:.2f})"
    cpu = "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}"
    return (*ours, str(row.against), short(row.plain_clients_per_second), spread, cpu)
