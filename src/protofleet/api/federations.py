"""A whole federation on this machine, by the engines that experiments and demonstrations use."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from protofleet.api.results import (
    Results,
    RunFacts,
    alone_folder,
    bundle_place,
    read_results,
    save_facts,
)
from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData, load_device_data
from protofleet.datasets.arrays import doubt_of_scale
from protofleet.datasets.federate import pooled
from protofleet.errors import InputError
from protofleet.experiments.config import Method, SlowClients, alone
from protofleet.experiments.local import run_local
from protofleet.experiments.mqtt import run_mqtt
from protofleet.experiments.prepare import ClientFiles, PreparedData, write_pooled
from protofleet.experiments.processes import processes
from protofleet.experiments.run import Job, Watch
from protofleet.experiments.store import MethodResult, claim, load_run
from protofleet.federation.plan import Plan
from protofleet.federation.schedules.early_stopping import StopSettings
from protofleet.federation.schedules.schedule_settings import ScheduleSettings
from protofleet.federation.settings import AggregationSettings, CodecSettings
from protofleet.federation.suitability import build_for
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.topics import check_id

Engine = Literal["local", "mqtt"]
Baseline = Literal["local"]
_ARRAYS = ("x_train", "y_train", "x_test", "y_test", "boxes_train", "boxes_test")
_T = TypeVar("_T")


def _nothing(_: object) -> None:
    """Watch no round."""


@dataclass(frozen=True, slots=True)
class Federation:
    """A federation of clients whose data are on this machine: build it, then ``run`` it.

    The sections have the keys of a federation file (``docs/coordinator.md``), so that a coordinator
    and devices can run as it is what was tried here.

    Args:
        bundle: file or folder of the signed bundle, as ``export`` writes it.
        clients: each client's data by its name, or the ``.npz`` file that holds them.
        rounds: how many.
        strategy: its name (``protofleet strategies``); None: the bundle's.
        settings: of the strategy, over the bundle's.
        seed: of cohorts and of all local training; the same gives the same bits.
        cohort: who takes part in a round: ``"all"``, a fraction (float) or a count (int).
        schedule: section ``[schedule]``, such as ``{"kind": "buffered", "buffer": 3}``, which
            needs ``run("mqtt")``: only processes of their own take time of their own.
        codec: section ``[codec]``, such as ``{"up": "int8"}``.
        aggregation: section ``[aggregation]``, such as ``{"kind": "median"}``.
        stop: section ``[stop]``, such as ``{"patience": 0}``: all ``rounds``, whatever they bring.
        slow: ``{"every": 4, "slowdown": 10.0}``: each fourth client takes ten times as long; for
            ``run("mqtt")``.
        trusted: raw public keys of the bundle's signer; empty: those of the user's trust store, and
            this user's own.
        folder: of the run, with everything that ``read_results`` needs; None: a new one under
            ``runs/``. An interrupted run in it goes on.

    Raises:
        InputError: no clients, a name that no device may have, an unknown key of a section, or no
            bundle.
        RefusedError: the bundle is not what was signed, or its signer is not trusted.
    """

    bundle: Path | str
    clients: Mapping[str, DeviceData | Path | str]
    _: KW_ONLY
    rounds: int = 10
    strategy: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    cohort: Literal["all"] | int | float = "all"
    schedule: Mapping[str, Any] = field(default_factory=dict)
    codec: Mapping[str, Any] = field(default_factory=dict)
    aggregation: Mapping[str, Any] = field(default_factory=dict)
    stop: Mapping[str, Any] = field(default_factory=dict)
    slow: Mapping[str, Any] | None = None
    trusted: Collection[bytes] = ()
    folder: Path | str | None = None

    def __post_init__(self) -> None:
        if not self.clients:
            raise InputError("federation: expected at least one client, got none")
        for name in self.clients:
            check_id(name, f"client '{name}'")
        if self.rounds < 1:
            raise InputError(f"federation: expected at least one round, got {self.rounds}")
        self._stop()
        self._method(Bundle.open(self.bundle, trusted=self.trusted))

    def run(
        self,
        engine: Engine = "local",
        *,
        workers: int | None = None,
        broker: BrokerAccess | str | None = None,
        watch: Callable[[Any], None] = _nothing,
        baseline: Baseline | None = None,
    ) -> Results:
        """Run to the end, or go on with what an interrupted call has left in ``folder``.

        Args:
            engine: ``local``: clients train in processes of this machine, without a broker;
                ``mqtt``: a coordinator and a process for each client talk over a broker. Both give
                the same scores where the schedule has rounds.
            workers: processes of the local engine; None: one per core.
            broker: of ``mqtt``: ``mqtt://host:port``; None: one is started for the run.
            watch: told of every finished round, a ``RoundRecord``.
            baseline: ``local``: afterwards each client trains alone as well, as often as in the run
                and with the same optimiser, by the local engine in the folder ``alone`` within the
                run's; ``Results.outcome`` tells who would do better so.

        Returns:
            The results.

        Raises:
            InputError: strategy, settings, bundle and data do not fit together, or ``folder`` holds
                another run.
            UnavailableError: no broker, or no device is left.
            ProtofleetError: a worker or the coordinator ended early.
        """
        if engine not in ("local", "mqtt"):
            raise InputError(f"federation: expected engine 'local' or 'mqtt', got '{engine}'")
        if baseline not in (None, "local"):
            raise InputError(f"federation: expected baseline 'local' or None, got '{baseline}'")
        folder = (_new_folder() if self.folder is None else Path(self.folder)).resolve()
        clients = self._loaded()
        job = self._job(folder, clients)
        plan = job.plan()
        alone = None if baseline is None else self._alone(plan, folder)
        if not claim(folder, job.identity(plan, engine)):
            raise InputError(
                f"folder '{folder}': holds a run with other data or settings; choose another "
                "folder, or remove it"
            )
        _write_data(clients, job)
        names, strategy = tuple(sorted(self.clients)), plan.strategy.description.name
        save_facts(
            folder,
            RunFacts(
                strategy=strategy,
                settings=plan.settings,
                clients=names,
                device_troubles=_doubts(clients, plan.bundle.manifest.preprocessing),
            ),
        )
        done = load_run(folder)
        if done is None or not done.finished or _goes_on(done, job):
            done = _run(job, engine, workers, broker, watch)
        if alone is not None:
            rounds = _aggregated(done)
            before = load_run(alone_folder(folder))
            if before is not None and before.finished and _aggregated(before) != rounds:
                shutil.rmtree(alone_folder(folder))  # the run has gone on since
            replace(alone, rounds=rounds).run(workers=workers)
        return read_results(folder)

    def _alone(self, plan: Plan, folder: Path) -> Federation:
        """The same clients in the same rounds, each by itself.

        Raises:
            InputError: the bundle was not exported for that, which is told before anybody trains.
        """
        known = build_for(plan.bundle.manifest, plan.model, "local", {}).settings
        common = {
            name: value for name, value in plan.settings.items() if name in known.__struct_fields__
        }
        return replace(
            self,
            strategy="local",
            settings=common,
            schedule={},
            codec={},
            aggregation={},
            stop={"patience": 0},
            slow=None,
            folder=alone_folder(folder),
        )

    def _loaded(self) -> dict[str, DeviceData]:
        tokens = Bundle.open(self.bundle, trusted=self.trusted).manifest.preprocessing.tokens
        return {
            name: given
            if isinstance(given, DeviceData)
            else load_device_data(Path(given), tokens=tokens is not None)
            for name, given in self.clients.items()
        }

    def _job(self, folder: Path, clients: Mapping[str, DeviceData]) -> Job:
        """The run, with its files in ``folder``; data are not written yet."""
        bundle = self._kept_bundle(folder)
        method, name, place = self._method(bundle), bundle.manifest.name, folder / "data"
        own = next(iter(clients.values()))
        return Job(
            experiment=alone(
                method,
                title=name,
                rounds=self.rounds,
                seed=self.seed,
                cohort=self.cohort,
                slow=_section("slow", self.slow, SlowClients),
            ),
            method=method,
            seed=self.seed,
            rounds=self.rounds,
            bundle=bundle_place(folder),
            data=PreparedData(
                clients={one: ClientFiles(own=place / f"{one}.npz") for one in clients},
                merged=place / "merged.npz",  # of central training, which is no federation
                pooled=place / "pooled.npz",
                classes=own.classes,
                input_shape=tuple(own.x_train.shape[1:]),
                key=_digest(clients),
            ),
            folder=folder,
            name=name,
            stop=self._stop(),
            finds_rate=True,
        )

    def _stop(self) -> StopSettings:
        found: StopSettings = _section("stop", self.stop, StopSettings)
        return found

    def _kept_bundle(self, folder: Path) -> Bundle:
        given, place = Path(self.bundle), bundle_place(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            if given.is_dir():
                shutil.copytree(given, place)
            else:
                shutil.copyfile(given, place)
        kept = Bundle.open(place, trusted=self.trusted)
        if kept.digest != Bundle.open(given, trusted=self.trusted).digest:
            raise InputError(f"folder '{folder}': holds a run of another bundle; choose another")
        return kept

    def _method(self, bundle: Bundle) -> Method:
        aggregation = _section("aggregation", self.aggregation, AggregationSettings)
        return Method(
            label="federation",
            strategy=self.strategy or bundle.manifest.strategy.name,
            settings=dict(self.settings),
            schedule=_section("schedule", self.schedule, ScheduleSettings),
            codec=_section("codec", self.codec, CodecSettings),
            aggregation=aggregation,
        )


def _aggregated(done: MethodResult) -> int:
    """Rounds without a final fit."""
    return sum(not one.final for one in done.rounds)


def _goes_on(done: MethodResult, job: Job) -> bool:
    """Whether a run that has ended early is to have more rounds."""
    end = done.early_end
    return end is not None and end.limit(job.rounds, job.stop) > end.after


def _run(
    job: Job,
    engine: Engine,
    workers: int | None,
    broker: BrokerAccess | str | None,
    watch: Watch,
) -> MethodResult:
    if engine == "mqtt":
        access = BrokerAccess(url=broker) if isinstance(broker, str) else broker
        return run_mqtt(job, broker=access, watch=watch)
    with processes(workers or os.cpu_count() or 1) as opened:
        return run_local(job, opened=opened, watch=watch, keep=True)


def _doubts(
    clients: Mapping[str, DeviceData], preprocessing: Preprocessing
) -> dict[str, tuple[str, ...]]:
    """What is strange about the clients' data → about whose."""
    mean, std = preprocessing.mean, preprocessing.std
    far = tuple(
        name
        for name, one in sorted(clients.items())
        if preprocessing.tokens is None and doubt_of_scale(one.x_train, name, mean, std)
    )
    return {"scale": far} if far else {}


def _section(name: str, given: Mapping[str, Any] | None, kind: type[_T]) -> Any:
    """The settings record; None stays None."""
    if given is None:
        return None
    try:
        return msgspec.convert(dict(given), kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"federation, {name}: {error}; see docs/coordinator.md") from error


def _digest(clients: Mapping[str, DeviceData]) -> str:
    """Of everybody's data."""
    digest = hashlib.sha256()
    for name, data in sorted(clients.items()):
        digest.update(repr((name, data.classes, data.targets)).encode())
        for one in _ARRAYS:
            if (array := getattr(data, one)) is not None:
                digest.update(repr((one, array.shape, array.dtype.str)).encode())
                digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _write_data(clients: Mapping[str, DeviceData], job: Job) -> None:
    """What workers and devices read, unless it is there: nothing else is in a run's folder."""
    folder = job.folder / "data"
    if (folder / "pooled.npz").exists():
        return
    folder.mkdir(exist_ok=True)
    for name, data in clients.items():
        data.save(job.clients[name].own)
    write_pooled(pooled(clients), None, folder, job.seed)


def _new_folder() -> Path:
    now = dt.datetime.now().astimezone()
    return Path("runs") / f"{now:%Y%m%d-%H%M%S-%f}-federation"
