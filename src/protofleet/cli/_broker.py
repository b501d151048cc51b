"""Options of every command that connects to a broker."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from protofleet.wire.mqtt.broker_access import BrokerAccess

_Command = Callable[..., Any]
_FILE = click.Path(dir_okay=False, path_type=Path)
_BESIDE = {
    "broker_user": "user",
    "broker_password_file": "password_file",
    "broker_ca": "ca_file",
    "broker_cert": "cert_file",
    "broker_key": "key_file",
    "insecure": "insecure",
}
"""Options beside the URL, and what ``BrokerAccess`` calls them."""

_OPTIONS = (
    click.option("--broker-user", metavar="NAME", help="Where the URL names none."),
    click.option(
        "--broker-password-file",
        type=_FILE,
        help="That user's password; else it is that in $PROTOFLEET_BROKER_PASSWORD.",
    ),
    click.option(
        "--broker-ca", type=_FILE, help="Who signs the broker's certificate (mqtts), PEM."
    ),
    click.option("--broker-cert", type=_FILE, help="Our own certificate (mqtts), PEM."),
    click.option("--broker-key", type=_FILE, help="Its private key, PEM."),
    click.option(
        "--insecure",
        is_flag=True,
        help="Allow mqtt:// to another machine: everyone on the way can read and change all.",
    ),
)


@dataclass(frozen=True, slots=True)
class GivenBroker:
    """What a command line says of a broker, on top of what a file says.

    Attributes:
        url: of the broker; None: the file's.
        beside: other fields of ``BrokerAccess``; only those that were given.
    """

    url: str | None
    beside: dict[str, Any]

    def over(self, access: BrokerAccess) -> BrokerAccess:
        """The file's access, in which each option replaces what it names and nothing else.

        Raises:
            InputError: parts that do not go together, a password in the command line, or a broker
                on another machine without TLS.
        """
        import msgspec

        if self.url is not None:
            access = access.moved(_without_password(self.url))
        if "password_file" in self.beside:
            access, _ = access.split_password()
        if "user" in self.beside:
            access = access.with_user(self.beside["user"])
        given = msgspec.structs.replace(access, **self.beside).under(Path.cwd())
        given.check_protected()
        return given

    def in_store(self, store: Path) -> BrokerAccess | None:
        """For a device with this store: over what it was given when it enrolled, if it was.

        Raises:
            UsageError, InputError: as ``access`` and ``over``.
            ProvisionError: the enrolment is damaged.
        """
        from protofleet.edge.credentials import FOLDER, load_enrolment

        enrolment = load_enrolment(store / FOLDER)
        if enrolment is None:
            return self.access()
        given = self.url is not None or self.beside
        return self.over(enrolment.access(store / FOLDER)) if given else None

    def access(self) -> BrokerAccess | None:
        """The broker that the command line alone names; None if it names none.

        Raises:
            UsageError: options beside the URL, without it.
            InputError: as ``over``.
        """
        from protofleet.wire.mqtt.broker_access import BrokerAccess

        if self.url is not None:
            return self.over(BrokerAccess(url=self.url))
        for option, name in _BESIDE.items():
            if name in self.beside:
                raise click.UsageError(f"--{option.replace('_', '-')} is for --broker")
        return None


def broker_options(url_help: str, *, required: bool = False) -> Callable[[_Command], _Command]:
    """Gives a command one parameter ``broker``: a ``BrokerAccess``, or None without ``--broker``.

    Args:
        url_help: help of ``--broker``.
        required: whether the command needs it.
    """
    url = click.option("--broker", metavar="URL", required=required, help=url_help)
    return _gathered(url, GivenBroker.access)


def broker_overrides(url_help: str = "In place of that in FILE.") -> Callable[[_Command], _Command]:
    """Gives a command that has a broker elsewhere the parameter ``broker``: ``GivenBroker``.

    Args:
        url_help: help of ``--broker``.
    """
    url = click.option("--broker", metavar="URL", help=url_help)
    return _gathered(url, lambda given: given)


def _gathered(
    url: Callable[[_Command], _Command], make: Callable[[GivenBroker], Any]
) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            told = {name: given.pop(option) for option, name in _BESIDE.items()}
            beside = {name: value for name, value in told.items() if value}
            found = GivenBroker(given["broker"], beside)
            return command(*args, **{**given, "broker": make(found)})

        made: _Command = run
        for option in reversed((url, *_OPTIONS)):
            made = option(made)
        return made

    return decorate


def _without_password(url: str) -> str:
    """The URL; a password in it goes to the environment, where child processes find it.

    Raises:
        InputError: others can see the password, and the broker is not this machine's own.
    """
    from protofleet.errors import InputError
    from protofleet.wire.mqtt.broker_access import PASSWORD_VARIABLE, BrokerAccess, BrokerAddress

    access, password = BrokerAccess(url=url).split_password()
    if password is None:
        return url
    if not BrokerAddress.parse(url).is_loopback:
        raise InputError(
            f"broker {access}: a password in the command line is seen by every user of this "
            f"machine; put it into a file that only you read, --broker-password-file FILE, or "
            f"into the environment, {PASSWORD_VARIABLE}"
        )
    os.environ[PASSWORD_VARIABLE] = password
    return access.url
