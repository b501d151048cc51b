"""*Device*: what one device did, what it paid, how good its model is, and why it was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from protofleet.coordinator.events import DeviceLog
from protofleet.hub.dashboard.details import DeviceHistory, DeviceRound, read_device
from protofleet.hub.dashboard.pages import PageRequest, chart
from protofleet.hub.dashboard.pages.now import doing
from protofleet.hub.dashboard.records import DeviceView, LoggedEvent, RunSnapshot
from protofleet.hub.dashboard.watch import WatchedRun
from protofleet.printable import printable
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.wire.mqtt.usage import FIGURES, UsageFigure

_EVENTS = 30
_LOG_LINES, _LINE_CHARS = 100, 400
_ROWS = 100
_SHADES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionRow:
    """One true class: its name, and a count and a shade (0 to 5) for each predicted class."""

    name: str
    cells: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLogView:
    """The last lines of a device's log, which it sent when ``round_id`` failed on it."""

    time_s: float
    round_id: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePageView:
    """Attributes as the page shows them; ``known``: whether the run knows such a device."""

    device: DeviceView
    known: bool
    doing: str
    rounds: tuple[DeviceRound, ...] = ()
    invited: int = 0
    delivered: int = 0
    scores: str = ""
    losses: str = ""
    score_title: str = ""
    score_text: Callable[[float], str] = str
    classes: tuple[str, ...] = ()
    confusion: tuple[ConfusionRow, ...] = ()
    events: tuple[LoggedEvent, ...] = ()
    log: DeviceLogView | None = None
    figures: tuple[UsageFigure, ...] = FIGURES


def details(watched: WatchedRun, run: RunSnapshot, query: Mapping[str, str]) -> DeviceHistory:
    """The device's history; of a name that the run does not know an empty one."""
    device_id = query.get("id", "")
    if device_id not in run.devices or not run.identity:
        return DeviceHistory()
    return read_device(watched.folder, device_id, run.task)


def view(asked: PageRequest) -> DevicePageView:
    """The page's content."""
    run, history = asked.run, asked.details
    name = asked.query.get("id", "")[:128]
    device = run.devices.get(name)
    if device is None:
        return DevicePageView(device=DeviceView(device_id=name), known=False, doing="")
    metric = METRICS[TASKS[run.task].headline]
    scored = [one for one in history.rounds if one.delivered]
    x = [one.round_id for one in scored]
    names, table = _confusion(history)
    own = tuple(one for one in reversed(run.events) if one.device_id == name)
    in_round = run.current is not None and name in run.current.missing
    return DevicePageView(
        device=device,
        known=True,
        doing=doing(device, run.round_id)[1] if in_round else "",
        rounds=tuple(reversed(history.rounds[-_ROWS:])),
        invited=len(history.rounds),
        delivered=len(scored),
        score_title=metric.title,
        score_text=metric.page_text,
        scores=chart(
            "Round",
            x,
            {metric.title: [_scaled(metric.scaled, one.score) for one in scored]},
            metric,
        ),
        losses=chart(
            "Round",
            x,
            {
                "training": [one.loss for one in scored],
                "own test": [one.own_loss for one in scored],
            },
        ),
        classes=names,
        confusion=table,
        events=own[:_EVENTS],
        log=_log(run.logs.get(name)),
    )


def _log(event: LoggedEvent | None) -> DeviceLogView | None:
    if event is None or not isinstance(event.said, DeviceLog):
        return None
    lines = [printable(line)[:_LINE_CHARS] for line in event.said.lines[-_LOG_LINES:]]
    return DeviceLogView(time_s=event.time_s, round_id=event.said.round_id, text="\n".join(lines))


def _scaled(scaled: Callable[[float], float], value: float | None) -> float | None:
    return None if value is None else round(scaled(value), 4)


def _confusion(history: DeviceHistory) -> tuple[tuple[str, ...], tuple[ConfusionRow, ...]]:
    counts = history.confusion
    if not counts:
        return (), ()
    names = history.outputs
    if len(names) != len(counts):
        names = tuple(f"class {number}" for number in range(len(counts)))
    rows = []
    for name, row in zip(names, counts, strict=True):
        total = max(1, sum(row))
        cells = tuple((int(count), round(_SHADES * count / total)) for count in row)
        rows.append(ConfusionRow(name=name, cells=cells))
    return names, tuple(rows)
