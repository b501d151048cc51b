"""``protofleet fleet``: rehearse a federation with virtual devices."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType

import click

_POLL_S = 0.2


@click.group()
def fleet() -> None:
    """Rehearse a federation with virtual devices (docs/fleet.md)."""


@fleet.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON event per line.")
def run(file: Path, *, as_json: bool) -> None:
    """Run the devices of the fleet FILE (TOML) until their federation finishes.

    Each is a process of its own that runs the real edge code behind its own sensor, limits and
    link. Ctrl-C stops them all; started again they go on where they were.
    """
    import msgspec

    from protofleet.firmware_sim.fleet import Fleet
    from protofleet.firmware_sim.profile import load_fleet

    signal.signal(signal.SIGTERM, _interrupt)
    config = load_fleet(file)
    told: set[str] = set()
    failed = 0
    try:
        with Fleet(config) as devices:
            if not as_json:
                click.echo(f"{len(config.devices)} devices; logs under {config.folder}")
            while len(told) < len(config.devices):
                for ended in devices.ended():
                    if ended.device_id in told:
                        continue
                    told.add(ended.device_id)
                    failed += ended.status != 0
                    line = {"event": "ended", "id": ended.device_id, "status": ended.status}
                    if as_json:
                        click.echo(msgspec.json.encode({**line, "log": ended.last_words}))
                    elif ended.status:
                        click.echo(f"{ended.device_id} failed: {ended.last_words}", err=True)
                time.sleep(_POLL_S)
    except KeyboardInterrupt:
        click.echo(f"stopped; to go on: protofleet fleet run {file}", err=True)
        sys.exit(130)
    if failed:
        click.echo(f"protofleet: {failed} of {len(config.devices)} devices failed", err=True)
        sys.exit(1)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
