"""Where each device is in the round, on a terminal: a fleet's state below the lines of its run.

It is read from the run folder in a thread of its own, so that nothing of the run waits for it, and
it says what a dashboard would: all is in the snapshot of ``protofleet.hub.dashboard.reading``.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from protofleet.hub.dashboard.reading import RunReader
from protofleet.hub.dashboard.records import DeviceView, RunSnapshot
from protofleet.printable import printable
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.units import byte_text

_EVERY_S = 0.5
_FEWEST_ROWS, _MOST_ROWS, _OTHER_LINES = 3, 30, 5
_NARROW = 72
"""Columns below which the time in a state is left out."""
_BUSY = ("receive", "train", "send")
_LOOKS = {
    "invited": ("is invited", "cyan"),
    "receive": ("receives", "cyan"),
    "train": ("trains", "blue"),
    "send": ("sends", "magenta"),
    "done": ("is done", "green"),
    "waiting": ("waits", "dim"),
    "unknown": ("not heard yet", "dim"),
    "held": ("held", "yellow"),
    "refused": ("refused", "red"),
}


def activity(run: RunSnapshot, device: DeviceView) -> str:
    """What a device does.

    Returns:
        ``receive``, ``train``, ``send``; ``done`` (its update counts in the open round),
        ``invited`` (to it or to an earlier one that may be answered late, and nothing of it was
        heard since), ``waiting`` (for a round), or its state where that is not ``online``.
    """
    if device.state != "online":
        return device.state
    current = run.current
    if current is not None and device.device_id in current.late:
        return device.phase if device.phase in _BUSY else "invited"
    if current is None or current.phase == "committed":
        return "waiting"
    if device.device_id in current.delivered:
        return "done"
    if device.phase in _BUSY:
        return device.phase
    return "invited" if device.device_id in current.missing else "waiting"


def fleet_table(run: RunSnapshot, *, width: int, rows: int, now_s: float) -> RenderableType:
    """The round in two lines, then a line for each device, or for the slowest where they are many.

    Args:
        run: as it stands.
        width: columns that there are.
        rows: devices that have room; of more, those that the round waits for longest are shown.
        now_s: Unix seconds.
    """
    doing = {name: activity(run, device) for name, device in run.devices.items()}
    counts = Counter(doing.values())
    summary = Text(no_wrap=True, overflow="ellipsis")
    for number, (name, count) in enumerate(sorted(counts.items(), key=_rank)):
        text, colour = _LOOKS.get(name, (name, "red"))
        summary.append(" · " if number else "")
        summary.append(f"{count} {text.removeprefix('is ')}", colour)
    names = list(doing)
    if len(names) > rows:
        names = _slowest(run, doing)[:rows]
        summary.append(f"   ({len(names)} slowest of {len(doing)})" if names else "", "dim")
    lines: list[RenderableType] = [_head(run, now_s), summary]
    if names:
        lines.append(_table(run, [(run.devices[one], doing[one]) for one in names], width, now_s))
    return Group(*lines)


def _rank(pair: tuple[str, int]) -> int:
    order = list(_LOOKS)
    return order.index(pair[0]) if pair[0] in order else len(order)


def _slowest(run: RunSnapshot, doing: dict[str, str]) -> list[str]:
    """Whom the round waits for, the longest in what it does first; else who cannot take part."""
    missing = (*run.current.missing, *run.current.late) if run.current is not None else ()
    awaited = [run.devices[name] for name in missing if name in run.devices]
    away = [run.devices[name] for name, what in doing.items() if what in ("held", "refused")]
    rest = [one for one in away if one.device_id not in missing]
    return [one.device_id for one in sorted(awaited, key=_since) + sorted(rest, key=_since)]


def _since(device: DeviceView) -> float:
    return device.phase_since_s if device.state == "online" else device.since_s


def _head(run: RunSnapshot, now_s: float) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(width=12)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    bar = ProgressBar(total=max(run.rounds, 1), completed=run.aggregated, width=12)
    grid.add_row(Text(_round(run), style="bold"), bar, _progress(run, now_s))
    return grid


def _round(run: RunSnapshot) -> str:
    if run.current is not None and run.current.final:
        return "final fit"
    return f"round {run.round_id}/{run.rounds}" if run.rounds else f"round {run.round_id}"


def _progress(run: RunSnapshot, now_s: float) -> str:
    current = run.current
    if run.operation not in ("running", "down"):
        return run.operation
    if current is None or current.phase == "committed":
        return "" if run.needed is None else f"waits for devices: {run.live} of {run.needed} there"
    if current.phase == "closing":
        return "is aggregated"
    told = f"{len(current.delivered)} of {current.size} updates, {_time(now_s - current.opened_s)}"
    left = 0.0 if current.deadline_s is None else current.deadline_s - now_s
    return f"{told}, {_time(left)} left" if left > 0 else told


def _table(
    run: RunSnapshot, shown: list[tuple[DeviceView, str]], width: int, now_s: float
) -> Table:
    wide = width >= _NARROW
    metric = METRICS[TASKS[run.task].headline]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("device", no_wrap=True, overflow="ellipsis", min_width=8, max_width=24)
    table.add_column("in the round", no_wrap=True, overflow="ellipsis", width=26 if wide else 16)
    if wide:
        table.add_column("for", justify="right", no_wrap=True, width=7)
    for heading in ("up", "down"):
        table.add_column(heading, justify="right", no_wrap=True, width=8)
    table.add_column(metric.label, justify="right", no_wrap=True, width=max(6, len(metric.label)))
    for device, doing in shown:
        _, colour = _LOOKS.get(doing, (doing, "red"))
        since = _since(device)
        table.add_row(
            printable(device.device_id),
            Text(_what(device, doing), style=colour),
            *([_time(now_s - since) if since else ""] if wide else []),
            byte_text(device.usage.bytes_up),
            byte_text(device.usage.bytes_down),
            "-" if device.score is None else metric.text(device.score),
            style="dim" if doing == "waiting" else "",
        )
    return table


def _what(device: DeviceView, doing: str) -> str:
    text = _LOOKS.get(doing, (doing, ""))[0]
    why = {"held": ", ".join(device.conditions), "refused": device.rule}.get(doing, "")
    return printable(f"{text}: {why}" if why else text)


def _time(seconds: float) -> str:
    """At most seven characters, so that columns stay in place: ``59 s``, ``1:15``, ``2 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02}" if whole < 3600 else f"{whole // 3600} h"


class LiveFleet:
    """Keeps a fleet's state below what a console prints; where that is no terminal, does nothing.

    Args:
        console: all that is printed meanwhile must go through it, or to stderr.
        folder: of the run; it may be made later.
        rounds: of the run.
    """

    def __init__(self, console: Console, folder: Path, rounds: int) -> None:
        self._console, self._reader = console, RunReader("run", folder, rounds=rounds)
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),
            vertical_overflow="crop",
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="protofleet-live", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._live.stop()
            _log_to_stderr()

    def begin(self) -> None:
        """Show it from now on: the run has started."""
        if self._console.is_terminal and self._thread.ident is None:
            self._live.start()
            _log_to_stderr()
            self._thread.start()

    def _keep(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._live.update(self._view(), refresh=True)

    def _view(self) -> RenderableType:
        size = self._console.size
        rows = min(_MOST_ROWS, max(_FEWEST_ROWS, size.height // 2 - _OTHER_LINES))
        run = self._reader.read()
        return fleet_table(run, width=size.width, rows=rows, now_s=time.time())


def _log_to_stderr() -> None:
    """Let the log's lines go where stderr leads now: above the view, or to the terminal itself."""
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler:
            handler.setStream(sys.stderr)
