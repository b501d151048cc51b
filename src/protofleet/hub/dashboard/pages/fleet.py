"""*Fleet*: all devices in a table that is searched, sorted, filtered and paged here, not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from protofleet.federation.outcomes.outcome import Outcome
from protofleet.hub.dashboard.pages import PageRequest, whole
from protofleet.hub.dashboard.records import DeviceView
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.wire.mqtt.usage import FIGURES, UsageFigure

PER_PAGE = 50
_ALERT_ORDER = {"refused": 0, "silent": 1, "offline": 2, "unregistered": 3, "held": 4, "online": 5}


def _counted(figure: UsageFigure) -> Callable[[DeviceView], float | None]:
    return lambda one: figure.counted(one.usage)


_COLUMNS: Mapping[str, tuple[str, Callable[[DeviceView], Any]]] = {
    "device": ("Device", lambda one: one.device_id),
    "state": ("State", lambda one: _ALERT_ORDER.get(one.state, 6)),
    "heard": ("Last heard", lambda one: one.heard_s or None),
    "bundle": ("Bundle", lambda one: one.bundle or None),
    "round": ("Last round", lambda one: one.last_round or None),
    "score": ("Own score", lambda one: one.score),
    "since": ("Gain", lambda one: None if one.owner is None else one.owner.gain),
    "loss": ("Loss", lambda one: one.loss),
    "backend": ("Backend", lambda one: one.backend or None),
    "train": ("Step ms", lambda one: one.train_step_ms),
    **{one.name: (one.shown.label, _counted(one)) for one in FIGURES},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading: its address sorts by it; ``sorted``: of ``aria-sort``, or empty."""

    name: str
    title: str
    address: str
    sorted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Attributes: one page of the devices that fit, and how to get the others."""

    columns: tuple[Column, ...]
    rows: tuple[DeviceView, ...]
    found: int
    first: int
    states: tuple[tuple[str, int], ...]
    search: str
    state: str
    sort: str
    order: str
    before: str
    after: str
    score_text: Callable[[float], str]
    gained: Callable[[DeviceView], str]
    figures: tuple[UsageFigure, ...] = FIGURES


def view(asked: PageRequest) -> FleetView:
    """The page's content."""
    devices = asked.run.devices.values()
    search, state = asked.query.get("search", "")[:64], asked.query.get("state", "")
    sort = asked.query.get("sort", "device")
    sort = sort if sort in _COLUMNS else "device"
    descending = asked.query.get("order") == "descending"
    wanted = search.lower()
    found = [
        one
        for one in devices
        if wanted in one.device_id.lower() and (not state or one.state == state)
    ]
    key = _COLUMNS[sort][1]
    known = sorted((one for one in found if key(one) is not None), key=key, reverse=descending)
    found = known + [one for one in found if key(one) is None]
    first = min(whole(asked.query.get("first", "")), max(0, len(found) - 1))
    first -= first % PER_PAGE
    chosen = {"search": search, "state": state, "sort": sort}
    chosen["order"] = "descending" if descending else "ascending"

    def address(**changes: str) -> str:
        return "?" + urlencode({k: v for k, v in (chosen | changes).items() if v})

    last = first + PER_PAGE >= len(found)
    metric = METRICS[TASKS[asked.run.task].headline]
    return FleetView(
        columns=tuple(_column(name, chosen, address) for name in _COLUMNS),
        rows=tuple(found[first : first + PER_PAGE]),
        found=len(found),
        first=first,
        states=tuple(sorted(Counter(one.state for one in devices).items())),
        search=search,
        state=state,
        sort=sort,
        order=chosen["order"],
        before=address(first=str(first - PER_PAGE)) if first else "",
        after="" if last else address(first=str(first + PER_PAGE)),
        score_text=metric.page_text,
        gained=partial(_gained, asked.run.outcome),
    )


def _gained(outcome: Outcome | None, one: DeviceView) -> str:
    if outcome is None or one.owner is None:
        return "-"
    return outcome.gain_text(one.owner.gain)


def _column(name: str, chosen: Mapping[str, str], address: Callable[..., str]) -> Column:
    is_sorted = chosen["sort"] == name
    down = is_sorted and chosen["order"] == "ascending"
    return Column(
        name=name,
        title=_COLUMNS[name][0],
        address=address(sort=name, order="descending" if down else "ascending"),
        sorted=chosen["order"] if is_sorted else "",
    )
