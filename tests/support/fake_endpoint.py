"""Ends of the wire in memory: a test writes down what arrives and reads what was sent.

The fakes stand in for ``wire.endpoint`` and hold what the coordinator's service and the device's
agent call; ``tests/test_support.py`` compares their signatures with the real ones'. A script::

    endpoint = FakeDeviceEndpoint(folder, clock, [CONNECTED, PeerMessage("anna", task), QUIET])
    with pytest.raises(ScriptEndError):
        agent.run()
    assert endpoint.expected == [task.payload]
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from msgspec.structs import replace

from protofleet.coordinator.arrivals import GATHER_S
from protofleet.errors import RefusedError
from protofleet.wire.codecs import Coding
from protofleet.wire.endpoint import Event
from protofleet.wire.messages import (
    Announcement,
    BundleOffer,
    Heartbeat,
    Presence,
    Receipt,
    Task,
    TransferOffer,
)
from protofleet.wire.mqtt.link import Connected, Disconnected, Traffic
from protofleet.wire.transfers.carousel import shared_version
from protofleet.wire.transfers.chunks import MAX_DATA_BYTES
from protofleet.wire.transfers.transfer import Received, Source, describe

CONNECTED = Connected("5")
_TRAINING_S = 20.0
"""Far longer than any training thread of a test needs."""


class ScriptEndError(Exception):
    """The script is through: ``poll`` ends the process that is tested, as a kill would."""


class Clock:
    """Takes the place of the module ``time``: it moves only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class Pause(Enum):
    """Steps at which no event comes."""

    QUIET = auto()
    """The whole time that the caller waits goes by."""
    UNTIL_WOKEN = auto()
    """Until another thread calls ``wake``."""


QUIET, UNTIL_WOKEN = Pause.QUIET, Pause.UNTIL_WOKEN


@dataclass(frozen=True, slots=True)
class Arrival:
    """A step: an expected blob is complete; ``poll`` writes its file and returns ``Received``."""

    device_id: str
    offer: TransferOffer
    blob: bytes


Step = Event | Arrival | Pause | Callable[[], Event | Arrival | None]
"""A function is called when its turn comes; where it returns None, ``poll`` does so at once."""


@dataclass(frozen=True, slots=True)
class SentBlob:
    """A task's payload or an update that was offered."""

    device_id: str
    offer: TransferOffer
    blob: bytes
    task: Task | None = None


