"""A light device: the wire of a real one and no training; its update follows from what it got.

Presence, roll call, heartbeats, transfers with their receipts, and the records are those of
``edge`` and ``wire``. It keeps nothing but the partial blobs: a process that ends takes all its
devices with it.
"""

from __future__ import annotations

import time

import numpy as np

from protofleet.edge.checks import check_announcement, check_task
from protofleet.edge.device_info import DeviceInfo
from protofleet.edge.presence import PresencePublisher, Registration
from protofleet.errors import RefusedError, UnavailableError
from protofleet.federation.coding import encode_update
from protofleet.federation.records import Costs, Sends
from protofleet.firmware_sim.watched_link import WatchedLink
from protofleet.strategies.types import Update
from protofleet.tensors import blobs
from protofleet.wire.codecs import Codec
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.endpoint import Event
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Announcement, Task
from protofleet.wire.mqtt.link import Connected, Disconnected
from protofleet.wire.transfers.transfer import Delivered, Received, Rejected

NUM_EXAMPLES = 6
_STEP = 2.0**-10
_KINDS = 4


def shift(number: int) -> float:
    """What device ``number`` adds to each parameter: by it one sees whose updates are in a mean."""
    return _STEP * (1 + number % _KINDS / _KINDS)


class _SameData:
    """As many examples in every round."""

    def num_examples(self, _round_id: int) -> int:
        return NUM_EXAMPLES

    def class_counts(self, _round_id: int) -> tuple[int, ...]:
        return ()


class LightDevice:
    """One device.

    Args:
        number: from 0; says what its updates are.
        link: not yet started.
        endpoint: on that link.
        who: what it says about itself.
        most_bytes: largest payload.

    Attributes:
        finished: it was sent home, and has left.
        sending: an update of its has no receipt yet.
        delivered: updates whose receipt has come.
        refused: what it was refused, or refused itself; in a healthy run nothing.
    """

    def __init__(
        self,
        number: int,
        link: WatchedLink,
        endpoint: DeviceEndpoint,
        who: DeviceInfo,
        *,
        most_bytes: int,
    ) -> None:
        self.link, self._endpoint, self._who = link, endpoint, who
        self._number, self._most_bytes = number, most_bytes
        self._presence = PresencePublisher(endpoint, who, Registration(_SameData(), Sends()))
        self._announced: Announcement | None = None
        self._round = self._sent = 0
        self.finished = self.sending = False
        self.delivered = 0
        self.refused: list[str] = []

    def start(self) -> None:
        """Connect."""
        self._endpoint.start()

    def turn(self, looked_s: float, *, readable: bool) -> float | None:
        """Do what there is to do; when to call again though the socket says nothing.

        None: it was sent home, and has left.

        Args:
            looked_s: when its link's socket was looked at, monotonic seconds.
            readable: whether it is.

        Raises:
            UnavailableError: the broker refuses it for good.
        """
        now = time.monotonic()
        self.link.turn(looked_s, readable=readable)
        while True:
            while (event := self._endpoint.poll(0.0)) is not None:
                self._handle(event)
            if not self.link.unread:
                break
        if self.finished:
            self._leave()
            return None
        self._presence.answer(now)
        if now >= self._presence.heartbeat_due:
            self._heartbeat()
        return min(self._presence.due, self._endpoint.due)

    def _handle(self, event: Event) -> None:
        now = time.monotonic()
        match event:
            case Connected():
                self._presence.connected((), now)
            case Disconnected(reason=reason, final=True):
                raise UnavailableError(f"broker: {reason}")
            case PeerMessage(message=Announcement() as announcement):
                self._presence.announced(announcement, now, retained=event.retained)
                self._on_announcement(announcement)
            case PeerMessage(message=Task() as task):
                self._on_task(task)
            case Received():
                self._on_received(event)
            case Delivered():
                self.delivered, self.sending = self.delivered + 1, False
                self._heartbeat()
            case Rejected():
                self.refused.append(f"{event.rule}: {event.reason}")
            case _:
                pass

    def _on_announcement(self, announcement: Announcement) -> None:
        try:
            self._who.check(announcement)
            check_announcement(announcement)
        except RefusedError as error:
            self.refused.append(str(error))
            return
        self._announced = announcement
        self._endpoint.spread(announcement.spread_s)
        self.finished = announcement.phase == "finished" and self._sent > 0

    def _on_task(self, task: Task) -> None:
        payload = task.payload
        try:
            self._who.check(task)
            check_task(task, self._announced)
        except RefusedError as error:
            self.refused.append(str(error))
            if payload is not None:
                self._endpoint.reject(payload.transfer_id, error.rule, str(error))
            return
        if payload is None:
            self.finished = True
            return
        self._round = task.round_id
        self._endpoint.expect(payload, task.shared)

    def _on_received(self, event: Received) -> None:
        round_id = event.offer.round_id
        blob = self._update(event.path.read_bytes(), round_id)
        self._endpoint.accept(event.offer.transfer_id)
        self._endpoint.send_update(blob, round_id)
        self._sent, self.sending = round_id, True

    def _update(self, payload: bytes, round_id: int) -> bytes:
        """The raw blob of the update."""
        received, _ = blobs.decode(payload, max_bytes=self._most_bytes)
        step = np.float32(shift(self._number))
        update = Update(
            client_id=self._who.device_id,
            round_id=round_id,
            num_examples=NUM_EXAMPLES,
            tensors={name: value + step for name, value in received.items()},
        )
        return encode_update(update, Costs(), {}, Codec(), {}).blob

    def _heartbeat(self) -> None:
        traffic = self._endpoint.traffic
        totals = traffic.socket_up_bytes, traffic.socket_down_bytes
        self._presence.heartbeat("idle", self._sent, totals, time.monotonic())

    def _leave(self) -> None:
        self._presence.leave()
        self._endpoint.close()


def device_id(number: int) -> str:
    """Of device ``number``."""
    return f"light-{number:05d}"
