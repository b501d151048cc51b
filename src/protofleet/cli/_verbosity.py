"""``-v``, ``-q`` and ``--log-format``, and the one place that sets the log up."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from protofleet.log_lines import JsonLines, log_event
from protofleet.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

_META = "protofleet.verbosity"
_LINES = "protofleet.lines"


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


def say(line: str) -> None:
    """Tell how far the work is, on stderr; nothing with ``-q``."""
    if verbosity() >= 0:
        click.echo(line, err=True)


def progress_console(*, stderr: bool = False) -> Console:
    """Where work shows how far it is; silent with ``-q``."""
    from rich.console import Console

    return Console(stderr=stderr, quiet=verbosity() < 0)


def log_format_option(side: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``--log-format`` of a command that runs for long; ``json_lines`` tells what it chose.

    Args:
        side: what ``JsonLines`` calls the process.
    """

    def keep(context: click.Context, _parameter: click.Parameter, chosen: str) -> None:
        context.meta[_LINES] = JsonLines(side) if chosen == "json" else None

    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        expose_value=False,
        callback=keep,
        help="Of the log on stderr; json: one object for each line, events too.",
    )


def json_lines() -> JsonLines | None:
    """What formats the log with ``--log-format json``; else None."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_LINES)


def start_logging(*, quiet: bool = False) -> None:
    """Send the log to stderr: what happens, of that only warnings with ``-q``, all with ``-v``.

    Args:
        quiet: as with ``-q`` unless ``-v`` is given, for a command whose output is its result.
    """
    chosen = verbosity() or (-1 if quiet else 0)
    level = {-1: logging.WARNING, 0: logging.INFO, 1: logging.DEBUG}[chosen]
    pattern = "%(asctime)s %(name)s: %(message)s" if chosen > 0 else "%(asctime)s %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(json_lines() or _OneLine(pattern))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("protofleet").setLevel(level)


def tell_log(message: str) -> bool:
    """Tell the log why the command ends, if it has lines of JSON; else nothing is told."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    if not any(isinstance(one, JsonLines) for one in formatters):
        return False
    log_event(logging.getLogger(__name__), "ended", {}, message, level=logging.CRITICAL)
    return True


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
