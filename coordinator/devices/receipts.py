"""Receipts that devices may not have heard when a run ends, for its last announcement."""

from __future__ import annotations

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.wire.messages import MOST_RECEIPTS, RECEIPT_DIGITS, Heartbeat

_ENTRY_BYTES = RECEIPT_DIGITS + 3
"""With quotes and comma."""


class Receipts:
    """Knows whose last update was taken, and who is known to have heard it.

    Args:
        ledger: of the run.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._heard: dict[str, int] = {}

    def on_heartbeat(self, device_id: str, heartbeat: Heartbeat) -> None:
        """An idle device names the last round that counts for it."""
        if heartbeat.phase == "idle":
            self._heard[device_id] = heartbeat.round_id

    def unheard(self, packet_bytes: int) -> tuple[str, ...]:
        """Of each device's last update, if it was taken and the device has not said that it knows.

        Names as in an announcement, those of the latest rounds first, in at most half of a packet.
        """
        most = min(MOST_RECEIPTS, packet_bytes // 2 // _ENTRY_BYTES)
        found = (
            transfer_id[:RECEIPT_DIGITS]
            for device_id, round_id, transfer_id in self._ledger.last_accepted()
            if self._heard.get(device_id, 0) < round_id
        )
        return tuple(name for name, _ in zip(found, range(most), strict=False))
