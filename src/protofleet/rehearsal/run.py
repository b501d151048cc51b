"""One rehearsal: the plan of the federation's file, devices as the fleet's file says, and time."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np

from protofleet.bundle.manifest import Manifest
from protofleet.datasets import load_device_data
from protofleet.datasets.wrong_labels import with_wrong_labels
from protofleet.edge.learning.training import LocalData, check_data
from protofleet.errors import InputError
from protofleet.experiments._worker import WorkerSpec, WorkerTask
from protofleet.experiments.calibrating import calibrate
from protofleet.experiments.prepare import ClientFiles
from protofleet.experiments.progress import RunProgress
from protofleet.experiments.server_side import ServerSide
from protofleet.experiments.workers import OpenWorkers, Workers
from protofleet.federation.outcomes.calibration import Calibration, with_rate
from protofleet.federation.outcomes.outcome import outcome_of
from protofleet.federation.plan import Plan, make_plan
from protofleet.federation.records import Costs
from protofleet.federation.settings import FederationConfig
from protofleet.firmware_sim.world.habits import DAY_S, changes
from protofleet.firmware_sim.world.hardware import HostSpeed, Span, measure_host
from protofleet.firmware_sim.world.network import Network
from protofleet.firmware_sim.world.simulated_device import SimulatedDevice, Surroundings
from protofleet.rehearsal.answer import (
    Answer,
    group_answers,
    lived_days,
    round_line,
    target_day,
)
from protofleet.rehearsal.dry_run import dry_run
from protofleet.rehearsal.fleet_file import DeviceGroup, RehearsalFile, owners_of
from protofleet.rehearsal.run_folder import RunFolder, refuse_taken
from protofleet.rehearsal.simulation import RehearsedRound, Simulation
from protofleet.rehearsal.training import RealTraining, SizesOnly
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.units import byte_text

_TRIED, _PASSES = 3, 2
"""Owners whose training is measured, and how often: the first time programs are made ready."""

_MIB = 1 << 20
_STAY, _LABELS = 1001, 1002
"""Behind a device's seed, what is drawn of it beside its windows."""
_ROUNDS_KEPT = 2
"""Of a device's state, by the experiments' workers."""

