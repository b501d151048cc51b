"""One demonstration from data to report; interrupted anywhere, the same call goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from protofleet.broker.folder import find_mosquitto
from protofleet.bundle import Bundle
from protofleet.demo.browsers import check_browsers, running_browsers
from protofleet.demo.commands import (
    export_arguments,
    pretrain_arguments,
    run_step,
    shown,
)
from protofleet.demo.live import LiveView
from protofleet.demo.outcome import finish
from protofleet.demo.recipes import FLEET_SEED, RECIPES, DemoData, dealt_backends
from protofleet.demo.settings import DemoSettings
from protofleet.firmware_sim.broker import local_broker
from protofleet.firmware_sim.profile import FleetFile
from protofleet.firmware_sim.rehearsal import rehearse
from protofleet.wire.broker_access import BrokerAccess

_DEADLINE_S = 3600.0  # a rehearsal waits for every device, so that a seed gives one result


def run_demo(settings: DemoSettings, folder: Path, console: Console) -> Path:
    """Run or resume a demonstration.

    Args:
        settings: what to show.
        folder: where everything is kept: data, bundle, device stores, results.
        console: progress and the final table go here.

    Returns:
        The report's path.

    Raises:
        ProtofleetError: a step failed; nothing that was finished is lost.
    """
    if settings.browsers:
        check_browsers()
    settings.bind(folder)
    started = time.monotonic()
    console.rule(f"1/4  data: {settings.data}")
    prepared = RECIPES[settings.data](settings, folder)
    console.print(prepared.title)
    bundle = _make_bundle(settings, prepared, folder, console)
    browsers = f", {settings.browsers} in browsers" if settings.browsers else ""
    console.rule(
        f"4/4  {settings.devices} device processes{browsers}, strategy {settings.strategy}"
    )
    with _broker(settings.broker, console) as broker:
        _federate(settings, prepared, (folder, broker, bundle), console)
    return finish(prepared.title, folder, console, seconds=time.monotonic() - started)


def _make_bundle(
    settings: DemoSettings, prepared: DemoData, folder: Path, console: Console
) -> Bundle:
    path = folder / "bundle.pfb"
    if not path.exists():
        pretrain = pretrain_arguments(prepared, folder, settings.seed)
        console.rule("2/4  central training")
        console.print(f"$ {shown(pretrain)}", style="dim", soft_wrap=True)
        run_step(pretrain)
        export = export_arguments(prepared, folder, settings.strategy)
        console.rule("3/4  export to ONNX and TFLite programs, checked against PyTorch")
        console.print(f"$ {shown(export)}", style="dim", soft_wrap=True)
        run_step(export)
    return Bundle.open(path, any_signer=True)


@contextmanager
def _broker(given: BrokerAccess | None, console: Console) -> Iterator[BrokerAccess]:
    if given is not None:
        yield given
        return
    kind = "Mosquitto" if find_mosquitto() else "amqtt, embedded: for demonstrations only"
    with local_broker() as started:
        console.print(f"broker: {started} ({kind})")
        yield BrokerAccess(url=started)


def _federate(
    settings: DemoSettings,
    prepared: DemoData,
    place: tuple[Path, BrokerAccess, Bundle],
    console: Console,
) -> None:
    folder, broker, bundle = place
    name = _federation_name(folder)
    federation = folder / "federation.toml"
    federation.write_bytes(_federation(settings, prepared, (name, broker, bundle)))
    profiles, devices = dealt_backends(settings.backend, prepared.devices[: settings.devices])
    fleet_file = FleetFile(
        federation=name,
        broker=broker,
        bundle=folder.resolve() / "bundle.pfb",
        folder=folder / "devices",
        devices=tuple(
            msgspec.structs.replace(device, pooled=prepared.pooled) for device in devices
        ),
        seed=FLEET_SEED,
        trust=(bundle.signer,),
        profiles=profiles,
    )
    data = [one.data for one in prepared.devices[settings.devices :] if one.data is not None]
    with (
        LiveView(console, settings.rounds) as view,
        running_browsers(federation, data, folder / "browsers") if data else nullcontext() as check,
    ):
        rehearse(federation, fleet_file, folder / "coordinator", view.show, check=check)


def _federation_name(folder: Path) -> str:
    """A name that topics allow, whatever the folder is called."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"demo-{folder.resolve().name}")[:64]


def _federation(
    settings: DemoSettings, prepared: DemoData, place: tuple[str, BrokerAccess, Bundle]
) -> bytes:
    name, broker, bundle = place
    values: dict[str, Any] = {
        "federation": name,
        "broker": broker.to_table(),
        "bundle": "bundle.pfb",
        "trusted": [bundle.signer],
        "run_dir": "coordinator",
        "rounds": settings.rounds,
        "seed": settings.seed,
        "strategy": {"name": settings.strategy, "settings": prepared.strategy_settings},
        "cohort": {"minimum": settings.participants},
        "round": {"deadline_s": _DEADLINE_S, "quorum": 1.0},
        "liveness": {"grace_s": 600.0},
        "evaluation": {"pooled": "data/pooled.npz"},
    }
    return msgspec.toml.encode(values)
