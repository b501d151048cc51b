"""The documentation's blocks of code, and the command lines in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\s*\n)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"(?<!`)`(protofleet [^`]+)`(?!`)")
_ELIDED = "…"
_REDIRECTIONS = frozenset({">", ">>", "<", ">&"})
_ENDS = frozenset({"|", "||", "&", "&&", ";", "(", ")"}) | _REDIRECTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block.

    Attributes:
        page: its file's name.
        line: of its fence, from 1.
        language: behind the fence.
        text: without the fences.
        reason: why it cannot be run here, ``<!-- not run: … -->`` before it; empty: it can.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a line.

    Attributes:
        words: the command and its arguments; ``…`` is left out.
        complete: whether nothing was left out.
        fed: whether something is piped into it.
    """

    words: tuple[str, ...]
    complete: bool
    fed: bool

    @property
    def program(self) -> str:
        """The first word's last part."""
        return self.words[0].rpartition("/")[2] if self.words else ""

    def arguments(self) -> tuple[str, ...] | None:
        """Those of ``protofleet``, also behind ``sudo``, ``env`` and the like; None: not called."""
        if _NAMES_FILES & set(self.words[:2]):
            return None
        for index, word in enumerate(self.words):
            is_user = index > 0 and self.words[index - 1] == "-u"
            if not is_user and (word == "protofleet" or word.endswith("/bin/protofleet")):
                return self.words[index + 1 :]
        return None


_NAMES_FILES = frozenset({"install", "ln", "useradd"})
"""Behind these ``protofleet`` is a file or a user."""


def blocks() -> list[Block]:
    """Of what is read first and of every page, in their order."""
    return [block for page in _pages() for block in _blocks(page)]


def mentions() -> Iterator[tuple[str, Command]]:
    """Pages and the commands of ours that stand in their sentences.

    A word in brackets, and the ``…`` of a group's command, are left out.
    """
    for page in _pages():
        for found in _INLINE.findall(_BLOCK.sub("", page.read_text(encoding="utf-8"))):
            for command in commands(" ".join(found.split())):
                words = tuple(word for word in command.words if not word.startswith("["))
                named = replace(command, words=words)
                if named.arguments():
                    yield page.name, named


def _pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        indent = found["indent"]
        lines = [line.removeprefix(indent) for line in found["text"].splitlines(keepends=True)]
        yield Block(
            page=page.name,
            line=text.count("\n", 0, found.start("language")) + 1,
            language=found["language"],
            text="".join(lines),
            reason=found["reason"] or "",
        )


def commands(script: str) -> Iterator[Command]:
    """The simple commands of a shell script, in their order, without comments and redirections."""
    for line in script.replace("\\\n", " ").splitlines():
        yield from _commands(line)


def _commands(line: str) -> Iterator[Command]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    fed, redirected = False, False
    for part in [*lexer, ";"]:
        if part not in _ENDS:
            if not redirected:
                words.append(part)
            redirected = False
        elif part in _REDIRECTIONS:
            redirected = True
            if words and words[-1].isdecimal():
                words.pop()
        else:
            if words:
                kept = tuple(word for word in words if word != _ELIDED)
                yield Command(words=kept, complete=len(kept) == len(words), fed=fed)
            words, fed = [], part == "|"
