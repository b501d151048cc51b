"""Live progress: the coordinator's events, shown as they come."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_KINDS = ("personalisation", "generalisation", "global")  # shown by their first four letters


class LiveView:
    """A bar for the rounds, a line for each that is done.

    Args:
        console: where to show it; a terminal gets a moving bar, a file plain lines.
        rounds: number of rounds of the run.
    """

    def __init__(self, console: Console, rounds: int) -> None:
        self._rounds = rounds
        self._console = console
        self._progress = Progress(
            TextColumn("[bold]round {task.fields[number]}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("rounds", total=rounds, number=0, state="starting")
        self._live = 0
        self._bytes = {"bytes_up": 0, "bytes_down": 0}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: dict[str, Any]) -> None:
        """Take one event of the coordinator."""
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def _on_started(self, event: dict[str, Any]) -> None:
        done = event["round_id"] - 1
        self._progress.update(self._task, completed=done, number=event["round_id"])
        if event["resumed"]:
            self._console.print(f"resuming at round {event['round_id']}")

    def _on_device_online(self, event: dict[str, Any]) -> None:
        self._live = event["live"]
        self._state(f"{self._live} devices online")

    def _on_device_offline(self, event: dict[str, Any]) -> None:
        self._live = event["live"]
        if event["reason"] != "left":
            self._console.print(f"  {event['device_id']} is gone ({event['reason']})")

    def _on_device_held(self, event: dict[str, Any]) -> None:
        self._live = event["live"]
        conditions = ", ".join(event["conditions"])
        self._console.print(f"  {event['device_id']} may not take part: {conditions}")

    def _on_device_refused(self, event: dict[str, Any]) -> None:
        self._console.print(f"  {event['device_id']} refused: {event['reason']}")

    def _on_round_opened(self, event: dict[str, Any]) -> None:
        self._progress.update(self._task, number=event["round_id"])
        self._state(f"{len(event['cohort'])} devices train")

    def _on_update_received(self, event: dict[str, Any]) -> None:
        self._state(f"{event['delivered']} of {event['cohort']} updates")

    def _on_round_closed(self, event: dict[str, Any]) -> None:
        self._progress.update(self._task, completed=event["round_id"])
        scores = " ".join(
            f"{kind[:4]} {event['scores'][kind]['macro_f1']['mean']:.3f}"
            for kind in _KINDS
            if kind in event["scores"]
        )
        self._console.print(
            f"round {event['round_id']:>3}/{self._rounds}{event['seconds']:6.1f} s  "
            f"{event['participants']} devices  F1 {scores}  "
            f"MB ↑{event['bytes_up'] / 1e6:.1f} ↓{event['bytes_down'] / 1e6:.1f}",
            soft_wrap=True,
        )

    def _on_finished(self, event: dict[str, Any]) -> None:
        self._progress.update(self._task, completed=event["rounds"])
        self._state("finished")

    def _state(self, text: str) -> None:
        self._progress.update(self._task, state=text)
