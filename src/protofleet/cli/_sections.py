"""Commands in the help by who uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

Sections = Mapping[str, tuple[str, ...]]
"""Title → names of commands, in the order of the help."""


def write_sections(
    formatter: click.HelpFormatter, sections: Sections, lines: Mapping[str, str]
) -> None:
    """Write commands under titles.

    Args:
        formatter: of the help.
        sections: by title, all commands.
        lines: what each does, by its name.
    """
    longest = max(map(len, lines))
    width = formatter.width - 6 - longest
    for title, names in sections.items():
        shown = [click.Command(name, help=lines[name]).get_short_help_str(width) for name in names]
        with formatter.section(title):
            padded = (name.ljust(longest) for name in names)
            formatter.write_dl(list(zip(padded, shown, strict=True)))


class SectionedGroup(click.Group):
    """A group whose help has sections.

    Args:
        sections: of all its commands.
        attrs: as of ``click.Group``.
    """

    def __init__(self, *args: Any, sections: Sections, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self._sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        lines = {name: one.help or "" for name, one in found.items() if one}
        write_sections(formatter, self._sections, lines)
