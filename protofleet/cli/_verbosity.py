"""``-v`` and ``-q`` of every command, and the one place that sets the log up."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from protofleet.printable import printable

_META = "protofleet.verbosity"


def add_options(command: click.Command) -> click.Command:
    """Give ``command``, or every command of a group, ``-v`` and ``-q``; once."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            add_options(inner)
    elif not any(parameter.name == "verbosity" for parameter in command.params):
        command.params += [
            _option("-v", "--verbose", 1, "More detail, and where an error came from."),
            _option("-q", "--quiet", -1, "Only warnings, errors and results."),
        ]
    return command


def verbosity() -> int:
    """1 after ``-v``, -1 after ``-q``, else 0."""
    context = click.get_current_context(silent=True)
    return 0 if context is None else int(context.meta.get(_META, 0))


def start_logging(*, quiet: bool = False) -> None:
    """Send the log to stderr: what happens, of that only warnings with ``-q``, all with ``-v``.

    Args:
        quiet: as with ``-q`` unless ``-v`` is given, for a command whose output is its result.
    """
    chosen = verbosity() or (-1 if quiet else 0)
    level = {-1: logging.WARNING, 0: logging.INFO, 1: logging.DEBUG}[chosen]
    pattern = "%(asctime)s %(name)s: %(message)s" if chosen > 0 else "%(asctime)s %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(pattern))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("protofleet").setLevel(level)


class _OneLine(logging.Formatter):
    """Keeps what a peer has sent from writing to the terminal as it likes."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))


def _option(short: str, long: str, value: int, text: str) -> click.Option:
    def keep(context: click.Context, _parameter: click.Parameter, chosen: Any) -> None:
        if chosen is not None:
            context.meta[_META] = chosen

    return click.Option(
        [short, long, "verbosity"],
        flag_value=value,
        type=int,
        expose_value=False,
        callback=keep,
        help=text,
    )
