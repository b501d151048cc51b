"""What a device tells its owner, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protofleet.edge.owner.participation import Participation
from protofleet.edge.presence import PresencePublisher

Report = Callable[[str, dict[str, Any]], None]
"""Takes an event's name (joined, moved, switched, held, free, waiting, calibrating, calibrated,
task, trained, delivered, in_use, dropped, finished, left) and its figures."""


@dataclass(slots=True)
class StopFlag:
    """Whether the device is to leave soon; set in a signal handler, too, so that it has no lock."""

    wanted: bool = False


class HeldNotice:
    """Says what holds a device, to its owner and to the coordinator.

    Args:
        participation: of the owner's conditions.
        presence: to the coordinator.
        report: to the owner.
    """

    def __init__(
        self, participation: Participation, presence: PresencePublisher, report: Report
    ) -> None:
        self._participation, self._presence, self._report = participation, presence, report

    def tell(self) -> None:
        """Say it as it is now."""
        owner = self._participation
        owner.news()
        self._report(
            "held" if owner.held else "free", {"conditions": owner.held, "reason": owner.reason}
        )
        self._presence.publish(owner.held)
