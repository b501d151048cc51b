"""Links of pages that are read in the repository, as the site needs them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def relink(path: Path, pages: Mapping[Path, str], root: Path) -> str:
    """A page's text whose links lead to pages of the site.

    Args:
        path: of the page, in the repository.
        pages: file → path in the site, the page's own among them.
        root: of the repository.

    Returns:
        Links to ``pages`` are renamed; one to another file of the repository becomes its text; one
        to nothing stays, and the build refuses it.
    """

    def moved(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        file = (path.parent / target).resolve()
        if file in pages:
            there = os.path.relpath(pages[file], Path(pages[path]).parent)
            return f"[{text}]({there}{anchor})"
        beside = file.is_relative_to(root / "docs")
        return text if file.exists() and not beside else found[0]

    # Every second piece is a block of code, in which nothing is a link.
    pieces = _FENCE.split(path.read_text(encoding="utf-8"))
    return "".join(
        piece if index % 2 else _LINK.sub(moved, piece) for index, piece in enumerate(pieces)
    )