Told = Callable[[str, RehearsedRound], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """What a local round costs.

    Attributes:
        host: this machine.
        example_s: seconds that it takes for an example of an owner.
        up_bytes: of an update.
        down_bytes: of a payload.
        memory_bytes: of a device's process, with the owner who has most examples.
    """

    host: HostSpeed
    example_s: float
    up_bytes: int
    down_bytes: int
    memory_bytes: int


End = Literal["low", "likely", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Where within their spread the assumptions are.

    Attributes:
        training: how long a training takes.
        watts: what that draws.
        rates: of all networks, as a multiple of what is assumed.
    """

    training: End = "likely"
    watts: End = "likely"
    rates: float = 1.0


OTHERWISE: Mapping[str, Assumed] = MappingProxyType(
    {
        "as assumed": Assumed(),
        "training takes the shortest time": Assumed(training="low"),
        "training takes the longest time": Assumed(training="high"),
        "a busy core draws least": Assumed(watts="low"),
        "a busy core draws most": Assumed(watts="high"),
        "networks are half as fast": Assumed(rates=0.5),
        "networks are twice as fast": Assumed(rates=2.0),
    }
)
"""Each of the assumptions at its ends, the others where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What all variants of a rehearsal have in common.

    Attributes:
        file: of the fleet.
        opened: opens workers.
        folder: that they may use.
        trains: whether training is run; else bytes, energy and participation alone are told.
        host: this machine.
        assumed: where within their spread the assumptions are.
        run_dir: run folder in which the rounds are kept; None: they are not.
    """

    file: RehearsalFile
    opened: OpenWorkers
    folder: Path
    trains: bool = True
    host: HostSpeed = field(default_factory=measure_host)
    assumed: Assumed = Assumed()
    run_dir: Path | None = None

    def answer(self, config: FederationConfig, label: str, seed: int, told: Told) -> Answer:
        """Live through the days.

        Args:
            config: the federation's, with the settings of this variant.
            label: of the variant.
            seed: added to the file's and the federation's.
            told: of every round.

        Raises:
            InputError: federation, bundle, data and fleet do not fit together, or the run folder
                holds a run.
        """
        if self.run_dir is not None:
            refuse_taken(self.run_dir)
        config = msgspec.structs.replace(config, seed=config.seed + seed)
        declared = make_plan(config)
        owners = self._mislabelled(owners_of(self.file), declared.bundle.manifest, seed)
        _check(declared)
        counts = _examples(owners.values(), declared.bundle.manifest)
        examples = {name: counts[path] for name, path in owners.items()}
        calibration = self._calibration(declared, owners)
        plan = declared if calibration is None else declared.calibrated(calibration.lr)
        spec = _spec(plan, owners)
        costs = self._costs(plan, spec, examples)
        _check_memory(self.file, costs.memory_bytes)
        if self.trains:
            _check_room(costs, len(owners))
        spans = self._spans(costs, examples)
        lives = self._lives(seed)
        lasts = {name: getattr(span, self.assumed.training) for name, span in spans.items()}
        of_run = self._run_folder(plan, lives, lasts, costs, calibration)
        with of_run as kept, self.opened(spec, {}, self.folder) as workers:
            run = RunProgress(plan.server_init(), {}, {}, ())
            real = RealTraining(plan, workers, run, None if kept is None else kept.keep)
            training = real if self.trains else SizesOnly(plan.server_init(), costs.down_bytes)
            simulation = Simulation(plan, lives, lasts, costs.up_bytes, training)
            rounds = []
            for done in simulation.rounds(self.file.start_s, self.file.end_s):
                rounds.append(done)
                told(label, done)
            if kept is not None:
                kept.finish(simulation.early_end)
        lines = tuple(round_line(one, self.file.start_s) for one in rounds)
        days, task = lived_days(simulation, self.file), plan.bundle.manifest.task
        less = METRICS[TASKS[task].selects].lower_is_better
        return Answer(
            label=label,
            seed=seed,
            days=days,
            groups=group_answers(self.file, lives, rounds, spans, days),
            rounds=lines,
            finished=simulation.finished,
            late_updates=simulation.late_updates,
            refused=tuple(real.refused),
            target_d=target_day(lines, self.file.target, less=less),
            outcome=outcome_of(task, real.owners) if self.trains else None,
            early_end=simulation.early_end,
            lr=None if calibration is None else calibration.lr,
            host=costs.host,
            example_s=costs.example_s,
            memory_bytes=costs.memory_bytes,
        )

    def _run_folder(
        self,
        plan: Plan,
        lives: Mapping[str, SimulatedDevice],
        lasts: Mapping[str, float],
        costs: RoundCost,
        calibration: Calibration | None,
    ) -> RunFolder | nullcontext[None]:
        if self.run_dir is None:
            return nullcontext()
        of_devices = {
            name: Costs(phases_s={"train": seconds}, peak_rss_bytes=costs.memory_bytes)
            for name, seconds in lasts.items()
        }
        return RunFolder(self.run_dir, plan, lives, of_devices, calibration)

    def _calibration(self, declared: Plan, owners: Mapping[str, Path]) -> Calibration | None:
        if not declared.rates:
            return None
        return calibrate(owners, declared, _spec(declared, owners), self.opened, self.folder)

    def _costs(self, plan: Plan, spec: WorkerSpec, examples: Mapping[str, int]) -> RoundCost:
        """Measured on the owners with the most, the fewest and a middle number of examples."""
        ordered = sorted(examples, key=lambda name: (examples[name], name))
        places = {round(one * (len(ordered) - 1) / (_TRIED - 1)) for one in range(_TRIED)}
        tried = sorted(ordered[place] for place in places)
        side, run = ServerSide(plan), RunProgress(plan.server_init(), {}, {}, ())
        order = side.order(1, final=False)
        sent = side.payloads(run, tried)
        tasks = [side.task(run, order, name, sent[name]) for name in tried]
        with self.opened(spec, {}, self.folder) as workers:
            for _ in range(_PASSES):
                results = [_timed(workers, task) for task in tasks]
        settings, most = msgspec.to_builtins(plan.settings), spec.clients[ordered[-1]].own
        tried_alone = dry_run(spec.bundle, most, spec.strategy, settings)
        trained = sum(seconds for seconds, _ in results) / sum(examples[name] for name in tried)
        return RoundCost(
            host=self.host,
            example_s=self.file.step_s or trained,
            up_bytes=ceil(sum(size for _, size in results) / len(results)),
            down_bytes=ceil(sum(len(one.blob) for one in sent.values()) / len(sent)),
            memory_bytes=tried_alone.memory_bytes,
        )

    def _spans(self, costs: RoundCost, examples: Mapping[str, int]) -> dict[str, Span]:
        """How long each device trains for a round."""
        found = {}
        for name, group in self.file.devices().items():
            slower = costs.host.slowdown(self.file.hardware_of(group))
            here = max(1, examples[name]) * costs.example_s
            found[name] = Span(
                low=slower.low * here, likely=slower.likely * here, high=slower.high * here
            )
        return found

    def _lives(self, seed: int) -> dict[str, SimulatedDevice]:
        days = ceil(self.file.end_s / DAY_S) + 1
        lives = {}
        for number, (name, group) in enumerate(self.file.devices().items()):
            around = self._around(group, days, (self.file.seed + seed, number))
            lives[name] = SimulatedDevice.at(around, self.file.start_s)
        return lives

    def _there_s(self, group: DeviceGroup, seed: tuple[int, int]) -> tuple[float, float]:
        """From when to when an owner takes part."""
        rng = np.random.default_rng((*seed, _STAY))
        joins, leaves = (
            math.inf if days is None else self.file.start_s + rng.uniform(*days) * DAY_S
            for days in (group.joins_d, group.leaves_d)
        )
        return (joins if group.joins_d[1] else 0.0), leaves

    def _mislabelled(
        self, owners: Mapping[str, Path], manifest: Manifest, seed: int
    ) -> dict[str, Path]:
        """Each device's data, with wrong labels where its group has some."""
        found, tokens = dict(owners), manifest.preprocessing.tokens is not None
        for number, (name, group) in enumerate(self.file.devices().items()):
            if not group.wrong_labels:
                continue
            rng = np.random.default_rng((self.file.seed + seed, number, _LABELS))
            data = load_device_data(owners[name], tokens=tokens)
            try:
                wrong = with_wrong_labels(data, group.wrong_labels, rng)
            except InputError as error:
                raise InputError(f"groups: '{group.name}': wrong_labels: {error}") from error
            self.folder.mkdir(parents=True, exist_ok=True)
            found[name] = self.folder / f"{name}-mislabelled.npz"
            wrong.save(found[name])
        return found

    def _around(self, group: DeviceGroup, days: int, seed: tuple[int, int]) -> Surroundings:
        hardware = self.file.hardware_of(group)
        return Surroundings(
            hardware=hardware,
            home=self._network(group.network),
            away=self._network(group.away),
            policy=group.policy,
            changes=changes(self.file.habits_of(group), days, seed, self._there_s(group, seed)),
            train_w=getattr(hardware.train_w, self.assumed.watts),
            keepalive_s=group.keepalive_s,
        )

    def _network(self, name: str) -> Network | None:
        found = self.file.network_named(name)
        if found is None:
            return None
        return msgspec.structs.replace(
            found,
            up_kbit_s=found.up_kbit_s * self.assumed.rates,
            down_kbit_s=found.down_kbit_s * self.assumed.rates,
        )


def _timed(workers: Workers, task: WorkerTask) -> tuple[float, int]:
    """Seconds of a whole local round, from blob to blob, and bytes of the update."""
    began = time.perf_counter()
    (result,) = workers.train([task])
    return time.perf_counter() - began, len(result.update)


def _check(plan: Plan) -> None:
    config = plan.config
    for section, is_there in (("schedule", plan.mixing is not None), ("cells", config.cells)):
        if is_there:
            raise InputError(
                f"[{section}]: a rehearsal in virtual time has rounds of one coordinator; leave it "
                "out of the federation file, or rehearse in real time: protofleet fleet run"
            )


def _check_memory(file: RehearsalFile, needed: int) -> None:
    """Whether each kind of device has the memory that a device's process takes."""
    for group in file.groups:
        memory = file.hardware_of(group).memory_mb * _MIB
        if needed > memory:
            raise InputError(
                f"groups: '{group.name}' ({group.hardware}) has {byte_text(memory)} of memory, and "
                f"a device's process takes {byte_text(needed)} for a local round, as tried here; "
                "take other hardware, a smaller model or smaller batches"
            )


def _check_room(costs: RoundCost, devices: int) -> None:
    """Whether this machine can hold what the devices keep of two rounds."""
    each = _ROUNDS_KEPT * (costs.up_bytes + costs.down_bytes)
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return  # macOS does not say
    left = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if each * devices > left:
        raise InputError(
            f"fleet: {devices} devices keep about {byte_text(each * devices)} between rounds, and "
            f"this machine has {byte_text(left)} left; rehearse {left // each} of them, or bytes, "
            "energy and participation alone: --no-training"
        )


def _spec(plan: Plan, owners: Mapping[str, Path]) -> WorkerSpec:
    return WorkerSpec(
        label="rehearsal",
        bundle=plan.config.bundle,
        strategy=plan.strategy.description.name,
        settings=with_rate(plan.settings, plan.rates[0]) if plan.rates else plan.settings,
        clients={name: ClientFiles(own=path) for name, path in owners.items()},
        pooled=None,
    )


def _examples(owners: Iterable[Path], manifest: Manifest) -> dict[Path, int]:
    """Training examples in each owner's file, which has to fit the bundle."""
    found = {}
    for path in set(owners):
        data = load_device_data(path, tokens=manifest.preprocessing.tokens is not None)
        try:
            check_data(LocalData(own=data), manifest)
        except InputError as error:
            raise InputError(f"data '{path}': {error}") from error
        found[path] = len(data.y_train)
    return found


def varied(config: FederationConfig, settings: Iterable[tuple[str, Any]]) -> FederationConfig:
    """A federation's file with other values.

    Args:
        config: of the file.
        settings: keys with dots, as ``codec.up`` or ``strategy.settings.epochs``.

    Raises:
        InputError: an unknown key, or a value that cannot be.
    """
    values = msgspec.to_builtins(config, enc_hook=str)
    for key, value in settings:
        *tables, last = key.split(".")
        table = values
        for name in tables:
            found = table.get(name)
            if found is None and name in table:
                found = table[name] = {}
            if not isinstance(found, dict):
                raise InputError(f"--vary {key}: '{name}' is no table of a federation file")
            table = found
        table[last] = value
    try:
        return msgspec.convert(values, FederationConfig, dec_hook=lambda _, text: Path(text))
    except (msgspec.ValidationError, InputError) as error:
        keys = ", ".join(key for key, _ in settings)
        raise InputError(f"--vary {keys}: {error}; see docs/coordinator.md") from error
