"""``protofleet bundle publish`` and what follows it: a bundle's way to the fleet of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.cli._trust import as_hex, trust_option
from protofleet.printable import printable

if TYPE_CHECKING:
    from protofleet.coordinator.publish import RolloutStatus
    from protofleet.federation.settings import FederationConfig

_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_SHOWN = 20
"""Devices that ``status`` names."""


@click.command()
@_FILE
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--first", type=click.IntRange(min=1), default=1, help="Devices of the first stage.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.05,
    help="Of all devices, that the second stage reaches.",
)
@click.option(
    "--max-failures",
    type=click.FloatRange(0, 1),
    default=0.2,
    help="Share of the devices so far; if more fail in one stage, the roll-out ends or pauses.",
)
@click.option(
    "--max-loss",
    type=click.FloatRange(0),
    default=2.0,
    help="A device fails whose loss becomes more than this many times its own before; 0: none.",
)
@click.option("--by-hand", is_flag=True, help="Let each further stage wait for 'bundle next'.")
@click.option(
    "--on-failure",
    type=click.Choice(["back", "pause"]),
    default="back",
    help="What follows too many failures: all go back, or nothing until you decide.",
)
@trust_option
@_JSON
def publish(
    file: Path,
    path: Path | None,
    *,
    trust_files: tuple[Path, ...],
    as_json: bool,
    **settings: object,
) -> None:
    """Let the devices of the federation FILE have the bundle PATH, in stages, while rounds go on.

    First one device, then 5 %, then the rest: each fetches it from the coordinator, checks and
    rehearses it, and switches to it between two rounds.

    Without PATH it is the run's own bundle, of whatever layout, for all devices that took part in
    another run of the federation: each takes along what fits of its state, by name and shape, and
    keeps all of it beside. Too many failures pause it.
    """
    import msgspec

    from protofleet.coordinator import publish as to
    from protofleet.coordinator.ledger.rollout_rows import RolloutSettings

    chosen = msgspec.convert(settings, RolloutSettings)
    config = _config(file, trust_files)
    if path is None:
        _refuse_stages()
        _tell(to.publish_own(config, max_failures=chosen.max_failures), as_json=as_json)
    else:
        _tell(to.publish(config, path, chosen), as_json=as_json)


def _refuse_stages() -> None:
    """Options that the run's own bundle cannot follow are an error, not silence."""
    context = click.get_current_context()
    for name in ("first", "share", "max_loss", "by_hand", "on_failure"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} needs PATH: the run's own bundle goes to all at once")


@click.command()
@_FILE
@click.option("--key", type=click.Path(dir_okay=False, path_type=Path), help="The signing key.")
@trust_option
@_JSON
def rollback(file: Path, *, key: Path | None, trust_files: tuple[Path, ...], as_json: bool) -> None:
    """Let the devices of the federation FILE go back to the bundle before.

    A roll-out that is under way ends. After it was completed, its signer's key is needed: yours,
    unless --key names another. Where the run's own bundle was published, offers of it end, and
    devices that have it keep it.
    """
    from protofleet.bundle import keys
    from protofleet.coordinator.publish import take_back

    path = keys.signing_key_path() if key is None else key
    signer = keys.load_signing_key(path) if key is not None or path.exists() else None
    _tell(take_back(_config(file, trust_files), signer), as_json=as_json)


@click.command()
@_FILE
@_JSON
def status(file: Path, *, as_json: bool) -> None:
    """Show how far the last published bundle of the federation FILE is; works while it runs."""
    from protofleet.coordinator.publish import read_rollout

    _tell(read_rollout(_config(file, ())), as_json=as_json)


@click.command()
@_FILE
@_JSON
def pause(file: Path, *, as_json: bool) -> None:
    """Let no further device of the federation FILE fetch the published bundle."""
    _steer(file, "paused", as_json=as_json)


@click.command()
@_FILE
@_JSON
def resume(file: Path, *, as_json: bool) -> None:
    """Go on with the roll-out in the federation FILE after a pause."""
    _steer(file, "running", as_json=as_json)


@click.command()
@_FILE
@_JSON
def next_stage(file: Path, *, as_json: bool) -> None:
    """Go on with the next stage in the federation FILE, published with --by-hand."""
    _steer(file, "running", as_json=as_json)


def _steer(file: Path, state: str, *, as_json: bool) -> None:
    import msgspec

    from protofleet.coordinator.ledger.rollout_rows import RolloutState
    from protofleet.coordinator.publish import steer

    _tell(steer(_config(file, ()), msgspec.convert(state, RolloutState)), as_json=as_json)


def _config(file: Path, trust_files: tuple[Path, ...]) -> FederationConfig:
    import msgspec

    from protofleet.federation.settings import load_config

    config = load_config(file)
    trusted = (*config.trusted, *as_hex(trust_files))
    return msgspec.structs.replace(config, trusted=trusted)


def _tell(found: RolloutStatus, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    click.echo(f"federation {found.federation}: its bundle is {found.active[:16]}")
    rollout = found.rollout
    if rollout is None:
        click.echo("no bundle was published")
        return
    state = rollout.state.replace("_", " ")
    why = f": {printable(rollout.reason)}" if rollout.reason else ""
    click.echo(f"bundle {rollout.target[:16]}: {state}, stage {found.stage}{why}")
    counts = ", ".join(f"{count} {name}" for name, count in found.counts.items())
    click.echo(f"devices: {counts or 'none yet'}")
    order = sorted(found.devices, key=lambda one: one.state != "failed")
    for one in order[:_SHOWN]:
        reason = f" ({one.rule}): {printable(one.reason)}" if one.reason else ""
        click.echo(f"  {one.device_id}: {one.state}{reason}")
    if len(order) > _SHOWN:
        click.echo(f"  and {len(order) - _SHOWN} more; --json has all")


COMMANDS = {
    "publish": publish,
    "rollback": rollback,
    "status": status,
    "pause": pause,
    "resume": resume,
    "next": next_stage,
}
