"""One peer of a federation: link, topics and courier behind a single ``poll``.

Edge and coordinator see typed messages and finished blobs; which topic, chunk or repetition
carried them is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protofleet.wire.link import Connected, Disconnected, Link, Traffic
from protofleet.wire.messages import Announcement, Heartbeat, Manifest, Message, Presence, Task
from protofleet.wire.topics import Topics
from protofleet.wire.transfer import Courier, Delivered, Received, Rejected, Source


@dataclass(frozen=True, slots=True)
class Incoming:
    """A typed message: Announcement or Task on a device; Presence, Heartbeat or Manifest
    (the offer of an update) on the coordinator."""

    peer: str
    message: Announcement | Task | Presence | Heartbeat | Manifest


@dataclass(frozen=True, slots=True)
class Ignored:
    """Bytes that broke a rule were discarded; count or log it."""

    peer: str
    rule: str
    detail: str


Event = Connected | Disconnected | Incoming | Received | Delivered | Rejected | Ignored


class Endpoint:
    """The device's or the coordinator's end of the wire.

    Args:
        link: not yet started; its filters must be those of ``topics`` for this side.
        device_id: this device, or None for the coordinator. On a device every ``peer`` is ``""``.
    """

    def __init__(
        self, link: Link, topics: Topics, courier: Courier, *, device_id: str | None = None
    ) -> None: ...

    def start(self) -> None:
        """Begin to connect; ``Connected`` comes from ``poll``, again after each reconnect."""

    def poll(self, timeout_s: float | None = None) -> Event | None:
        """The next event, waiting at most ``timeout_s``; does all transfer work meanwhile.

        Announce yourself (Presence, Announcement) on every ``Connected``.
        """
        return None

    def publish(self, message: Message, peer: str = "") -> bool:
        """Send a record on its topic; Presence and Announcement are retained.

        Returns:
            False if the link is down; presence and announcement are repeated on ``Connected``
            by the caller, everything else is asked for again by the protocol.
        """
        return False

    def send_update(self, source: Source, round_id: int) -> Manifest:
        """Device: offer an update until the coordinator's receipt (``Delivered``/``Rejected``)."""
        raise RuntimeError("being written")

    def send_task(self, peer: str, task: Task, source: Source) -> Manifest:
        """Coordinator: offer ``task`` with ``source`` as its payload until the device has it."""
        raise RuntimeError("being written")

    def expect(self, peer: str, manifest: Manifest) -> None:
        """Take an offered blob; call it for every offer, repeated ones too."""

    def accept(self, transfer_id: str) -> None:
        """After the received blob is stored durably: send ``done``."""

    def reject(self, peer: str, transfer_id: str, reason: str) -> None:
        """Send ``reject`` with the reason; drop the bytes."""

    def cancel(self, transfer_id: str) -> None:
        """Forget a transfer in either direction."""

    @property
    def traffic(self) -> Traffic:
        """Byte counters of the link."""
        return Traffic(
            socket_up_bytes=0, socket_down_bytes=0, payload_up_bytes=0, payload_down_bytes=0
        )

    def close(self, farewell: Message | None = None) -> None:
        """Publish ``farewell`` (e.g. Presence ``left``), then disconnect gracefully."""

    side: Literal["device", "coordinator"]
