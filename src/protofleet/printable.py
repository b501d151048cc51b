"""Text from outside, as it may stand in a log or on a terminal."""

from __future__ import annotations

import shlex
from pathlib import Path


def printable(text: str) -> str:
    r"""``text`` with every character escaped that is not seen: controls, line breaks, bidi marks.

    Else a reason that some device sent could colour or clear the operator's terminal, give it
    another title, or look like a line of its own. Escapes are those of JSON (``\u001b``), so that
    the text of a JSON value stays the same value.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def shell_word(value: Path | str) -> str:
    """One word of a command that a person is to type: quoted where it has blanks and the like."""
    return shlex.quote(str(value))
