"""``protofleet device invite``, ``enroll``, ``list``, ``revoke``, ``rotate``: who is in."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from protofleet.cli._broker import broker_options
from protofleet.cli._qr import show_qr
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._verbosity import start_logging
from protofleet.printable import shell_word

if TYPE_CHECKING:
    from protofleet.coordinator.membership.members import Members
    from protofleet.wire.mqtt.broker_access import BrokerAccess
    from protofleet.wire.trust.enrolment import Invitation

_PATH = click.Path(path_type=Path)
_UNITS = {"m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_MOST_S = 90 * 86_400
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON lines for programs.")
_KEYS = click.option(
    "--keys",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("federation"),
    show_default=True,
    help="The federation's folder.",
)


def _seconds(_context: click.Context, parameter: click.Parameter, text: str) -> int:
    found = _SPAN.fullmatch(text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= _MOST_S:
        raise click.BadParameter(
            f"expected a time of at most 90d such as 30m, 24h or 7d, got '{text}'", param=parameter
        )
    return seconds


def _origin(_context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """``https://host:port`` without a slash behind it."""
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits or text.removesuffix("/") != f"{parts.scheme}://{parts.netloc}" or "@" in text:
        raise click.BadParameter(
            f"expected the hub's address such as https://192.168.1.5:8443, got '{text}'",
            param=parameter,
        )
    return text.removesuffix("/")


