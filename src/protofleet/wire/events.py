"""What an endpoint tells its process beside transfers: messages, and what was discarded."""

from __future__ import annotations

from dataclasses import dataclass

from protofleet.wire.messages import Announcement, Heartbeat, Presence, Task, TransferOffer


@dataclass(frozen=True, slots=True)
class PeerMessage:
    """A typed message from the other end.

    On a device: Announcement or Task. On the coordinator: Presence, Heartbeat, TransferOffer (of an
    update: answer with ``expect`` or ``reject``), or Announcement (its own, or another
    coordinator's). Repetitions are passed on.

    Attributes:
        device_id: the device that sent it or that it is for; '' for the announcement.
        message: the record.
        retained: the broker kept it from before our subscription: it may be out of date.
    """

    device_id: str
    message: Announcement | Task | Presence | Heartbeat | TransferOffer
    retained: bool = False


@dataclass(frozen=True, slots=True)
class Ignored:
    """Bytes that broke a rule were discarded; count or log it."""

    device_id: str
    rule: str
    detail: str
