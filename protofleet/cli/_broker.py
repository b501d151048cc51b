"""Options of every command that connects to a broker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from protofleet.wire.broker_access import BrokerAccess

_Command = Callable[..., Any]
_FILE = click.Path(dir_okay=False, path_type=Path)
_BESIDE = {
    "broker_ca": "ca_file",
    "broker_cert": "cert_file",
    "broker_key": "key_file",
    "broker_password_file": "password_file",
}
"""Options beside the URL, and what ``BrokerAccess`` calls them."""


def broker_options(url_help: str, *, required: bool = False) -> Callable[[_Command], _Command]:
    """Gives a command one parameter ``broker``: a ``BrokerAccess``, or None without ``--broker``.

    Args:
        url_help: help of ``--broker``.
        required: whether the command needs it.
    """
    options = (
        click.option("--broker", metavar="URL", required=required, help=url_help),
        click.option(
            "--broker-ca", type=_FILE, help="Who signs the broker's certificate (mqtts), PEM."
        ),
        click.option("--broker-cert", type=_FILE, help="Our own certificate (mqtts), PEM."),
        click.option("--broker-key", type=_FILE, help="Its private key, PEM."),
        click.option(
            "--broker-password-file",
            type=_FILE,
            help="Password of the URL's user, so that it is not in the command line.",
        ),
    )

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            beside = {name: given.pop(option) for option, name in _BESIDE.items()}
            return command(*args, **{**given, "broker": _access(given["broker"], beside)})

        for option in reversed(options):
            run = option(run)
        return run

    return decorate


def _access(url: str | None, beside: dict[str, Path | None]) -> BrokerAccess | None:
    import msgspec

    from protofleet.wire.broker_access import BrokerAccess

    if url is not None:
        access = BrokerAccess(url=url)
        return msgspec.structs.replace(access, **beside).under(Path.cwd())
    for option, name in _BESIDE.items():
        if beside[name] is not None:
            raise click.UsageError(f"--{option.replace('_', '-')} is for --broker")
    return None
