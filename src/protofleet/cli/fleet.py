"""``protofleet fleet``: rehearse a federation with virtual devices."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._broker import GivenBroker, broker_overrides
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._trust import as_hex, trust_option
from protofleet.cli._verbosity import verbosity
from protofleet.printable import shell_word

if TYPE_CHECKING:
    from protofleet.firmware_sim.fleet import Ended, Fleet

_POLL_S = 0.2
_DEVICES = ("phone-low=20", "pi-4=5")


@click.group()
def fleet() -> None:
    """Rehearse a federation with virtual devices (docs/fleet.md)."""


@fleet.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@broker_overrides()
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON event per line.")
def run(file: Path, *, broker: GivenBroker, trust_files: tuple[Path, ...], as_json: bool) -> None:
    """Run the devices of the fleet FILE (TOML) until their federation finishes.

    Each is a process of its own that runs the real edge code behind its own sensor, limits and
    link. Ctrl-C stops them all; started again they go on where they were.
    """
    import msgspec

    from protofleet.firmware_sim.fleet import Fleet
    from protofleet.firmware_sim.profile import load_fleet

    config = load_fleet(file)
    trust, access = (*config.trust, *as_hex(trust_files)), broker.over(config.broker)
    config = msgspec.structs.replace(config, trust=trust, broker=access)
    failed = 0
    with (
        on_interrupt(f"to go on: protofleet fleet run {shell_word(file)}"),
        Fleet(config) as devices,
    ):
        if not as_json and verbosity() >= 0:
            click.echo(f"{len(config.devices)} devices; logs under {config.folder}")
        for ended in _endings(devices, len(config.devices)):
            failed += ended.status != 0
            _tell(ended, as_json=as_json)
    if failed:
        click.echo(f"protofleet: {failed} of {len(config.devices)} devices failed", err=True)
        sys.exit(1)


@fleet.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default="fleet.toml")
@click.option("--federation", help="Its file.  [default: federation.toml]")
@click.option("--data", help="Folder of the owners' .npz.  [default: data]")
@click.option(
    "--devices",
    multiple=True,
    metavar="KIND=N",
    help=f"How many of a kind; repeat for more.  [default: {', '.join(_DEVICES)}]",
)
@click.option("--days", type=click.FloatRange(0, min_open=True), help="[default: 14]")
@click.option(
    "--metered/--no-metered",
    default=None,
    help="Whether what is carried trains by a network that costs, too.  [default: no-metered]",
)
def init(file: Path, **given: Any) -> None:
    """Write a commented fleet FILE for 'protofleet rehearse' (default: fleet.toml).

    At a terminal what no option says is asked for.
    """
    from protofleet.errors import InputError
    from protofleet.rehearsal.starter import fleet_toml

    if file.exists():
        raise InputError(f"{file}: is there already; remove it, or give another name")
    found = _answers(given, ask=_is_asked())
    kinds = [_kind(text) for text in found.pop("devices")]
    file.write_text(fleet_toml(kinds=kinds, **found), encoding="utf-8")
    click.echo(f"{file}; next: protofleet rehearse {shell_word(file)}")


def _is_asked() -> bool:
    """Whether somebody sits at a terminal."""
    return sys.stdin.isatty()


def _answers(given: dict[str, Any], *, ask: bool) -> dict[str, Any]:
    """What options say, else a person, else what is usual."""
    from protofleet.firmware_sim.world.hardware import HARDWARE

    if not given["devices"]:
        told = f"which devices, and how many of each? kinds: {', '.join(HARDWARE)}"
        answer = click.prompt(told, default=",".join(_DEVICES)) if ask else ",".join(_DEVICES)
        given["devices"] = tuple(one.strip() for one in answer.split(","))
    usual: Any
    for name, text, usual in (
        ("days", "how many days?", 14.0),
        ("federation", "the coordinator's file?", "federation.toml"),
        ("data", "the folder with an .npz for each owner?", "data"),
    ):
        if given[name] is None:
            given[name] = click.prompt(text, default=usual) if ask else usual
    if given["metered"] is None:
        told = "do phones and watches train by a network that costs, too?"
        given["metered"] = ask and click.confirm(told, default=False)
    return given


@fleet.command()
@click.argument("name")
def measure(name: str) -> None:
    """Measure this machine as a kind of device called NAME, for a fleet file.

    Run it on the device itself: protofleet fleet measure my-board >> fleet.toml
    """
    import os

    from protofleet.firmware_sim.world.hardware import measure_host
    from protofleet.rehearsal.starter import hardware_toml
    from protofleet.wire.topics import check_id

    check_id(name, f"kind '{name}'")
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    click.echo(hardware_toml(name, measure_host(), memory_mb), nl=False)


def _kind(text: str) -> tuple[str, int]:
    kind, _, count = text.partition("=")
    if not count.isdecimal() or not int(count):
        raise click.BadParameter(f"expected KIND=N, got '{text}'", param_hint="--devices")
    return kind, int(count)


def _endings(devices: Fleet, count: int) -> Iterator[Ended]:
    """Each device's end, when it comes."""
    told: set[str] = set()
    while len(told) < count:
        for ended in devices.ended():
            if ended.device_id not in told:
                told.add(ended.device_id)
                yield ended
        time.sleep(_POLL_S)


def _tell(ended: Ended, *, as_json: bool) -> None:
    if as_json:
        line = {"event": "ended", "id": ended.device_id, "status": ended.status}
        click.echo(json.dumps({**line, "log": ended.last_words}))
    elif ended.status:
        click.echo(f"{ended.device_id} failed: {ended.last_words}", err=True)