class _FakeEndpoint:
    """What both ends share.

    Attributes:
        steps: what is left of the script.
        sent: blobs that were offered, in order.
        expected: offers that are to be fetched.
        receipts: all that were sent, repeated ones too.
        cancelled, remembered: ids of transfers.
        closed: whether ``close`` was called.
    """

    def __init__(self, folder: Path, clock: Clock, steps: Iterable[Step]) -> None:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        self._folder, self._clock, self.steps = folder, clock, deque(steps)
        self._woken = threading.Event()
        self._settled: dict[str, Receipt] = {}
        self._connected = False
        self.sent: list[SentBlob] = []
        self.expected: list[TransferOffer] = []
        self.receipts: list[Receipt] = []
        self.cancelled: list[str] = []
        self.remembered: list[str] = []
        self.closed = False

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def traffic(self) -> Traffic:
        return Traffic(
            socket_up_bytes=100 * len(self.sent),
            socket_down_bytes=10 * len(self.expected),
            payload_up_bytes=0,
            payload_down_bytes=0,
        )

    def start(self) -> None:
        assert not self.closed

    def poll(self, timeout_s: float | None = None) -> Event | None:
        if not self.steps:
            raise ScriptEndError
        step = self.steps.popleft()
        if isinstance(step, Pause):
            self._pause(step, timeout_s)
            return None
        event = step() if callable(step) else step
        if isinstance(event, Arrival):
            return self._arrive(event)
        if isinstance(event, Connected | Disconnected):
            self._connected = isinstance(event, Connected)
        return event

    def wake(self) -> None:
        self._woken.set()

    def accept(self, transfer_id: str) -> None:
        self._settle(Receipt(transfer_id=transfer_id, status="done"))

    def remember(self, transfer_id: str) -> None:
        self.remembered.append(transfer_id)
        self._settled[transfer_id] = Receipt(transfer_id=transfer_id, status="done")

    def cancel(self, transfer_id: str) -> None:
        self.cancelled.append(transfer_id)
        self._settled.pop(transfer_id, None)
        self._file(transfer_id).unlink(missing_ok=True)

    def close(self) -> None:
        self.closed = True

    def _file(self, transfer_id: str) -> Path:
        return self._folder / f"{transfer_id}.part"

    def _pause(self, pause: Pause, timeout_s: float | None) -> None:
        if pause is UNTIL_WOKEN:
            assert self._woken.wait(_TRAINING_S), "nobody woke the endpoint"
            self._woken.clear()
        else:
            assert timeout_s is not None, "this would wait for ever"
            self._clock.advance(timeout_s)

    def _arrive(self, arrival: Arrival) -> Received:
        known = [offer.transfer_id for offer in self.expected]
        assert arrival.offer.transfer_id in known, "a blob comes only when it is expected"
        path = self._file(arrival.offer.transfer_id)
        path.write_bytes(arrival.blob)
        return Received(arrival.device_id, arrival.offer, path)

    def _take(self, offer: TransferOffer) -> None:
        known = self._settled.get(offer.transfer_id)
        if known is None:
            self.expected.append(offer)
        else:
            self.receipts.append(known)

    def _settle(self, receipt: Receipt) -> None:
        """What was received is deleted by then unless its taker has moved it away."""
        self._settled[receipt.transfer_id] = receipt
        self.receipts.append(receipt)
        self._file(receipt.transfer_id).unlink(missing_ok=True)

    def _refuse(self, transfer_id: str, rule: str, reason: str) -> None:
        receipt = Receipt(transfer_id=transfer_id, status="reject", rule=rule, reason=reason)
        if any(offer.transfer_id == transfer_id for offer in self.expected):
            self._settle(receipt)
        else:  # nothing is kept of what was only offered
            self.receipts.append(receipt)


class FakeCoordinatorEndpoint(_FakeEndpoint):
    """The coordinator's end.

    Attributes:
        published: announcements that went out.
        finished: devices that were told to finish.
        serials: of the grants that devices are here with.
        bundles: device and digest of each bundle that was offered, in order.
        in_bursts: steps come at once; else longer after each other than updates wait for others.
    """

    def __init__(self, folder: Path, clock: Clock, steps: Iterable[Step]) -> None:
        super().__init__(folder, clock, steps)
        self.in_bursts = False
        self._begun: dict[tuple[str, str], TransferOffer] = {}
        self.published: list[Announcement] = []
        self.finished: list[str] = []
        self.serials: dict[str, int] = {}
        self.bundles: list[tuple[str, str]] = []

    def poll(self, timeout_s: float | None = None) -> Event | None:
        if timeout_s is not None and timeout_s <= GATHER_S and not self.in_bursts:
            return None
        return super().poll(timeout_s)

    @property
    def chunk_bytes(self) -> int:
        return MAX_DATA_BYTES

    @property
    def room(self) -> int:
        return 16

    @property
    def unacknowledged(self) -> int:
        return 0

    def publish(self, announcement: Announcement) -> bool:
        if self.connected:
            self.published.append(announcement)
        return self.connected

    def end_session(self, device_id: str, serial: int) -> bool:
        assert device_id
        return serial == self.serials.get(device_id)

    def send_finish(self, device_id: str, task: Task) -> bool:
        assert task.task == "finish"
        if self.connected:
            self.finished.append(device_id)
        return self.connected

    def expect(self, device_id: str, offer: TransferOffer) -> RefusedError | None:
        self._begun[device_id, offer.kind] = offer
        self._take(offer)
        return None

    def end_tasks(self, kept: Mapping[str, int]) -> None:
        for (device_id, kind), offer in list(self._begun.items()):
            if kept.get(device_id) != offer.round_id:
                self.cancel(offer.transfer_id)
                del self._begun[device_id, kind]

    def _settle(self, receipt: Receipt) -> None:
        super()._settle(receipt)
        over = [key for key, one in self._begun.items() if one.transfer_id == receipt.transfer_id]
        for key in over:
            del self._begun[key]

    def reject(self, device_id: str, transfer_id: str, rule: str, reason: str) -> None:
        assert device_id
        self._refuse(transfer_id, rule, reason)

    def send_task(
        self,
        device_id: str,
        task: Task,
        source: Source,
        coding: Coding | None = None,
        *,
        most_chunk_bytes: int = 0,
        shared: bool = False,
    ) -> TransferOffer:
        offer = describe(
            source,
            kind="payload",
            device_id=device_id,
            round_id=task.round_id,
            chunk_bytes=most_chunk_bytes or MAX_DATA_BYTES,
            coding=coding,
        )
        self._begun[device_id, offer.kind] = offer
        task = replace(task, shared=shared_version(offer.sha256, offer.chunk_bytes) * shared)
        self.sent.append(SentBlob(device_id, offer, _content(source), task))
        return offer

    def send_bundle(
        self,
        device_id: str,
        offer: BundleOffer,
        source: Path,
        *,
        most_chunk_bytes: int = 0,
        shared: bool = False,  # noqa: ARG002 - as of the real one
    ) -> TransferOffer:
        payload = describe(
            source,
            kind="bundle",
            device_id=device_id,
            round_id=0,
            chunk_bytes=most_chunk_bytes or MAX_DATA_BYTES,
        )
        self.bundles.append((device_id, offer.bundle))
        return payload


