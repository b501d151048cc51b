"""*Rounds*: what each round took, and when each of its devices received, trained and sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protofleet.federation.records import RoundRecord
from protofleet.hub.dashboard.details import RoundTimes, read_round
from protofleet.hub.dashboard.pages import PageRequest, whole
from protofleet.hub.dashboard.records import RunSnapshot
from protofleet.hub.dashboard.watch import WatchedRun
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.units import NOTHING, median

_ROWS, _LISTED = 100, 50
_STRAGGLES = 2.0
"""Times the median: who takes longer is marked."""
_LATE_S = 1.0
"""And so much later than it."""
_AT_WORK = ("evaluate", "train", "infer", "encode")
WIDTH = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a bar of ``WIDTH``; ``look``: ``receive``, ``train``, ``send``, ``open``."""

    look: str
    start: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One device's bar; ``seconds``: until its update was taken, None: it is not, or not known."""

    device_id: str
    segments: tuple[Segment, ...]
    seconds: float | None
    text: str
    straggles: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsView:
    """Attributes: the timeline of one round, and the list of all.

    ``scale_s``: seconds that a whole bar stands for.
    """

    chosen: int = 0
    scale_s: float = 0.0
    lanes: tuple[Lane, ...] = ()
    more: int = 0
    stragglers: int = 0
    rounds: tuple[RoundRecord, ...] = ()
    before: int = 0
    after: int = 0
    headings: tuple[str, ...] = ()
    scores: tuple[tuple[str, ...], ...] = ()


def details(watched: WatchedRun, run: RunSnapshot, query: Mapping[str, str]) -> RoundTimes | None:
    """The times of the chosen round, else of the latest."""
    if not run.identity:
        return None
    return read_round(watched.folder, whole(query.get("round", "")) or run.round_id)


def view(asked: PageRequest) -> RoundsView:
    """The page's content."""
    run, times = asked.run, asked.details
    listed = tuple(reversed(run.committed[-_LISTED:]))
    headings = tuple(dict.fromkeys(name for one in listed for name in one.scores.sections))
    found: dict[str, Any] = {
        "rounds": listed,
        "headings": headings,
        "scores": tuple(_scores(one, headings) for one in listed),
    }
    if times is None:
        return RoundsView(**found)
    lanes, scale_s = _lanes(run, times, asked.now_s)
    return RoundsView(
        chosen=times.round_id,
        scale_s=scale_s,
        lanes=tuple(lanes[:_ROWS]),
        more=max(0, len(lanes) - _ROWS),
        stragglers=sum(one.straggles for one in lanes),
        before=times.round_id - 1,
        after=times.round_id + 1 if times.round_id < run.round_id else 0,
        **found,
    )


def _lanes(run: RunSnapshot, times: RoundTimes, now_s: float) -> tuple[list[Lane], float]:
    """Bars of a round's members, the slowest first, and the seconds of a whole bar."""
    taken = run.update_times.get(times.round_id, {})
    seconds: dict[str, float | None] = {}
    for name, phases in times.phases_s.items():
        if name in taken:
            seconds[name] = max(0.0, taken[name] - times.opened_s)
        else:  # the event is gone from the stream: what the device itself has measured
            beside = phases.get("gate", 0.0)  # went on meanwhile
            seconds[name] = sum(phases.values()) - beside if phases else None
    is_open = times.seconds is None
    until = now_s - times.opened_s if is_open else times.seconds or 0.0
    known = [one for one in seconds.values() if one is not None]
    middle = median(known) or 0.0
    scale = max([until if is_open and len(known) < len(seconds) else 0.0, *known, 1e-3])
    lanes = []
    for name, phases in times.phases_s.items():
        own = seconds[name]
        late = max(_STRAGGLES * middle, middle + _LATE_S)
        given_up = own is None and not is_open
        lanes.append(
            Lane(
                device_id=name,
                segments=_segments(phases, own, until, scale),
                seconds=own,
                text=_text(run, times, name, own),
                straggles=bool(known) and (given_up or (until if own is None else own) > late),
            )
        )
    lanes.sort(key=lambda one: -(until + 1 if one.seconds is None else one.seconds))
    return lanes, scale


def _segments(
    phases: Mapping[str, float], seconds: float | None, until: float, scale: float
) -> tuple[Segment, ...]:
    unit = WIDTH / scale
    if seconds is None:
        return (Segment(look="open", start=0.0, width=round(min(until, scale) * unit, 1)),)
    work = sum(phases.get(name, 0.0) for name in _AT_WORK)
    parts = {"receive": phases.get("receive", 0.0), "train": work}
    parts["send"] = max(0.0, seconds - sum(parts.values()))
    found, start = [], 0.0
    for look, length in parts.items():
        width = min(length, scale - start)
        if width > 0:
            found.append(
                Segment(look=look, start=round(start * unit, 1), width=round(width * unit, 1))
            )
            start += width
    return tuple(found)


def _text(run: RunSnapshot, times: RoundTimes, name: str, seconds: float | None) -> str:
    if seconds is not None:
        phases = times.phases_s[name]
        work = sum(phases.get(one, 0.0) for one in _AT_WORK)
        return f"received {phases.get('receive', 0.0):.3g} s, trained {work:.3g} s"
    device = run.devices.get(name)
    if times.seconds is not None:
        return "no update"
    return "awaited" if device is None else f"awaited: {device.phase or device.state}"


def _scores(record: RoundRecord, headings: tuple[str, ...]) -> tuple[str, ...]:
    headline = TASKS[record.scores.task].headline
    metric = METRICS[headline]
    cells = []
    for name in headings:
        spread = record.scores.sections.get(name, {}).get(headline)
        cells.append(NOTHING if spread is None else metric.page_text(spread.mean))
    return tuple(cells)
