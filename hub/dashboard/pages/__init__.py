"""One module for each page: what its template shows, made from a snapshot. No input, no output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from protofleet.hub.dashboard.access import AuditRecord
from protofleet.hub.dashboard.records import RunSnapshot
from protofleet.hub.dashboard.watch import WatchedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """What a page is asked for.

    Attributes:
        run: as it stands.
        query: of the address.
        now_s: Unix seconds.
        runs: all that the dashboard shows, by key.
        details: what ``Page.details`` has read.
        trail: what operators did, the latest first; None: who asks may not see it.
    """

    run: RunSnapshot
    query: Mapping[str, str]
    now_s: float
    runs: Mapping[str, RunSnapshot]
    details: Any = None
    trail: tuple[AuditRecord, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a run.

    Attributes:
        title: in the menu, and of the page.
        view: what its template ``NAME.html.jinja2`` gets as ``view``.
        details: reads what a snapshot does not hold, in a thread; takes the run, the snapshot and
            the address's query. None: nothing.
        shows_trail: whether it shows what operators did.
        in_menu: others are reached from the pages that are.
    """

    title: str
    view: Callable[[PageRequest], Any]
    details: Callable[[WatchedRun, RunSnapshot, Mapping[str, str]], Any] | None = None
    shows_trail: bool = False
    in_menu: bool = True


def chart(title: str, x: list[int], /, **series: list[float | None]) -> str:
    """A line chart for ``data-chart``: labels of the lines by keyword, ``_`` for a space."""
    lines = [{"label": name.replace("_", " "), "values": found} for name, found in series.items()]
    return msgspec.json.encode({"title": title, "x": x, "series": lines}).decode()


def whole(text: str) -> int:
    """A number of an address; 0 where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