class FakeDeviceEndpoint(_FakeEndpoint):
    """A device's end.

    Attributes:
        published: records that went out.
        asked: how often the announcement was asked for once more.
        others: announcements of other federations.
        rested: how often the connection was ended for a while.
    """

    def __init__(self, folder: Path, clock: Clock, steps: Iterable[Step], device_id: str) -> None:
        super().__init__(folder, clock, steps)
        self._device_id = device_id
        self.published: list[Presence | Heartbeat] = []
        self.asked = self.rested = 0
        self.others: dict[str, Announcement] = {}

    def publish(self, message: Presence | Heartbeat) -> bool:
        if self.connected:
            self.published.append(message)
        return self.connected

    @property
    def in_force(self) -> bool:
        return True

    @property
    def overtakes(self) -> bool:
        return False

    def rest(self) -> None:
        self.rested += 1
        self._connected = False

    def go_on(self) -> None:
        self._connected = True

    def spread(self, seconds: float) -> None:
        """A fleet has no size here."""

    def listen_again(self) -> None:
        """The steps say what is heard."""
        self.asked += 1

    def ask_for_federations(self) -> bool:
        return self.connected

    def take_federations(self) -> dict[str, Announcement]:
        return self.others

    def expect(self, offer: TransferOffer, shared: str = "") -> None:  # noqa: ARG002 - as of the real one
        self._take(offer)

    def reject(self, transfer_id: str, rule: str, reason: str) -> None:
        self._refuse(transfer_id, rule, reason)

    def expect_bundle(self, offer: TransferOffer, shared: str = "") -> None:  # noqa: ARG002 - as of the real one
        self._take(offer)

    def remember_bundle(self, transfer_id: str) -> None:
        self.remember(transfer_id)

    def reject_bundle(self, transfer_id: str, rule: str, reason: str) -> None:
        self._refuse(transfer_id, rule, reason)

    def send_update(
        self, source: Source, round_id: int, coding: Coding | None = None
    ) -> TransferOffer:
        offer = describe(
            source, kind="update", device_id=self._device_id, round_id=round_id, coding=coding
        )
        self.sent.append(SentBlob(self._device_id, offer, _content(source)))
        return offer


def _content(source: Source) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()
