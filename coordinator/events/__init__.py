"""What a coordinator reports while it runs, one record per event.

``protofleet coordinator run --json`` prints each as one line of JSON with ``event`` and ``time_s``
(Unix seconds); ``docs/events.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Union

import msgspec

from protofleet.coordinator.events.base import (
    CoordinatorEvent,
    RefusalEvent,
)
from protofleet.coordinator.events.broker import (
    AnotherCoordinator,
    BrokerConnected,
    BrokerDisconnected,
    BrokerHinders,
    CertificateRenewed,
    EndsSoon,
    LeaseAwaited,
    LeaseLost,
    Withheld,
)
from protofleet.coordinator.events.devices import (
    ClaimLimited,
    DeviceHeld,
    DeviceLog,
    DeviceOffline,
    DeviceOnline,
    DeviceRefused,
    DeviceTrouble,
    TaskRefused,
    UpdateReceived,
    UpdateRejected,
)
from protofleet.coordinator.events.rounds import (
    RoundClosed,
    RoundExtended,
    RoundOpened,
    UpdatesLeftOut,
    Waiting,
)
from protofleet.coordinator.events.run import (
    BundleAwaited,
    BundleDevice,
    BundleRollout,
    BundleSwitched,
    Calibrated,
    Calibrating,
    Continued,
    Drifted,
    EndedEarly,
    Failed,
    Finished,
    Operated,
    Paused,
    Pausing,
    ResultsTrouble,
    RoundsRaised,
    Started,
    Stopped,
    Stopping,
    StorageBack,
    StorageFailed,
)
from protofleet.printable import printable

__all__ = [
    "KINDS",
    "AnotherCoordinator",
    "BrokerConnected",
    "BrokerDisconnected",
    "BrokerHinders",
    "BundleAwaited",
    "BundleDevice",
    "BundleRollout",
    "BundleSwitched",
    "Calibrated",
    "Calibrating",
    "CertificateRenewed",
    "ClaimLimited",
    "Continued",
    "CoordinatorEvent",
    "DeviceHeld",
    "DeviceLog",
    "DeviceOffline",
    "DeviceOnline",
    "DeviceRefused",
    "DeviceTrouble",
    "Drifted",
    "EndedEarly",
    "EndsSoon",
    "Failed",
    "Finished",
    "LeaseAwaited",
    "LeaseLost",
    "Operated",
    "Paused",
    "Pausing",
    "RefusalEvent",
    "ResultsTrouble",
    "RoundClosed",
    "RoundExtended",
    "RoundOpened",
    "RoundsRaised",
    "Sink",
    "Started",
    "Stopped",
    "Stopping",
    "StorageBack",
    "StorageFailed",
    "TaskRefused",
    "UpdateReceived",
    "UpdateRejected",
    "UpdatesLeftOut",
    "Waiting",
    "Withheld",
    "from_line",
    "to_line",
]

Sink = Callable[[CoordinatorEvent], None]


def to_line(event: CoordinatorEvent, time_s: float, federation: str = "") -> str:
    """One line of JSON, safe on a terminal; with the federation where a process has several."""
    fields = msgspec.to_builtins(event)
    named = {"federation": federation} if federation else {}
    head = {"event": fields.pop("event"), "time_s": time_s, **named}
    line = msgspec.json.encode(head | fields).decode()
    return printable(line)


def _kinds(base: type[CoordinatorEvent]) -> Iterator[type[CoordinatorEvent]]:
    below = base.__subclasses__()
    yield from (kind for one in below for kind in _kinds(one))
    if not below:
        yield base


KINDS = tuple(_kinds(CoordinatorEvent))
"""All events, without the bases of several."""
_decode = msgspec.json.Decoder(Union[KINDS]).decode  # noqa: UP007 - of as many as there are


def from_line(line: bytes) -> CoordinatorEvent | None:
    """The event in a line of ``to_line``; None: of another version, or no whole line."""
    try:
        event: CoordinatorEvent = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return event
