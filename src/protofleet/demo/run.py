"""One demonstration from data to report; interrupted anywhere, the same call goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from protofleet.broker.folder import find_mosquitto
from protofleet.bundle import Bundle
from protofleet.demo.browsers import check_browsers, running_browsers
from protofleet.demo.commands import (
    Step,
    export_arguments,
    pretrain_arguments,
    run_steps,
)
from protofleet.demo.comparison import compare
from protofleet.demo.live import LiveView
from protofleet.demo.methods import Network, methods_of, network_of
from protofleet.demo.outcome import finish, with_comparison
from protofleet.demo.recipes import FLEET_SEED, RECIPES, DemoData, dealt_backends, settings_of
from protofleet.demo.settings import DemoSettings
from protofleet.federation.records import RunRecord, load_record
from protofleet.firmware_sim.broker import local_broker
from protofleet.firmware_sim.profile import FleetFile
from protofleet.firmware_sim.rehearsal import rehearse
from protofleet.report import ComparedMethod
from protofleet.settings import to_toml
from protofleet.wire.mqtt.broker_access import BrokerAccess

_BUNDLE, _OTHER = "bundle.pfb", "comparison"
_DEADLINE_S = 3600.0  # a rehearsal waits for every device, so that a seed gives one result


@dataclass(frozen=True, slots=True)
class _Heading:
    """Headings of so many steps."""

    console: Console
    steps: int

    def show(self, number: int, title: str) -> None:
        self.console.rule(f"{number}/{self.steps}  {title}")


def run_demo(settings: DemoSettings, folder: Path, console: Console, results: Console) -> Path:
    """Run or resume a demonstration.

    Args:
        settings: what to show.
        folder: where everything is kept: data, bundle, device stores, results.
        console: progress goes here; a quiet one makes the steps quiet, too.
        results: the final tables go here.

    Returns:
        The report's path.

    Raises:
        ProtofleetError: a step failed; nothing that was finished is lost.
    """
    if settings.browsers:
        check_browsers()
    settings.bind(folder)
    started = time.monotonic()

    heading = _Heading(console, 5 if settings.compare else 4)
    heading.show(1, f"data: {settings.data}")
    prepared = RECIPES[settings.data](settings, folder)
    console.print(prepared.title)
    bundles = _make_bundles(settings, prepared, folder, heading)
    run = _run_of(settings, folder)
    if run is None:
        heading.show(4, f"{_fleet(settings)}, strategy {settings.strategy}")
        bundle = Bundle.open(folder / _BUNDLE, any_signer=True)
        with _broker(settings.broker, console) as broker:
            _federate(settings, prepared, (folder, broker, bundle), console)
        run = load_record(folder / "coordinator" / "result.json", RunRecord)
    compared: tuple[ComparedMethod, ...] = ()
    if settings.compare:
        *others, _ = (method.label for method in methods_of(settings.strategy).values())
        heading.show(5, f"{' and '.join(others)} on the same data, without a broker")
        compared = compare(settings, prepared, bundles, folder / "coordinator", console)
    result = with_comparison(run, compared, prepared.columns, untrained_head=not prepared.labelled)
    return finish(
        prepared.title,
        folder,
        result,
        results,
        seconds=time.monotonic() - started,
    )


def _run_of(settings: DemoSettings, folder: Path) -> RunRecord | None:
    """What the fleet has left if it has finished; None if not."""
    file = folder / "coordinator" / "result.json"
    run = load_record(file, RunRecord) if file.is_file() else None
    return run if run and len(run.rounds) == settings.rounds else None


def _fleet(settings: DemoSettings) -> str:
    browsers = f", {settings.browsers} in browsers" if settings.browsers else ""
    return f"{settings.devices} device processes{browsers}"


def _make_bundles(
    settings: DemoSettings, prepared: DemoData, folder: Path, heading: _Heading
) -> dict[Network, Path]:
    """The bundle of the run and, to compare, that of the other network: made side by side."""
    own = network_of(settings.strategy)
    places = {own: folder}
    if settings.compare:
        shown = methods_of(settings.strategy).values()
        places |= {one.network: folder / _OTHER for one in shown if one.network != own}
    missing = {name: place for name, place in places.items() if not (place / _BUNDLE).exists()}
    if missing:
        for place in missing.values():
            place.mkdir(exist_ok=True)
        _pretrain_and_export(settings, prepared, missing, heading)
    return {network: place / _BUNDLE for network, place in places.items()}


def _pretrain_and_export(
    settings: DemoSettings, prepared: DemoData, places: Mapping[Network, Path], heading: _Heading
) -> None:
    own = network_of(settings.strategy)

    def run(arguments: Callable[[Network, Path], list[str]]) -> None:
        steps = [
            Step(
                arguments=arguments(network, place),
                log=None if network == own else place / "log.txt",
            )
            for network, place in places.items()
        ]
        run_steps(steps, heading.console)

    heading.show(2, "central training")
    run(lambda network, place: pretrain_arguments(prepared, network, place, settings.seed))
    heading.show(3, "export to ONNX and TFLite programs, checked against PyTorch")
    # Devices may run either format, the engine without a broker runs the first.
    run(
        lambda network, place: export_arguments(
            prepared,
            network,
            place,
            _strategies(settings, network),
            formats=None if network == own else "onnx",
        )
    )


def _strategies(settings: DemoSettings, network: Network) -> list[str]:
    """Those that are to run on a network's bundle, the fleet's first."""
    shown = methods_of(settings.strategy)
    return [name for name in reversed(shown) if shown[name].network == network]


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
        LiveView(console, settings.rounds, folder / "coordinator") as view,
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
        "strategy": {
            "name": settings.strategy,
            "settings": settings_of(settings.strategy, prepared),
        },
        "cohort": {"minimum": settings.participants},
        "round": {"deadline_s": _DEADLINE_S, "quorum": 1.0},
        "liveness": {"grace_s": 600.0},
        "evaluation": {"pooled": "data/pooled.npz"},
    }
    return to_toml(values)
