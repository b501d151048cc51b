"""A federation of processes on this host, one of whose devices may run on another machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from machine import say
from rich.console import Console

from protofleet.bundle import Bundle
from protofleet.bundle.keys import save_public_key
from protofleet.demo.commands import Step, export_arguments, pretrain_arguments, run_steps
from protofleet.demo.methods import network_of
from protofleet.demo.recipes import DemoData, prepare_digits
from protofleet.demo.settings import DemoSettings
from protofleet.errors import ProtofleetError
from protofleet.firmware_sim.broker import local_broker
from protofleet.firmware_sim.processes import EventFollower, spawn, stop

_NATIVE = (sys.executable,)
_POLL_S = 0.05
_DEADLINE_S = 7200.0  # an emulated round is a hundred times as long as a native one


@dataclass(frozen=True, kw_only=True)
class Material:
    """What every run of one strategy shares.

    Attributes:
        folder: where it lies.
        prepared: data of the devices.
        bundle: the signed bundle; ``signer.pem`` beside it is its key.
        strategy: its name.
        rounds: of a federation.
    """

    folder: Path
    prepared: DemoData
    bundle: Bundle
    strategy: str
    rounds: int

    @property
    def names(self) -> tuple[str, ...]:
        """Ids of the devices."""
        return tuple(self.data)

    @property
    def data(self) -> dict[str, Path]:
        """Each device's file."""
        return {d.id: d.data for d in self.prepared.devices if d.data is not None}

    @property
    def smallest(self) -> str:
        """The device with the fewest examples."""
        return min(self.names, key=lambda name: self.data[name].stat().st_size)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a device runs.

    Attributes:
        python: what starts its Python.
        environment: additions to the environment.
        backend: its inference runtime.
    """

    python: Sequence[str] = _NATIVE
    environment: Mapping[str, str] = field(default_factory=dict)
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A federation that finished.

    Attributes:
        folder: of the run: ``coordinator``, ``<device>.log``, ``store-<device>``.
        events: of each device, with ``after_s``, the time since its process was started.
        result: the coordinator's ``result.json``.
    """

    folder: Path
    events: Mapping[str, Sequence[dict[str, Any]]]
    result: dict[str, Any]


def prepare(folder: Path, strategy: str, devices: int, rounds: int) -> Material:
    """Digits for every device, and a model that was trained on a public part and exported."""
    settings = DemoSettings(
        data="digits",
        data_root=None,
        strategy=strategy,
        devices=devices,
        rounds=rounds,
        seed=0,
        broker=None,
        sensors="published",
    )
    folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare_digits(settings, folder)
    if not (folder / "bundle.pfb").exists():
        say(f"model vit_digits for {strategy}: central training and export")
        network, console = network_of(strategy), Console()
        for arguments in (
            pretrain_arguments(prepared, network, folder, settings.seed),
            export_arguments(prepared, network, folder, [strategy]),
        ):
            run_steps([Step(arguments=arguments)], console)
    bundle = Bundle.open(folder / "bundle.pfb", any_signer=True)
    save_public_key(bytes.fromhex(bundle.signer), folder / "signer.pem")
    return Material(
        folder=folder, prepared=prepared, bundle=bundle, strategy=strategy, rounds=rounds
    )


def federate(material: Material, folder: Path, places: Mapping[str, Place]) -> FinishedRun:
    """Run a federation from its beginning to its end over a Mosquitto of its own.

    Args:
        material: data, model, strategy.
        folder: a new one.
        places: where devices run; the others run on this host.

    Raises:
        ProtofleetError: a process ended early; its last words are quoted.
    """
    folder.mkdir(parents=True)
    with local_broker("mosquitto") as url:
        _write_federation(material, folder, url)
        followers, processes = {}, {}
        started = time.monotonic()
        try:
            processes["coordinator"] = _spawn(
                Place(),
                ("coordinator", "run", str(folder / "federation.toml"), "--json"),
                folder,
                "coordinator",
            )
            for name in material.names:
                place = places.get(name, Place())
                join = _join_arguments(material, folder, url, name, place)
                processes[name] = _spawn(place, join, folder, name)
                followers[name] = EventFollower(folder / f"{name}.jsonl")
            events = _follow(folder, processes, followers, started)
        finally:
            stop(list(processes.values()))
    result = msgspec.json.decode((folder / "run/result.json").read_bytes())
    return FinishedRun(folder=folder, events=events, result=result)


def _spawn(
    place: Place, arguments: Sequence[str], folder: Path, name: str
) -> subprocess.Popen[bytes]:
    return spawn(
        [*place.python, "-m", "protofleet", *arguments],
        out=folder / f"{name}.jsonl",
        log=folder / f"{name}.log",
        env=place.environment,
    )


def _join_arguments(
    material: Material, folder: Path, url: str, name: str, place: Place
) -> list[str]:
    values = {
        "broker": url,
        "federation": "aarch64",
        "bundle": material.folder / "bundle.pfb",
        "trust": material.folder / "signer.pem",
        "data": material.data[name],
        "store": folder / f"store-{name}",
        "id": name,
    }
    if place.backend is not None:
        values["backend"] = place.backend
    pairs = [part for key, value in values.items() for part in (f"--{key}", str(value))]
    return ["device", "join", "--json", *pairs]


def _write_federation(material: Material, folder: Path, url: str) -> None:
    values: dict[str, Any] = {
        "federation": "aarch64",
        "broker": url,
        "bundle": str(material.folder.resolve() / "bundle.pfb"),
        "trusted": [material.bundle.signer],
        "run_dir": "run",
        "rounds": material.rounds,
        # Adam divides by a gradient's size: where that is nothing but rounding, so is the step.
        "strategy": {
            "name": material.strategy,
            "settings": {"epochs": 1, "optimiser": {"kind": "sgd", "lr": 0.005}},
        },
        "cohort": {"minimum": len(material.names)},
        "round": {"deadline_s": _DEADLINE_S, "quorum": 1.0},
        "liveness": {"grace_s": _DEADLINE_S},
        "limits": {"keep_states": material.rounds},
        "evaluation": {"pooled": str(material.prepared.pooled.resolve())},
    }
    (folder / "federation.toml").write_bytes(msgspec.toml.encode(values))


def _follow(
    folder: Path,
    processes: Mapping[str, subprocess.Popen[bytes]],
    followers: Mapping[str, EventFollower],
    started: float,
) -> dict[str, list[dict[str, Any]]]:
    """Events of the devices until every process has ended well."""
    events: dict[str, list[dict[str, Any]]] = {name: [] for name in followers}
    running = True
    while running:
        running = any(process.poll() is None for process in processes.values())
        for name, follower in followers.items():
            for event in follower.read():
                events[name].append({"after_s": time.monotonic() - started, **event})
                say(f"{event['event']} {name} {event.get('round_id', '')}")
        for name, process in processes.items():
            if process.returncode:
                words = (folder / f"{name}.log").read_text(errors="replace")[-1500:]
                raise ProtofleetError(f"{name} ended with status {process.returncode}:\n{words}")
        time.sleep(_POLL_S)
    return events
