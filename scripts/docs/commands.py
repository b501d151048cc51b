"""The command line's reference, made of its click commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from protofleet.cli.main import _root

_INTRODUCTION = """# Commands

Every command of `protofleet`, with its arguments and options, as `--help` prints them.
"""


def commands_page() -> str:
    """Markdown: a section for each command, its subcommands below it."""
    root = click.Context(_root, info_name="protofleet")
    return "\n".join([_INTRODUCTION, *_sections(_root, root, level=2)])


def _sections(group: click.Group, context: click.Context, level: int) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield _section(command, inner, level)
        if isinstance(command, click.Group):
            yield from _sections(command, inner, level + 1)


def _section(command: click.Command, context: click.Context, level: int) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f"{'#' * level} {context.command_path}",
        f"```text\n{context.command_path} {usage}\n```",
        _prose(command.help or ""),
        _options(command, context),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _prose(text: str) -> str:
    r"""Help as Markdown: what follows ``\b`` keeps its lines, and ends at ``\f``."""
    paragraphs = re.split(r"\n{2,}", inspect.cleandoc(text.partition("\f")[0]))
    return "\n\n".join(
        f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```"
        if paragraph.startswith("\b")
        else _plain(paragraph)
        for paragraph in paragraphs
    )


def _options(command: click.Command, context: click.Context) -> str:
    shown = [one for one in command.get_params(context) if one.name != "help"]
    records = [one.get_help_record(context) for one in shown]
    rows = [
        f"| `{_cell(names)}` | {_plain(_cell(text))} |" for names, text in filter(None, records)
    ]
    return "\n".join(["| option | what it does |", "|---|---|", *rows]) if rows else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _plain(text: str) -> str:
    """Text in which Markdown and HTML find nothing to format but links to pages."""
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", re.sub(r"([*_<\[])", r"\\\1", text))
