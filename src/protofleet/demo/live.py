"""Live progress: the coordinator's events as lines, and on a terminal the fleet below them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from rich.console import Console

from protofleet.live import LiveFleet

_KINDS = {"personalisation": "own", "generalisation": "everybody's", "global": "shared"}
"""What a model was scored on, and the shared model, in a word."""


class LiveView:
    """A line for each round that is done and for what goes wrong, the fleet below.

    Args:
        console: where to show it; only a terminal gets the fleet.
        rounds: number of rounds of the run.
        folder: of the run.
    """

    def __init__(self, console: Console, rounds: int, folder: Path) -> None:
        self._rounds = rounds
        self._console = console
        self._fleet = LiveFleet(console, folder, rounds)

    def __enter__(self) -> Self:
        self._fleet.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._fleet.__exit__()

    def show(self, event: dict[str, Any]) -> None:
        """Take one event of the coordinator."""
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def _on_started(self, event: dict[str, Any]) -> None:
        self._fleet.begin()
        if event["resumed"]:
            self._console.print(f"resuming at round {event['round_id']}")

    def _on_device_offline(self, event: dict[str, Any]) -> None:
        if event["reason"] != "left":
            self._console.print(f"  {event['device_id']} is gone ({event['reason']})")

    def _on_device_held(self, event: dict[str, Any]) -> None:
        conditions = ", ".join(event["conditions"])
        self._console.print(f"  {event['device_id']} may not take part: {conditions}")

    def _on_device_refused(self, event: dict[str, Any]) -> None:
        self._console.print(f"  {event['device_id']} refused: {event['reason']}")

    def _on_round_closed(self, event: dict[str, Any]) -> None:
        scores = " ".join(
            f"{word} {100 * event['scores'][kind]['accuracy']['mean']:.1f}"
            for kind, word in _KINDS.items()
            if kind in event["scores"]
        )
        self._console.print(
            f"round {event['round_id']:>3}/{self._rounds}{event['seconds']:6.1f} s  "
            f"{event['participants']} devices  right in % {scores}  "
            f"MB ↑{event['bytes_up'] / 1e6:.1f} ↓{event['bytes_down'] / 1e6:.1f}",
            soft_wrap=True,
        )
