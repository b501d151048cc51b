"""Devices that are present and may not take part now, by their owners' conditions."""

from __future__ import annotations

from protofleet.coordinator.ledger.device_rows import DeviceRows

FLUSH_S = 1.0
"""Changes are written together: a device that flickers costs no write each time."""


class HeldDevices:
    """Which conditions hold which device; ``status`` finds them in the ledger.

    Args:
        rows: of the ledger.
    """

    def __init__(self, rows: DeviceRows) -> None:
        self._rows = rows
        self._held: dict[str, tuple[str, ...]] = {}
        self._changed: dict[str, tuple[str, ...]] = {}
        self._flushed_s = float("-inf")
        rows.forget_held()

    def __len__(self) -> int:
        return len(self._held)

    def note(self, device_id: str, conditions: tuple[str, ...]) -> bool:
        """What holds a device from now on, none: nothing does; whether that is another."""
        if self._held.get(device_id, ()) == conditions:
            return False
        if conditions:
            self._held[device_id] = conditions
        else:
            del self._held[device_id]
        self._changed[device_id] = conditions
        return True

    def flush(self, now: float) -> None:
        """Write what has changed, at most once a second (``now``: monotonic seconds)."""
        if self._changed and now >= self._flushed_s + FLUSH_S:
            self._flushed_s = now
            self._rows.note_held(self._changed)
            self._changed.clear()
