"""Entry point: finds subcommands lazily, so that a device never imports what it does not run."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any

import click

from protofleet.cli._sections import write_sections
from protofleet.cli._short_help import SHORT_HELP
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._verbosity import add_options, tell_log
from protofleet.errors import ProtofleetError
from protofleet.extras import missing_module
from protofleet.printable import printable

_COMMANDS = {
    "broker": "protofleet.cli.broker:broker",
    "bundle": "protofleet.cli.bundle:bundle",
    "chaos": "protofleet.cli.chaos:chaos",
    "coordinator": "protofleet.cli.coordinator:coordinator",
    "demo": "protofleet.cli.demo:demo",
    "device": "protofleet.cli.device:device",
    "docs": "protofleet.cli.docs:docs",
    "doctor": "protofleet.cli.doctor:doctor",
    "experiment": "protofleet.cli.experiment:experiment",
    "export": "protofleet.cli.export:export",
    "fleet": "protofleet.cli.fleet:fleet",
    "hub": "protofleet.cli.hub:hub",
    "kernels": "protofleet.cli.kernels:kernels",
    "load": "protofleet.cli.load:load",
    "models": "protofleet.cli.models:models",
    "new": "protofleet.cli.new:new",
    "pretrain": "protofleet.cli.pretrain:pretrain",
    "privacy": "protofleet.cli.privacy:privacy",
    "rehearse": "protofleet.cli.rehearse:rehearse",
    "report": "protofleet.cli.report:report",
    "strategies": "protofleet.cli.strategies:strategies",
    "bench": "protofleet.cli.bench:bench",
}


_SECTIONS = {
    "To begin": ("demo", "new", "docs", "doctor"),
    "Models and bundles": ("models", "strategies", "pretrain", "export", "bundle"),
    "On a device": ("device",),
    "With a fleet": ("broker", "coordinator", "hub", "report", "privacy"),
    "To rehearse and compare": ("rehearse", "fleet", "experiment"),
    "To measure and test": ("bench", "load", "chaos", "kernels"),
}
"""Who uses them, in the order in which they are met."""


class _LazyGroup(click.Group):
    """Imports a subcommand's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return add_options(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands by their first lines, for which none is imported."""
        lines = {name: SHORT_HELP.get(name, "") for name in self.list_commands(ctx)}
        write_sections(formatter, _SECTIONS, lines)


# Names alone, of which click suggests one for one that is misspelt.
_NAMES = {name: click.Command(name) for name in _COMMANDS}


@click.group(
    cls=_LazyGroup, commands=_NAMES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="protofleet", prog_name="protofleet")
def _root() -> None:
    """Personalised federated learning on real devices.

    Train centrally, export a signed bundle, and let a fleet of devices learn their owners'
    patterns over MQTT. Start with: protofleet demo
    """


def main(args: list[str] | None = None) -> Any:
    """Run the command line; a deliberate error is one clear line on stderr and its exit status.

    What the system refuses (a file, a disk, memory) and a package that an extra would have brought
    are such errors too. Any other missing module, and a missing part of a package that is there,
    keeps its traceback. With ``-v`` the line stands below the traceback of its error.
    """
    try:
        with on_interrupt("the same command starts over"):
            return _root(args, prog_name="protofleet")
    except (ProtofleetError, ImportError, MemoryError, OSError) as error:
        message = _message(error, sys.argv[1:] if args is None else args)
        if message is None:
            raise
        status = error.exit_status if isinstance(error, ProtofleetError) else 1
        if not {"-v", "--verbose"}.isdisjoint(sys.argv if args is None else args):
            traceback.print_exception(error)
    if not tell_log(message):
        message = "\n".join(printable(line) for line in message.split("\n"))
        click.echo(f"protofleet: {message}", err=True)
    sys.exit(status)


def _message(error: Exception, arguments: list[str]) -> str | None:
    """What to tell a person; None where the error is ours."""
    if isinstance(error, ImportError):
        command = next((one for one in arguments if one in _COMMANDS), "")
        lack = missing_module(error, command)
        return None if lack is None else f"{lack.text}: {lack.remedy}"
    if isinstance(error, MemoryError):
        return "out of memory; give the process more, or take a smaller batch or model"
    if isinstance(error, OSError) and error.strerror is not None:
        return f"'{error.filename}': {error.strerror}" if error.filename else error.strerror
    return str(error)
