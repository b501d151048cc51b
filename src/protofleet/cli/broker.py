"""``protofleet broker``: set up, run and try the MQTT broker of a federation."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._stopping import on_interrupt
from protofleet.printable import shell_word

if TYPE_CHECKING:
    from protofleet.broker.check import Target
    from protofleet.broker.findings import Finding
    from protofleet.broker.folder import BrokerFolder
    from protofleet.firmware_sim.broker import RunningBroker

_POLL_S = 0.2
_STAMP = re.compile(r"^\d+: ")
_UNTOLD = (
    "New connection",
    "Client <unknown>",
    "Config loaded",
    "Opening ",
    "mosquitto version",
    "Client connection from 127.0.0.1 failed",  # we looked whether it answers
    "Warning: ACL pattern",  # what all may read names nobody
)
_KNOWN = "New client connected"
_MOST_CHARS = 400
_FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_DEFAULT = Path("federation/broker")


@click.group()
def broker() -> None:
    """Set up, run and try an MQTT broker."""


@broker.command()
@click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path), required=False, default=_DEFAULT
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or address by which devices reach this machine, beside those it knows; repeatable.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=8883, show_default=True)
@click.option(
    "--federation",
    "federations",
    multiple=True,
    help="Name of a federation that it serves; repeatable. Without: any, and then one device can "
    "fill the broker's memory with messages under invented names.",
)
@click.option(
    "--renew", is_flag=True, help="A new certificate by the same authority; all else stays."
)
def init(folder: Path, *, hosts: tuple[str, ...], port: int, renew: bool, **serves: Any) -> None:
    """Write a broker's set-up: TLS, accounts, access list.

    FOLDER (default: federation/broker) gets a certificate authority, the broker's certificate,
    passwords, an access list and a configuration with limits, for Mosquitto: nobody without an
    account gets in, and a device reaches its own topics alone. docs/broker.md explains each
    file.
    """
    from protofleet.broker.folder import BrokerFolder

    if renew:
        made = BrokerFolder.open(folder)
        made.renew(hosts)
        _tell_reload(made)
    else:
        made = BrokerFolder.create(folder, hosts, port, **serves)
    for line in _next_steps(made, folder):
        click.echo(line)


def _next_steps(made: BrokerFolder, folder: Path) -> Iterator[str]:
    from protofleet.broker.certificates import valid_until

    until = valid_until((made.path / "server.pem").read_bytes())
    hosts, port, place = made.hosts(), made.listener()[1], shell_word(folder)
    yield f"{folder}: a broker with TLS for {', '.join(hosts)}; certificate until {until:%Y-%m-%d}"
    if made.path.owner() == "root":
        yield "made by root, so the broker runs as root: better made by a user of its own"
    yield f"start it:            protofleet broker run {place}"
    yield f"  or, as a service:  sudo cp {shell_word(made.service)} /etc/systemd/system/"
    yield f"                     sudo systemctl enable --now {made.service.stem}"
    yield f"try it from outside: protofleet broker check {place}"
    home = (folder.parent if folder.name == "broker" else folder).absolute()
    serves = made.federations()
    # Each of several has keys of its own.
    keys = [home / name for name in serves] if len(serves) > 1 else [home]
    for name, own in zip_longest(serves, keys):
        yield "in the federation file, on this machine:" if own is keys[0] else "or in another's:"
        yield from [f'  federation = "{name}"'] if name else []
        yield f'  keys = "{own}"'
    yield from ["and in each:"] if len(keys) > 1 else []
    yield "  [broker]"
    yield f'  url = "{made.local_url("coordinator")}"'
    yield f'  ca_file = "{made.ca}"'
    yield f'  password_file = "{made.password_file}"'
    for own in keys:
        yield f"for each device:     protofleet device invite --keys {shell_word(own)} NAME"
    yield f"  without keys:      protofleet broker account add {place} NAME"
    of = serves[0] if len(serves) == 1 else "FEDERATION"
    yield f"  it joins with:     protofleet device join --federation {shell_word(of)} --id NAME \\"
    yield f"                       --broker mqtts://NAME@{hosts[0]}:{port} --broker-ca ca.pem \\"
    yield "                       --broker-password-file NAME.password --bundle BUNDLE --data FILE"


def _tell_reload(folder: BrokerFolder) -> None:
    command = folder.reload()
    if command:
        click.echo(f"the running broker reads it after: {command}", err=True)
    elif folder.running() is None:
        click.echo("no broker runs on this folder here; one elsewhere needs: kill -HUP", err=True)


@broker.group()
def account() -> None:
    """Let devices in, or out, by name and password."""


@account.command("add")
@_FOLDER
@click.argument("name")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the password.  [default: NAME.password]",
)
def add_account(folder: Path, name: str, out: Path | None) -> None:
    """Let the device NAME in, with a new password, which is written into a file."""
    from protofleet.broker.accounts import new_password
    from protofleet.broker.folder import BrokerFolder
    from protofleet.errors import InputError
    from protofleet.wire.topics import check_device_id

    made = BrokerFolder.open(folder)
    check_device_id(name)
    out = out or Path(f"{name}.password")
    password = new_password()
    try:
        out.touch(mode=0o600, exist_ok=False)
        out.write_text(password + "\n", encoding="ascii")
    except OSError as error:
        raise InputError(
            f"password file '{out}': {error.strerror}; choose another: --out"
        ) from error
    made.accounts.add(name, password)
    _tell_reload(made)
    click.echo(f"{name}: password in {out}; the device needs it and {made.ca}")


@account.command("remove")
@_FOLDER
@click.argument("name")
def remove_account(folder: Path, name: str) -> None:
    """Let NAME in no more; a connection that it has is closed."""
    from protofleet.broker.folder import BrokerFolder
    from protofleet.errors import InputError

    made = BrokerFolder.open(folder)
    if not made.accounts.remove(name):
        raise InputError(f"account {name!r}: unknown; there are {', '.join(made.accounts.names())}")
    _tell_reload(made)


@account.command("list")
@_FOLDER
def list_accounts(folder: Path) -> None:
    """Who is let in."""
    from protofleet.broker.folder import BrokerFolder

    for name in BrokerFolder.open(folder).accounts.names():
        click.echo(name)


@broker.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option(
    "--host",
    help="Address to listen on; 0.0.0.0: every network of this machine.  [default: 127.0.0.1]",
)
@click.option("--port", type=click.IntRange(1, 65535), help="[default: 1883]")
@click.option(
    "--users",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Users and passwords, made with: mosquitto_passwd -c FILE NAME. Nobody else may connect.",
)
def run(folder: Path | None, *, users: Path | None, **place: Any) -> None:
    """Run a broker until Ctrl-C.

    It is Mosquitto if that is installed, else amqtt. With a FOLDER of 'protofleet broker init':
    TLS, its accounts and its access list. Without one, for a first federation in a network that
    you trust: nothing is encrypted, and without --users everyone may connect and do everything.
    """
    from protofleet.broker.folder import BrokerFolder
    from protofleet.errors import UnavailableError
    from protofleet.firmware_sim.broker import BrokerOptions, open_broker

    given = {name: value for name, value in place.items() if value is not None}
    if folder is not None and (given or users):
        raise click.UsageError("FOLDER says where and for whom: no --host, --port, --users")
    found = None if folder is None else BrokerFolder.open(folder)
    options = BrokerOptions(**{"port": 1883, **given}, password_file=users, folder=found)
    with on_interrupt("to go on: the same command; coordinator and devices reconnect"):
        with open_broker(options) as running:
            click.echo(f"broker: {running.url} ({running.name}); Ctrl-C stops it")
            click.echo(_addresses(running, options))
            for line in [] if found is None else _ending(found.path):
                click.echo(line)
            for line in _said(running):
                click.echo(f"{time.strftime('%H:%M:%S')} {line}")
            last = running.log.read_text(errors="replace").strip().splitlines()[-1:]
        raise UnavailableError(f"broker: ended by itself: {''.join(last)}")


def _ending(folder: Path) -> Iterator[str]:
    """Certificates that end within thirty days, or have ended."""
    from protofleet.coordinator.process.expiry import AHEAD_S, broker_expirations

    now_s = time.time()
    for one in broker_expirations(folder):
        if one.until_s < now_s + AHEAD_S:
            yield f"{one.text(now_s)}: {one.remedy}"


def _addresses(running: RunningBroker, options: Any) -> str:
    """What devices and coordinator are to be told."""
    from protofleet.broker.certificates import own_address
    from protofleet.firmware_sim.broker import EVERYWHERE

    host, port = options.place()
    if options.folder is not None:
        where = f"mqtts://NAME@{options.folder.hosts()[0]}:{port}"
        return f"for devices: --broker {where} --broker-ca {options.folder.ca}"
    if host == EVERYWHERE:
        place = running.url.replace("127.0.0.1", own_address())
        return (
            f"for devices in this network: --broker {place} --insecure (nothing is encrypted: for "
            "that, 'protofleet broker init')"
        )
    if host.startswith("127."):
        return f"for this machine alone; for others: --host {EVERYWHERE}"
    return f"for devices: --broker {running.url} --insecure"


def _said(running: RunningBroker) -> Iterator[str]:
    """Lines of the broker's log, while it runs, that say who comes, goes and is refused.

    Of a flood few: those who have an account and all others each have a share of their own.
    """
    from protofleet.coordinator.reporter import MINUTE_S, LogThrottle
    from protofleet.printable import printable

    throttle, minute_ends = LogThrottle(), time.monotonic() + MINUTE_S
    with running.log.open("rb") as log:
        while running.process.poll() is None:
            if log.tell() > os.fstat(log.fileno()).st_size:
                log.seek(0)  # it has begun anew
            for line in iter(log.readline, b""):
                text = _STAMP.sub("", line.decode(errors="replace").strip())
                known = text.startswith(_KNOWN)
                if text and not text.startswith(_UNTOLD) and throttle.passes(str(known)):
                    yield printable(text[:_MOST_CHARS])
            if time.monotonic() >= minute_ends:
                minute_ends = time.monotonic() + MINUTE_S
                withheld = sum(throttle.next_minute().values())
                if withheld:
                    yield f"and {withheld} more lines in this minute"
            sys.stdout.flush()
            time.sleep(_POLL_S)


@broker.command()
@click.argument("target")
@click.option("--broker-ca", type=click.Path(path_type=Path), help="For a URL: its authority, PEM.")
@click.option(
    "--broker-password-file",
    type=click.Path(path_type=Path),
    help="For a URL: the password of its user, who is the coordinator.",
)
@click.option("--device", help="A device's account, which is taken for stolen.")
@click.option("--device-password-file", type=click.Path(path_type=Path), help="Its password.")
def check(target: str, **given: Any) -> None:
    """Try from outside to get past a broker's rules.

    What a stolen credential must not do, and nobody without one.

    TARGET is the folder of a broker that runs here (accounts for the trial are made and removed), a
    federation file, or a URL. Prints each question with the broker's answer, and what to do where
    something is open; then the exit status is 1. Without the coordinator's account much cannot be
    seen, without a device's little can be tried.
    """
    from protofleet.broker.check import check as ask
    from protofleet.errors import InputError

    failed = unknown = 0
    with ExitStack() as stack:
        for finding in ask(_target(stack, target, **given)):
            _show(finding)
            failed += finding.verdict.failed
            unknown += finding.verdict.name == "UNKNOWN"
    if unknown:
        click.echo(f"{unknown} not known: give more accounts (--help)")
    if failed:
        raise InputError(f"broker {target}: {failed} questions are to be settled")


def _target(
    stack: ExitStack,
    target: str,
    *,
    broker_ca: Path | None,
    broker_password_file: Path | None,
    device: str | None,
    device_password_file: Path | None,
) -> Target:
    from protofleet.broker.check import Target
    from protofleet.broker.folder import BrokerFolder
    from protofleet.broker.probe import Credential
    from protofleet.broker.trial import trial_accounts
    from protofleet.errors import InputError
    from protofleet.wire.mqtt.broker_access import BrokerAccess

    path = Path(target)
    if path.is_dir():
        return stack.enter_context(trial_accounts(BrokerFolder.open(path)))
    stolen = None
    if device is not None:
        file = device_password_file or Path(f"{device}.password")
        given = BrokerAccess(url="mqtt://localhost", user=device, password_file=file).address()
        stolen = Credential(user=device, password=given.password)
    if path.is_file():
        from protofleet.federation.settings import load_config

        config = load_config(path)
        return Target(access=config.broker, device=stolen, federation=config.federation)
    if "://" not in target:
        raise InputError(f"broker '{target}': expected a folder, a federation file or a URL")
    access = BrokerAccess(url=target, ca_file=broker_ca, password_file=broker_password_file)
    return Target(access=access, device=stolen)


def _show(finding: Finding) -> None:
    click.echo(f"{finding.verdict.value:8}{finding.question:<62}{finding.answer}")
    if finding.remedy:
        click.echo(f"{'':8}remedy: {finding.remedy}")
