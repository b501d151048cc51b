"""Admitted updates on their way to the disk, so many at a time that none pays for it alone."""

from __future__ import annotations

from protofleet.coordinator.ledger.rows import ArrivedUpdate
from protofleet.federation.schedules.schedule import RoundState
from protofleet.wire.transfers.transfer import Received

GATHER_S = 0.05
"""How long an update waits for others: some writes to a disk, and nothing beside a round."""
MOST = 64
"""That are made durable together: after so many, more save little."""


class Arrivals:
    """Updates that wait to be accepted; nobody was told yet that they are here."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Received, ArrivedUpdate]] = []
        self._since = 0.0

    def add(self, event: Received, arrival: ArrivedUpdate, now: float) -> None:
        """One more (``now``: monotonic seconds)."""
        if not self._waiting:
            self._since = now
        self._waiting.append((event, arrival))

    def holds(self, device_id: str) -> bool:
        """Whether an update of the device waits."""
        return any(event.device_id == device_id for event, _ in self._waiting)

    def wait_s(self, now: float) -> float:
        """Until ``is_due`` is to be asked, in seconds; infinite: nothing waits."""
        return max(0.0, self._since + GATHER_S - now) if self._waiting else float("inf")

    def is_due(self, now: float, state: RoundState, *, idle: bool) -> bool:
        """Whether to accept them now.

        Args:
            now: monotonic seconds.
            state: of the open round: when it has all that it wants, nothing is worth waiting for.
            idle: whether no more came in ``wait_s``.
        """
        wanted = min(MOST, state.size - state.updates)
        return bool(self._waiting) and (
            idle or len(self._waiting) >= wanted or now >= self._since + GATHER_S
        )

    def take(self) -> list[tuple[Received, ArrivedUpdate]]:
        """All of them, in the order in which they came; none wait then."""
        taken, self._waiting = self._waiting, []
        return taken
