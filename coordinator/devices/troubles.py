"""What is wrong on devices that take part, kept for whoever reads the run."""

from __future__ import annotations

from protofleet.coordinator import events
from protofleet.coordinator.ledger.device_rows import DeviceRows
from protofleet.federation.outcomes.trouble import of_devices


class DeviceTroubles:
    """Follows what is wrong on which device.

    Args:
        rows: of the ledger.
        known: what it holds: trouble → devices.
        sink: told what is new.
    """

    def __init__(
        self, rows: DeviceRows, known: dict[str, tuple[str, ...]], sink: events.Sink
    ) -> None:
        self._rows, self._sink = rows, sink
        self._known = {(device_id, what) for what, names in known.items() for device_id in names}

    def note(self, device_id: str, what: str, *, there: bool) -> None:
        """A device has the trouble, one of ``DEVICE_TROUBLES``, or has it no more."""
        if there == ((device_id, what) in self._known):
            return
        self._rows.note_trouble(device_id, what, there=there)
        if not there:
            self._known.remove((device_id, what))
            return
        self._known.add((device_id, what))
        trouble = of_devices(what, (device_id,))
        self._sink(
            events.DeviceTrouble(device_id=device_id, what=trouble.what, remedy=trouble.remedy)
        )
