"""Lines that fit the terminal; what is piped into a file or a program stays on one line."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping

_NARROWEST = 40


def terminal_width() -> int | None:
    """Characters of a line; None where nobody looks at it (``COLUMNS`` says that somebody does)."""
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
        return None
    return max(shutil.get_terminal_size().columns, _NARROWEST)


def wrapped(line: str, hanging: int = 0) -> list[str]:
    """``line``, broken at spaces if it is too long, with later lines indented."""
    width = terminal_width()
    if width is None or len(line) <= width:
        return [line]
    indent = " " * hanging
    found = textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return found or [line]


def rows(pairs: Mapping[str, str] | Iterable[tuple[str, str]], *, indent: int = 0) -> Iterator[str]:
    """Names and what they stand for in two columns, the second one wrapped."""
    listed = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
    width = max((len(name) for name, _ in listed), default=0) + 2
    for name, text in listed:
        # A mark in the place of spaces, which wrapping would take for one.
        line = f"{' ' * indent}{name:{width}}{text}"
        head = line[: indent + width]
        first, *more = wrapped("\x00" * len(head) + text, indent + width)
        yield head + first[len(head) :]
        yield from more
