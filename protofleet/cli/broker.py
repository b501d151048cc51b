"""``protofleet broker``: a broker for first devices, until there is one that is administered."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._stopping import on_interrupt

if TYPE_CHECKING:
    from protofleet.firmware_sim.broker import RunningBroker

_POLL_S = 0.2
_STAMP = re.compile(r"^\d+: ")
_UNTOLD = ("New connection", "Client <unknown>", "Config loaded", "Opening ", "mosquitto version")


@click.group()
def broker() -> None:
    """Run an MQTT broker on this machine."""


@broker.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0: every network of this machine.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=1883, show_default=True)
@click.option(
    "--users",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Users and passwords, made with: mosquitto_passwd -c FILE NAME. Nobody else may connect.",
)
def run(*, users: Path | None, **place: Any) -> None:
    """Run a broker until Ctrl-C: Mosquitto if it is installed, else amqtt.

    For a first federation in a network that you trust: nothing is encrypted, and without --users
    everyone may connect. For more than that: Mosquitto as a service, with TLS and an access list
    (docs/coordinator.md).
    """
    from protofleet.errors import UnavailableError
    from protofleet.firmware_sim.broker import BrokerOptions, open_broker

    options = BrokerOptions(**place, password_file=users)
    with on_interrupt("to go on: the same command; coordinator and devices reconnect"):
        with open_broker(options) as running:
            click.echo(f"broker: {running.url} ({running.name}); Ctrl-C stops it")
            click.echo(_addresses(running, options.host))
            for line in _said(running):
                click.echo(f"{time.strftime('%H:%M:%S')} {line}")
            last = running.log.read_text(errors="replace").strip().splitlines()[-1:]
        raise UnavailableError(f"broker: ended by itself: {''.join(last)}")


def _addresses(running: RunningBroker, host: str) -> str:
    """What devices and coordinator are to be told."""
    from protofleet.firmware_sim.broker import EVERYWHERE

    if host == EVERYWHERE:
        place = running.url.replace("127.0.0.1", _own_address())
        return (
            f"for devices in this network: --broker {place} --insecure (nothing is encrypted: for "
            "that, 'protofleet broker init')"
        )
    if host.startswith("127."):
        return f"for this machine alone; for others: --host {EVERYWHERE}"
    return f"for devices: --broker {running.url} --insecure"


def _own_address() -> str:
    """This machine's address as its network sees it; no packet is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        address: str = probe.getsockname()[0]
    return address


def _said(running: RunningBroker) -> Iterator[str]:
    """Lines of the broker's log, while it runs, that say who comes, goes and is refused."""
    with running.log.open(errors="replace") as log:
        while running.process.poll() is None:
            for line in log:
                text = _STAMP.sub("", line.strip())
                if text and not text.startswith(_UNTOLD):
                    yield text
            sys.stdout.flush()
            time.sleep(_POLL_S)
