"""*Now*: the state of the round, who is waited for and why, and the cohort."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from protofleet.hub.dashboard.pages import PageRequest
from protofleet.hub.dashboard.records import CurrentRound, DeviceView, LoggedEvent, RunSnapshot

_CELLS = 240
_EVENTS = 12
_DOING = {"receive": "receives", "train": "trains", "send": "sends", "idle": "idle"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A member of the cohort, or of an earlier one that may be late.

    Attributes:
        look: ``done``, ``busy``, ``idle`` or ``gone``.
    """

    device_id: str
    look: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NowView:
    """Attributes as the page shows them.

    Attributes:
        headline: the state in a line; ``why``: what it waits for, one text for each reason.
        seconds_left: to the deadline; None: there is none. Below 0: it has passed.
        opened_s: of the round that is open; None: none is.
        cells: the cohort, whom it waits for first; ``more``: members that are not among them.
    """

    headline: str
    why: tuple[str, ...] = ()
    seconds_left: float | None = None
    opened_s: float | None = None
    delivered: int = 0
    wanted: int = 0
    cells: tuple[Cell, ...] = ()
    more: int = 0
    live: int = 0
    known: int = 0
    held: int = 0
    refused: int = 0
    events: tuple[LoggedEvent, ...] = ()


def view(asked: PageRequest) -> NowView:
    """The page's content."""
    run, current = asked.run, asked.run.current
    states = Counter(one.state for one in run.devices.values())
    common: dict[str, Any] = {
        "live": states["online"],
        "held": states["held"],
        "refused": states["refused"],
        "known": len(run.devices),
        "events": tuple(reversed(run.events[-_EVENTS:])),
    }
    if current is None or current.phase == "committed":
        return NowView(headline=_between(run), why=_needed(run), **common)
    members = [
        _cell(run, run.devices.get(name) or DeviceView(device_id=name), current)
        for name in (*current.cohort, *current.late)
    ]
    members.sort(key=lambda cell: cell.look == "done")
    left = None if current.deadline_s is None else current.deadline_s - asked.now_s
    return NowView(
        headline=_open(run, current),
        why=_reasons(members) if current.phase == "open" else (),
        seconds_left=left if current.phase == "open" and run.served else None,
        opened_s=current.opened_s,
        delivered=len(current.delivered),
        wanted=current.size,
        cells=tuple(members[:_CELLS]),
        more=max(0, len(members) - _CELLS),
        **common,
    )


def doing(device: DeviceView, round_id: int) -> tuple[str, str]:
    """How a member looks whose update is awaited, and what it does, in words."""
    if device.state == "held":
        return "gone", f"held by its owner: {', '.join(device.conditions)}"
    if device.state == "refused":
        return "gone", f"cannot take part: {device.rule}"
    if device.state == "unknown":
        return "gone", "not heard of"
    if device.state != "online":
        return "gone", {"left": "has left"}.get(device.state, f"is {device.state}")
    if device.phase_round == round_id and device.phase in ("receive", "train", "send"):
        return "busy", _DOING[device.phase]
    return "idle", "has not begun"


def _cell(run: RunSnapshot, device: DeviceView, current: CurrentRound) -> Cell:
    if device.device_id in current.delivered:
        return Cell(device_id=device.device_id, look="done", text="update is in")
    late = device.device_id in current.late
    look, text = doing(device, device.phase_round if late else run.round_id)
    return Cell(device_id=device.device_id, look=look, text=text)


def _open(run: RunSnapshot, current: CurrentRound) -> str:
    name = "The final fit" if current.final else f"Round {current.round_id}"
    if current.phase == "closing":
        return f"{name} is being aggregated"
    missing = max(0, current.size - len(current.delivered))
    if not run.served:
        return f"{name} is open, and no coordinator serves it on this machine"
    waits = f"waits for {missing} of {current.size} updates"
    return f"{name} {waits}" if missing else f"{name} has all its updates"


def _reasons(members: list[Cell]) -> tuple[str, ...]:
    counted = Counter(cell.text for cell in members if cell.look != "done")
    return tuple(f"{text}: {count}" for text, count in counted.most_common())


def _between(run: RunSnapshot) -> str:
    coming = run.round_id + 1
    if run.early_end and run.operation in ("finished", "running"):
        return f"Run {run.early_end}"
    if run.operation == "finished":
        return f"Finished after {run.aggregated} rounds"
    if run.operation in ("down", "stopped"):
        verb = "Stopped" if run.operation == "stopped" else "No coordinator serves this run"
        return f"{verb}; round {coming} is next"
    if run.operation == "paused":
        return f"Paused before round {coming}"
    if run.needed is not None and run.live is not None and run.live < run.needed:
        return f"Round {coming} waits for {run.needed - run.live} of {run.needed} devices"
    rateless = run.calibration is not None and run.calibration.chosen is None
    return f"Round {coming} {'waits for a learning rate' if rateless else 'is about to open'}"


def _needed(run: RunSnapshot) -> tuple[str, ...]:
    if run.operation in ("finished", "down", "stopped", "paused"):
        return ()
    counted = Counter(one.state for one in run.devices.values() if one.state != "online")
    return tuple(
        f"{count} {'not heard of' if state == 'unknown' else state}"
        for state, count in counted.most_common()
    )
