"""The engines of experiments in clients per second, beside what one would use instead.

The local engine with training and scoring: beside a plain PyTorch loop (``_plain_loop``) of the
same model, data, batches, optimiser and scores. Without training, so that the engine is all that is
left: beside Flower's simulation engine (``_flower_rounds``) where an interpreter that has it is
given. Ray's engine: beside the local one. Both sides play their rounds in turns, so that a
machine's moods hit them equally.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.benchmarks._engine_peers import (
    EnginePeer,
    flower_engine,
    local_engine,
    plain_loop,
)
from protofleet.benchmarks._process_times import cpu_s, descendants
from protofleet.benchmarks._rows import aligned, met_word, short, targets_line
from protofleet.benchmarks._synthetic_bundle import (
    SETTINGS,
    synthetic_data,
    write_synthetic_bundle,
)
from protofleet.benchmarks._timing import Sample
from protofleet.datasets import DeviceData
from protofleet.errors import MissingDataError
from protofleet.experiments.config import Experiment, find, load_experiment
from protofleet.experiments.local import run_local
from protofleet.experiments.prepare import ClientFiles, Preparation, PreparedData
from protofleet.experiments.processes import processes
from protofleet.experiments.ray_workers import ray_cluster
from protofleet.experiments.run import Job
from protofleet.experiments.workers import OpenWorkers
from protofleet.federation.records import RoundRecord

Tell = Callable[[str], object]
"""Progress for people."""
MeasuredEngine = Literal["local", "ray"]
_ENGINES: dict[MeasuredEngine, Callable[[int], AbstractContextManager[OpenWorkers]]] = {
    "local": processes,
    "ray": ray_cluster,
}
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
        engine: ``local`` or ``ray``.
        model: what a client trains, or how large what it returns untrained is.
        clients: of a round.
        cores: of either side.
        data: which, or what stands in for it.
        clients_per_second: median over the rounds.
        against: what is beside it; None: nothing.
        plain_clients_per_second: of that, likewise.
        cpu_ms, plain_cpu_ms: processor time per client, of all processes of either side.
        ratio: median over pairs of rounds of ours ÷ theirs; above 1 we are faster.
        ratio_p25, ratio_p75: quartiles of these.
        cpu_ratio: processor time of theirs ÷ ours; other work on the machine disturbs it less.
            None: not known here.
        target: least ``ratio``; None where the row only informs.
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
    cpu_ms: float | None = None
    plain_cpu_ms: float | None = None
    ratio: float | None = None
    ratio_p25: float | None = None
    ratio_p75: float | None = None
    cpu_ratio: float | None = None
    target: float | None = None
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What is measured, and beside what.

    Attributes:
        engine: which one is measured.
        quick: fewer rounds and clients.
        only: parts of models' names; empty: all.
        data_root: folder of the published data sets; UCI-HAR's shape is imitated where it lacks.
        flower: interpreter that has ``flwr[simulation]``, to be beside the local engine; None: no
            comparison with it.
        cores: processes of either side; None: one per core.
    """

    engine: MeasuredEngine = "local"
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
        ModuleNotFoundError: Ray is asked for and not installed.
        UnavailableError: the interpreter does not play Flower's rounds.
    """
    cores = options.cores or len(os.sched_getaffinity(0))
    pairs = 3 if options.quick else 15
    with tempfile.TemporaryDirectory() as folder, _ENGINES[options.engine](cores) as opened:
        for model, name in _TRAINED:
            if options.wants(model):
                tell(f"{model}: compiling and dividing the data")
                case = _Case(Path(folder) / model.split()[0], model, options.engine, cores, pairs)
                yield _trained(case, name, options.data_root, opened, tell)
        for model, floats, clients in _UNTRAINED:
            if options.wants(model):
                case = _Case(Path(folder) / str(floats), model, options.engine, cores, pairs)
                sizes = floats, clients // 4 if options.quick else clients
                yield _untrained(case, sizes, opened, options.flower, tell)


@dataclass(frozen=True, slots=True)
class _Case:
    folder: Path
    model: str
    engine: MeasuredEngine
    cores: int
    pairs: int

    def beside(
        self, job: Job, local: Callable[[], AbstractContextManager[EnginePeer | None]]
    ) -> AbstractContextManager[EnginePeer | None]:
        """What plays its rounds in turn with ours: ``local`` makes what the local engine meets."""
        return local() if self.engine == "local" else local_engine(job, self.cores)

    def row(
        self, job: Job, opened: OpenWorkers, peer: EnginePeer | None, data: str, tell: Tell
    ) -> EngineRow:
        """Play rounds in turns."""
        turns = _Turns(peer, lambda round_id: self._tell(tell, round_id))
        run_local(job, opened=opened, watch=turns, engine=self.engine)
        ours, theirs = turns.ours[_WARM_UP:], turns.theirs[_WARM_UP:]
        clients = len(job.clients)
        row = EngineRow(
            engine=self.engine,
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
        cpu_ms, plain_cpu_ms = _cpu_ms(clients, ours), _cpu_ms(clients, theirs)
        return msgspec.structs.replace(
            row,
            against=peer.name,
            plain_clients_per_second=_per_second(clients, theirs),
            ratio=round(statistics.median(ratios), 3),
            ratio_p25=round(ratios[len(ratios) // 4], 3),
            ratio_p75=round(ratios[-1 - len(ratios) // 4], 3),
            cpu_ms=cpu_ms,
            plain_cpu_ms=plain_cpu_ms,
            cpu_ratio=round(plain_cpu_ms / cpu_ms, 3) if cpu_ms and plain_cpu_ms else None,
            target=peer.target,
        )

    def _tell(self, tell: Tell, round_id: int) -> None:
        if round_id > _WARM_UP:
            tell(f"{self.model}: pair {round_id - _WARM_UP} of {self.pairs}")


def _per_second(clients: int, rounds: Sequence[Sample]) -> float:
    return round(clients / statistics.median(one.wall_s for one in rounds), 2)


def _cpu_ms(clients: int, rounds: Sequence[Sample]) -> float | None:
    """Per client; None: not known here."""
    spent_s = sum(one.cpu_s for one in rounds)
    return round(1e3 * spent_s / clients / len(rounds), 3) or None


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
    tell(f"{case.model}: first rounds")
    with case.beside(job, lambda: plain_loop(job, case.cores)) as peer:
        return case.row(job, opened, peer, told, tell)


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
    numbers = floats, clients, case.cores
    with case.beside(
        job, lambda: flower_engine(flower, numbers) if flower else nullcontext()
    ) as peer:
        return case.row(job, opened, peer, "none", tell)


def show(rows: Sequence[EngineRow], echo: Callable[[str], object]) -> None:
    """A table for people."""
    times = ("clients/s", "CPU ms")
    head = ("model", "clients", "data", *times, "against", *times, "ratio", "CPU ratio")
    lines = [(*head, "target", ""), *map(_cells, rows)]
    for line in aligned(lines, right=(1, 3, 4, 6, 7, 10)):
        echo(line)


def verdict(rows: Sequence[EngineRow]) -> str:
    """How many targets are met, and the rows that miss theirs."""
    return targets_line((f"{row.model}, {row.against}", row.ratio, row.target) for row in rows)


def _cells(row: EngineRow) -> tuple[str, ...]:
    ours = (row.model, str(row.clients), row.data, short(row.clients_per_second))
    if row.ratio is None or row.plain_clients_per_second is None:
        return (*ours, "", "nothing", "", "", "", "", "", "")
    return (
        *ours,
        _short(row.cpu_ms),
        str(row.against),
        short(row.plain_clients_per_second),
        _short(row.plain_cpu_ms),
        f"{row.ratio:.2f} ({row.ratio_p25:.2f} to {row.ratio_p75:.2f})",
        "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}",
        _short(row.target),
        met_word(row.ratio, row.target),
    )


def _short(value: float | None) -> str:
    return "" if value is None else short(value)
