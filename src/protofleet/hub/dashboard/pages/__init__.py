"""One module for each page: what its template shows, made from a snapshot. No input, no output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from protofleet.hub.dashboard.records import RunSnapshot
from protofleet.hub.dashboard.trail import AuditRecord
from protofleet.hub.dashboard.watch import WatchedRun
from protofleet.strategies.tasks import Metric


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


Lines = Mapping[str, list[float | None]]
"""Of a chart: the values of each by its label; None where there is none."""


def chart(title: str, x: list[int], lines: Lines, metric: Metric | None = None) -> str:
    """A line chart for ``data-chart``; empty where no line has a point.

    Args:
        title: of the horizontal axis.
        x: along it.
        lines: what is drawn.
        metric: which score it is: the axis of a share ends at 0 and 100 %.
    """
    drawn = {name: values for name, values in lines.items() if any(v is not None for v in values)}
    if not drawn:
        return ""
    series = [{"label": name, "values": values} for name, values in drawn.items()]
    bounds = [0, 100] if metric and metric.is_share else None
    record = {"title": title, "x": x, "series": series, "bounds": bounds}
    return msgspec.json.encode(record).decode()


def whole(text: str) -> int:
    """A number of an address; 0 where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
