"""Rounds of a coordinator, a broker and light devices, each a process, beside a plain loop."""

from __future__ import annotations

import hashlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.benchmarks._process_times import cpu_s, descendants
from protofleet.benchmarks._synthetic_bundle import write_synthetic_bundle
from protofleet.benchmarks.load.device import shift
from protofleet.benchmarks.load.fleet import FleetOutcome, FleetSpec
from protofleet.bundle import Bundle
from protofleet.edge.learning.meter import high_water_bytes
from protofleet.errors import InputError, UnavailableError
from protofleet.firmware_sim.broker import BrokerOptions, open_broker
from protofleet.firmware_sim.processes import spawn, stop
from protofleet.tensors import blobs
from protofleet.threads import thread_variables

FEDERATION = "load"
_FILES_PER_DEVICE = 3
"""A socket, and a partial blob with its map."""
_FILES_BESIDE = 256
_WATCH_S = 0.05
_ROUND_S = 1800.0
_LIMIT_S = 7200.0
_WARM = 1
"""The first round waits for devices and warms everything up."""
_TOLERANCE = 1e-4
Process = subprocess.Popen[bytes]


class LoadRow(msgspec.Struct, frozen=True, kw_only=True):
    """One load.

    Attributes:
        devices: in every round.
        update_bytes: of each update; payloads have as many.
        rounds: that were measured; one before them was not.
        seconds_per_round: median time from one round's end to the next one's.
        closing_seconds: of that, from the last update's arrival on: aggregation and commit.
        bound_seconds: what a loop takes that reads, hashes and adds as many bytes, in one process.
        bound_cpu_seconds: its processor time, which on a busy machine is the fairer comparison.
        coordinator_peak_mb, broker_peak_mb: largest resident memory, in 10⁶ bytes.
        cpu_seconds: of the coordinator, for a round.
        broker_cpu_seconds, devices_cpu_seconds: of the other processes, for a round.
        connect_seconds: from the start of the devices until the first round opened with all.
        bytes_up, bytes_down: at the devices' sockets, in all.
    """

    devices: int
    update_bytes: int
    rounds: int
    seconds_per_round: float
    closing_seconds: float
    bound_seconds: float
    bound_cpu_seconds: float
    coordinator_peak_mb: float
    broker_peak_mb: float
    cpu_seconds: float
    broker_cpu_seconds: float
    devices_cpu_seconds: float
    connect_seconds: float
    bytes_up: int
    bytes_down: int

    def lines(self) -> list[str]:
        """For people."""
        size, cpu = f"{self.devices:,} devices x {self.update_bytes:,} bytes", self.cpu_seconds
        bound = self.bound_cpu_seconds
        others = f"broker {self.broker_cpu_seconds:.3g}, devices {self.devices_cpu_seconds:.3g}"
        peaks = f"coordinator {self.coordinator_peak_mb:.0f}, broker {self.broker_peak_mb:.0f}"
        rounds = f"{self.seconds_per_round:.3g} s a round, closing it {self.closing_seconds:.3g} s"
        return [
            f"{size}: {rounds}, bound {self.bound_seconds:.3g} s",
            f"  processor seconds a round: coordinator {cpu:.3g}, {others}; bound {bound:.3g}",
            f"  largest memory in MB: {peaks}",
            f"  all devices there after {self.connect_seconds:.3g} s",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked for.

    Attributes:
        devices: how many.
        update_bytes: of float32 parameters in each update.
        rounds: in all; the first one is not measured.
    """

    devices: int
    update_bytes: int
    rounds: int

    @property
    def floats(self) -> int:
        """Parameters of the model."""
        return self.update_bytes // 4


def measure(devices: int, update_bytes: int, rounds: int) -> LoadRow:
    """Run one load on this machine.

    Args:
        devices: how many.
        update_bytes: of float32 parameters in each update.
        rounds: to measure, beside a first one.

    Raises:
        InputError: the machine allows fewer open files.
        UnavailableError: Mosquitto is not installed, or the federation did not come to its end.
    """
    _allow_files(devices)
    load = Load(
        devices=devices, update_bytes=update_bytes - update_bytes % 4, rounds=rounds + _WARM
    )
    with (
        tempfile.TemporaryDirectory(prefix="protofleet-load-") as name,
        open_broker(BrokerOptions(kind="mosquitto")) as broker,
    ):
        row = federate(Path(name), broker.url, broker.process.pid, load)
        bound = plain_loop(Path(name) / "plain", load.devices, load.update_bytes)
    return msgspec.structs.replace(
        row, bound_seconds=round(bound[0], 4), bound_cpu_seconds=round(bound[1], 4)
    )


def plain_loop(folder: Path, count: int, size: int) -> tuple[float, float]:
    """Read so many files of ``size`` bytes, hash them and add them up in float64.

    Returns:
        Seconds, and seconds of processor time.
    """
    folder.mkdir()
    data = np.random.default_rng(0).normal(size=size // 4).astype(np.float32)
    paths = [folder / f"{number:05d}" for number in range(count)]
    for path in paths:
        path.write_bytes(data.tobytes())
    total = np.zeros(data.size, np.float64)
    started = time.perf_counter(), time.process_time()
    for path in paths:
        content = path.read_bytes()
        hashlib.sha256(content).digest()
        total += np.frombuffer(content, np.float32)
    return time.perf_counter() - started[0], time.process_time() - started[1]


def _allow_files(devices: int) -> None:
    needed = _FILES_PER_DEVICE * devices + _FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard < needed:
        raise InputError(
            f"{devices} devices: expected that this machine allows {needed} open files, it allows "
            f"{hard}; raise 'ulimit -Hn', or choose at most "
            f"{(hard - _FILES_BESIDE) // _FILES_PER_DEVICE} devices"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def federate(folder: Path, url: str, broker: int, load: Load) -> LoadRow:
    """Run coordinator and devices on a broker until their federation has ended.

    Args:
        folder: for everything.
        url: of the broker.
        broker: its process, or the one that has started it.
        load: how much.

    Returns:
        The row, without its bound.

    Raises:
        UnavailableError: it did not end well, or not every update was counted once.
    """
    spec = _prepare(folder, url, load)
    log, outcome = folder / "coordinator.log", folder / "outcome.json"
    python, environment = [sys.executable, "-m"], thread_variables(1)
    run = [*python, "protofleet", "coordinator", "run", str(folder / "federation.toml"), "--json"]
    fleet = [*python, "protofleet.benchmarks.load.fleet", str(spec)]
    started = time.time()
    coordinator = spawn(run, out=log, log=folder / "coordinator.err", env=environment)
    devices = spawn(fleet, out=outcome, log=folder / "fleet.err", env=environment)
    try:
        watched = _Watched(coordinator, devices, broker)
        watched.until_the_end(folder)
        devices.wait(_LIMIT_S)
    finally:
        stop([coordinator, devices])
    seen = msgspec.json.decode(outcome.read_bytes(), type=FleetOutcome)
    _check_delivered(seen, load)
    _check_mean(folder, load)
    return _row(log, watched, seen, load, started)


class _Watched:
    """Memory and processor time of the three processes while they live."""

    def __init__(self, coordinator: Process, fleet: Process, broker: int) -> None:
        self._coordinator, self._fleet = coordinator, fleet
        # Mosquitto is a child of the one that watches it.
        brokers = sorted(descendants(broker) - {broker, coordinator.pid, fleet.pid}) or [broker]
        self._ids = [[coordinator.pid], [fleet.pid], brokers]
        self.peaks = [0, 0, 0]
        self.at_opening: list[float] = []
        self.cpu = [0.0, 0.0, 0.0]

    def until_the_end(self, folder: Path) -> None:
        """Until the coordinator ends; raises UnavailableError unless that is well."""
        coordinator, fleet = self._coordinator, self._fleet
        log, deadline = folder / "coordinator.log", time.monotonic() + _LIMIT_S
        while coordinator.poll() is None and time.monotonic() < deadline:
            self._look()
            if not self.at_opening and b'"event":"round_closed"' in log.read_bytes():
                self.at_opening = list(self.cpu)
            if fleet.poll() not in (None, 0):
                break
            time.sleep(_WATCH_S)
        if coordinator.poll() != 0:
            words = [(folder / f"{n}.err").read_text()[-600:] for n in ("coordinator", "fleet")]
            raise UnavailableError(f"load: the federation did not finish: {' '.join(words)}")

    def _look(self) -> None:
        for index, ids in enumerate(self._ids):
            memory = [high_water_bytes(one) or 0 for one in ids]
            self.peaks[index] = max(self.peaks[index], *memory)
            self.cpu[index] = max(self.cpu[index], sum(map(cpu_s, ids)))


def _prepare(folder: Path, url: str, load: Load) -> Path:
    """Bundle and federation file; the file that says what the devices are."""
    key = Ed25519PrivateKey.generate()
    write_synthetic_bundle(folder / "model.pfb", load.floats, key)
    trusted = key.public_key().public_bytes_raw()
    bundle = Bundle.open(folder / "model.pfb", trusted=[trusted])
    (folder / "federation.toml").write_text(
        f'federation = "{FEDERATION}"\nbroker = "{url}"\nbundle = "model.pfb"\nrun_dir = "run"\n'
        f'trusted = ["{trusted.hex()}"]\nrounds = {load.rounds}\n'
        f"stop = {{patience = 0}}\n[cohort]\nminimum = {load.devices}\n"
        f"[round]\nquorum = {load.devices}\ndeadline_s = {_ROUND_S}\n"
    )
    spec = FleetSpec(
        broker=url,
        federation=FEDERATION,
        bundle=bundle.digest,
        layout_hash=bundle.manifest.layout_hash,
        devices=load.devices,
        most_bytes=load.update_bytes + 2**21,
        folder=str(folder / "light"),
        seconds=_LIMIT_S,
    )
    path = folder / "fleet.json"
    path.write_bytes(msgspec.json.encode(spec))
    return path


def _check_delivered(seen: FleetOutcome, load: Load) -> None:
    """Every update has its receipt, and nothing was refused; raises UnavailableError otherwise."""
    expected = load.devices * load.rounds
    if seen.refused or seen.delivered != expected:
        raise UnavailableError(
            f"load: expected {expected} updates delivered and none refused, got {seen.delivered}, "
            f"refused: {seen.refused or 'none'}"
        )


def _check_mean(folder: Path, load: Load) -> None:
    """The model has moved by what the devices have added; raises UnavailableError otherwise."""
    before = Bundle.open(folder / "model.pfb", any_signer=True).model().params
    after, _ = blobs.decode((folder / "run" / "global.safetensors").read_bytes(), max_bytes=2**40)
    step = load.rounds * statistics.fmean(map(shift, range(load.devices)))
    for name, value in before.items():
        found = float(np.abs(after[name] - value - step).max(initial=0.0))
        if found > _TOLERANCE:
            raise UnavailableError(
                f"load: tensor '{name}': expected the mean of all updates, it is {found:.3g} away"
            )


def _row(log: Path, watched: _Watched, seen: FleetOutcome, load: Load, started: float) -> LoadRow:
    rounds = load.rounds - _WARM
    events = [json.loads(line) for line in log.read_text().splitlines()]
    opened = [one["time_s"] for one in events if one["event"] == "round_opened"]
    closed = [one["time_s"] for one in events if one["event"] == "round_closed"]
    last = {one["round_id"]: one["time_s"] for one in events if one["event"] == "update_received"}
    spent = [
        (end - begin) / rounds for begin, end in zip(watched.at_opening, watched.cpu, strict=True)
    ]
    return LoadRow(
        devices=load.devices,
        update_bytes=load.update_bytes,
        rounds=rounds,
        seconds_per_round=round(
            statistics.median(after - before for before, after in pairwise(closed)), 4
        ),
        closing_seconds=round(
            statistics.median(
                end - last[number] for number, end in enumerate(closed, 1) if number > _WARM
            ),
            4,
        ),
        bound_seconds=0.0,
        bound_cpu_seconds=0.0,
        coordinator_peak_mb=round(watched.peaks[0] / 1e6, 1),
        broker_peak_mb=round(watched.peaks[2] / 1e6, 1),
        cpu_seconds=round(spent[0], 3),
        devices_cpu_seconds=round(spent[1], 3),
        broker_cpu_seconds=round(spent[2], 3),
        connect_seconds=round(opened[0] - started, 2),
        bytes_up=seen.bytes_up,
        bytes_down=seen.bytes_down,
    )
