"""Pages of results that belong together: a first one, and those that it leads to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from protofleet.durable import replace_whole


def write_pages(first: Path, texts: Mapping[str, str]) -> None:
    """Write pages that are linked.

    Args:
        first: file of the first one.
        texts: of all, by path as seen from its folder; the first one comes first.
    """
    own = next(iter(texts))
    for path, text in texts.items():
        place = first if path == own else first.parent / path
        place.parent.mkdir(exist_ok=True)
        replace_whole(place, text.encode(), shared=True)
