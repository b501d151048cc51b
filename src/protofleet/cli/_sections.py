"""Commands in the help by who uses them."""

from __future__ import annotations

from collections.abc import Mapping

import click

Sections = Mapping[str, tuple[str, ...]]
"""Title → names of commands, in the order of the help."""


def write_sections(formatter: click.HelpFormatter, sections: Sections, lines: Mapping[str, str]) -> None:
    """Write commands under titles, those that no section has under *Others*.

    Args:
        formatter: of the help.
        sections: by title.
        lines: what each command does, by its name.
    """
    width = formatter.width - 6 - max(map(len, lines))
    rest = tuple(sorted(lines.keys() - {name for names in sections.values() for name in names}))
    for title, names in {**sections, "Others": rest}.items():
        rows = [
            (name, click.Command(name, help=lines[name]).get_short_help_str(width))
            for name in names
        ]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


class SectionedGroup(click.Group):
    """A group whose help has sections; ``sections`` are set by who makes it."""

    sections: Sections = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        lines = {name: one.get_short_help_str(1000) for name, one in found.items() if one}
        write_sections(formatter, self.sections, lines)