def _invite_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How invitations are made, and answered."""
    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
        _KEYS,
        broker_options("Where devices connect, with our account; default: the folder's broker."),
        click.option(
            "--valid",
            "valid_s",
            default="24h",
            show_default=True,
            callback=_seconds,
            help="How long an invitation may be used: 30m, 24h, 7d.",
        ),
        click.option(
            "--wait/--no-wait",
            default=True,
            help="Answer until all have enrolled; else a running coordinator does.",
        ),
        click.option(
            "--accounts",
            is_flag=True,
            help="With --broker: print the accounts that you make there; devices get theirs.",
        ),
        click.option(
            "--hub",
            metavar="URL",
            callback=_origin,
            help="For browsers: address of 'protofleet hub', whose page the invitation opens.",
        ),
        click.option("--qr/--no-qr", default=None, help="QR codes; default: on a terminal."),
        _JSON,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option(
    "--federation",
    help="Its name, when the folder is made; default: its broker's, else the folder's.",
)
@_invite_options
def invite(names: tuple[str, ...], *, federation: str | None, keys: Path, **how: Any) -> None:
    """Invite devices to enrol, each by one line.

    The line is good once. The first invitation makes the federation's folder with its key. For a
    device that is enrolled already, the invitation gives it a new key; the old one counts until
    the new one is used. Without a NAME, it answers devices that were invited before.
    """
    from protofleet.coordinator.membership.invitations import name_to_invite_for
    from protofleet.coordinator.membership.members import Members

    start_logging(quiet=True)
    if not names:
        with Members.open(keys) as members:
            _answer_open(members, **how)
        return
    with Members.create(keys, name_to_invite_for(keys, federation)) as members:
        _invite(members, names, **how)


@click.command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option(
    "--federation-key", is_flag=True, help="A new key of the federation; the old one hands over."
)
@_invite_options
def rotate(names: tuple[str, ...], *, federation_key: bool, keys: Path, **how: Any) -> None:
    """Give devices, or the federation, a new key.

    Devices are invited anew; a device's old key counts until the new one is used. The federation's
    old key signs that it hands over to the new one, and is removed; enrolled devices follow by
    themselves.
    """
    from protofleet.coordinator.membership.members import Members
    from protofleet.errors import InputError

    start_logging(quiet=True)
    if federation_key == bool(names):
        raise click.UsageError("give NAMEs of devices, or --federation-key")
    with Members.open(keys) as members:
        if federation_key:
            _rotate_federation(members)
            return
        enrolled = {one.device_id for one in members.members()}
        for name in names:
            if name not in enrolled:
                raise InputError(
                    f"device '{name}': not enrolled; there are: {', '.join(sorted(enrolled))}"
                )
        _invite(members, names, **how)


@click.command()
@click.argument("invitation", metavar="STRING")
@click.option("--store", type=_PATH, help="The device's folder; default: in the user's data.")
@broker_options("In place of the invitation's; with a user, that is the device's from then on.")
@click.option(
    "--wait",
    "answer_s",
    type=click.FloatRange(1),
    default=180,
    show_default=True,
    help="Seconds to wait for an answer.",
)
@_JSON
def enroll(
    invitation: str, *, store: Path | None, broker: BrokerAccess | None, as_json: bool, **how: Any
) -> None:
    """Enrol this device with its invitation.

    STRING is what 'device invite' printed for it; '-' reads it from standard input. Makes the
    device's key, which never leaves it, and keeps what 'device join' needs. Interrupted at any
    time, the same command goes on. An enrolled device gets a new key; what it has learned stays.
    """
    from protofleet.edge.enrolment import EnrolOptions, enrol
    from protofleet.edge.state.stores import default_store
    from protofleet.wire.trust.enrolment import Invitation

    start_logging(quiet=True)
    found = Invitation.parse(sys.stdin.read() if invitation == "-" else invitation)
    folder = store or default_store(found.federation, found.device_id)
    options = EnrolOptions(invitation=found, store=folder, broker=broker, **how)
    with on_interrupt("to go on: the same command"):
        done = enrol(options, lambda line: click.echo(line, err=True))
    if as_json:
        record = {
            "federation": found.federation,
            "device_id": found.device_id,
            "store": str(folder),
            "new": done.new,
            "confirmed": done.confirmed,
        }
        click.echo(json.dumps(record))
        return
    how_new = "enrolled" if done.new else "was enrolled with this invitation before"
    click.echo(f"device '{found.device_id}' of federation '{found.federation}': {how_new}")
    word = shell_word(folder)
    click.echo(f"join with: protofleet device join --store {word} --bundle BUNDLE --data FILE")


@click.command("list")
@_KEYS
@_JSON
def list_(keys: Path, *, as_json: bool) -> None:
    """List the devices of a federation.

    Who is invited, enrolled, revoked or expired, with which grant, and until when.
    """
    import msgspec

    from protofleet.coordinator.membership.invitations import standings
    from protofleet.coordinator.membership.members import Members
    from protofleet.signatures import fingerprint

    with Members.open(keys) as members:
        found = standings(members, time.time())
        name, shown = members.name, fingerprint(members.federation_key)
    if as_json:
        for one in found:
            click.echo(msgspec.json.encode(one).decode())
        return
    click.echo(f"federation '{name}', key {shown}")
    table = [("device", "state", "serial", "since", "until")]
    for one in found:
        also = one.state == "enrolled" and one.invited_until_s is not None
        state = "enrolled, invited" if also else one.state
        serial = "-" if one.serial is None else str(one.serial)
        table.append((one.device_id, state, serial, _minute(one.since_s), _minute(one.until_s)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_KEYS
def revoke(names: tuple[str, ...], *, keys: Path) -> None:
    """Let devices in no more.

    Ends their grants, invitations and broker accounts; a running coordinator hears of it.
    """
    from protofleet.coordinator.membership.invitations import own_broker
    from protofleet.coordinator.membership.invitations import revoke as end
    from protofleet.coordinator.membership.members import Members
    from protofleet.errors import InputError

    with Members.open(keys) as members:
        broker = own_broker(keys, members.name)
        unknown = [name for name in names if not end(members, broker, name, _told)]
    for name in names:
        if name not in unknown:
            click.echo(f"{name}: revoked")
    if broker is None:
        click.echo("its account at the broker, if it has one, is yours to remove", err=True)
    if unknown:
        raise InputError(f"nothing to revoke of {', '.join(unknown)}; see: protofleet device list")


def _invite(
    members: Members,
    names: tuple[str, ...],
    *,
    broker: BrokerAccess | None,
    accounts: bool,
    valid_s: int,
    wait: bool,
    hub: str | None,
    qr: bool | None,
    as_json: bool,
) -> None:
    from protofleet.coordinator.membership.invitations import find_meeting
    from protofleet.coordinator.membership.invitations import invite as make

    if accounts and broker is None:
        raise click.UsageError("--accounts is for --broker; the folder's own broker gets them")
    meeting = find_meeting(members, broker, accounts=accounts)
    if wait:
        members.needed_key()
    for name in dict.fromkeys(names):
        invitation = make(members, meeting, name, valid_s, _told)
        if accounts:
            _show_accounts(members, invitation, as_json=as_json)
        shown = sys.stdout.isatty() if qr is None else qr
        _show(invitation, hub, as_json=as_json, qr=shown)
    if wait:
        _answer(members, meeting.access, names, as_json=as_json)


def _answer_open(
    members: Members, *, broker: BrokerAccess | None, wait: bool, as_json: bool, **_: Any
) -> None:
    """Answer devices that were invited before."""
    from protofleet.coordinator.membership.invitations import find_meeting
    from protofleet.errors import InputError

    now = time.time()
    names = tuple(one.device_id for one in members.invitations() if one.is_open(now))
    if not names or not wait:
        raise InputError("no invitation to wait for; make one: protofleet device invite NAME")
    members.needed_key()
    _answer(members, find_meeting(members, broker).access, names, as_json=as_json)


def _show_accounts(members: Members, made: Invitation, *, as_json: bool) -> None:
    """What the operator of another's broker has to make there."""
    from protofleet.wire.topics import invited_account

    invited = members.invitation(made.device_id)
    own = invited.password if invited is not None else ""
    accounts = {invited_account(made.device_id): made.keys().password, made.device_id: own}
    for name, password in accounts.items():
        if as_json:
            click.echo(json.dumps({"event": "account", "name": name, "password": password}))
        else:
            click.echo(f"account to make at the broker: {name}  password: {password}")


def _show(made: Invitation, hub: str | None, *, as_json: bool, qr: bool) -> None:
    # Behind a # it stays in the browser: no server, and no log on the way, sees it.
    text = str(made) if hub is None else f"{hub}/#{made}"
    if as_json:
        record = {"device_id": made.device_id, "until_s": made.until, "invitation": str(made)}
        page = {} if hub is None else {"url": text}
        click.echo(json.dumps({"event": "invited", **record, **page}))
        return
    click.echo(f"{made.device_id}, until {_minute(made.until)}, on the device:")
    click.echo(f"  open {text}" if hub else f"  protofleet device enroll {shell_word(str(made))}")
    if qr:
        show_qr(text)


def _answer(
    members: Members, access: BrokerAccess, names: tuple[str, ...], *, as_json: bool
) -> None:
    """Answer until every invitation of ``names`` was taken or is over."""
    from protofleet.coordinator.membership.enrolment import EnrolmentService
    from protofleet.errors import InputError

    waiting, failed = set(names), set[str]()

    def done() -> bool:
        now = time.time()
        for name in sorted(waiting):
            invited = members.invitation(name)
            if invited is not None and invited.taken_s is not None:
                event = "enrolled"
            elif invited is None or not invited.is_open(now):
                event = "over"
                failed.add(name)
            else:
                continue
            waiting.discard(name)
            _tell_event(name, event, as_json=as_json)
        return not waiting

    advice = "invitations stay good; to answer them: protofleet device invite, or a coordinator"
    with on_interrupt(advice):
        if not as_json:
            click.echo(f"waiting for {', '.join(sorted(waiting))}; Ctrl-C stops", err=True)
        EnrolmentService(members, access, _told).run(done)
    if failed:
        raise InputError(f"not enrolled: {', '.join(sorted(failed))}; invite again")


def _tell_event(name: str, event: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"event": event, "device_id": name}))
    else:
        words = {"enrolled": "enrolled", "over": "its invitation is over"}
        click.echo(f"{time.strftime('%H:%M:%S')} {name}: {words[event]}")
    sys.stdout.flush()


def _rotate_federation(members: Members) -> None:
    from protofleet.signatures import fingerprint

    new, ended = members.rotate()
    click.echo(f"federation '{members.name}': new key {fingerprint(new)}; the old one is removed")
    click.echo("restart a running coordinator: it announces the new key, and devices follow")
    if ended:
        click.echo(f"invite again: {', '.join(ended)}")


def _told(line: str) -> None:
    click.echo(line, err=True)


def _minute(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
