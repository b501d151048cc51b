"""A cell's way to its root: to the root it is a member as devices are, over the same wire.

A thread of its own does all transfers, so that neither end waits for the other. An order is in the
cell's folder before the root has its receipt; a report stays there until the root has it.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from protofleet.coordinator.reporter import LogThrottle
from protofleet.durable import move_whole, replace_whole
from protofleet.errors import ProtofleetError, RefusedError, UnavailableError
from protofleet.federation.cells import CellOrder, decode_order
from protofleet.private_files import PRIVATE_FOLDER
from protofleet.strategies.types import ServerState
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.endpoint import Event
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.messages import Announcement, Heartbeat, Presence, Task
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Disconnected, Hindered
from protofleet.wire.transfers.transfer import Delivered, Received, Rejected
from protofleet.wire.trust.protection import Plain

_log = logging.getLogger(__name__)

_HEARTBEAT_S = 30.0
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{32})\.order")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootAccess:
    """How a cell that is enrolled with the root reaches it.

    Attributes:
        broker: which, and the cell's account there.
        protection: of a device that is called as the cell.
    """

    broker: BrokerAccess
    protection: Plain = field(default_factory=Plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootAddress:
    """Where the root is, and as whom the cell speaks.

    Attributes:
        access: to it.
        federation: the root's.
        name: the cell's there.
        bundle, layout_hash: what it runs.
        agreed: what tasks must say: ``strategy``, ``settings``, ``seed``.
    """

    access: RootAccess
    federation: str
    name: str
    bundle: str
    layout_hash: str
    agreed: dict[str, object]


class RootLink:
    """Fetches orders, delivers reports; ``wake`` is called when there is news.

    Args:
        address: of the root.
        folder: of orders, made if absent.
        wake: from the link's thread.
    """

    def __init__(self, address: RootAddress, folder: Path, wake: Callable[[], None]) -> None:
        self._address, self._folder, self._wake = address, folder, wake
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        partial = folder / "partial"
        partial.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        self._boot_id = secrets.token_hex(8)
        self._traffic, self._before = folder / "traffic", (0, 0)
        with suppress(OSError, ValueError):
            up, down = map(int, self._traffic.read_text(encoding="ascii").split())
            self._before = up, down
        self._endpoint = DeviceEndpoint.create(
            address.access.broker,
            address.federation,
            address.name,
            partial,
            protection=address.access.protection,
            will=self._presence("offline"),
        )
        self._throttle = LogThrottle()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._report: tuple[Path, int] | None = None
        self._announced: Announcement | None = None
        self._round, self._heartbeat_due = 0, float("inf")
        self._news, self._failure = False, ""
        self._finished_in = 0
        self._thread = threading.Thread(target=self._run, name=f"protofleet-{address.name}")

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def close(self) -> None:
        """End; what is unfinished continues in the next process."""
        self._closed.set()
        self._endpoint.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def news(self) -> bool:
        """Whether something has come since the last call.

        Raises:
            UnavailableError: the root or the broker refuses this cell, or the disk fails.
        """
        with self._lock:
            news, self._news = self._news, False
            if self._failure:
                raise UnavailableError(self._failure)
        return news

    def order(self) -> tuple[ServerState, CellOrder] | None:
        """The latest order that is in the folder; None: there is none."""
        found = self._orders()
        return decode_order(found[-1][1].read_bytes()) if found else None

    def ordered_round(self) -> int:
        """The round of the latest order; 0: there is none."""
        return max((round_id for round_id, _, _ in self._orders()), default=0)

    @property
    def rounds(self) -> int:
        """How many rounds the root has announced; 0: nothing was heard."""
        with self._lock:
            return self._announced.rounds if self._announced else 0

    @property
    def finished_in(self) -> int:
        """The round after which the root has ended; 0: it has not."""
        with self._lock:
            return self._finished_in

    def send(self, report: Path, round_id: int) -> None:
        """Offer a report until the root has it; the file stays as it is until then."""
        with self._lock:
            self._report = report, round_id
        self._endpoint.wake()

    def forget_orders(self, before: int) -> None:
        """Remove orders of rounds before this one."""
        for round_id, path, _ in self._orders():
            if round_id < before:
                path.unlink(missing_ok=True)

    def _orders(self) -> list[tuple[int, Path, str]]:
        named = ((_NAME.fullmatch(path.name), path) for path in self._folder.iterdir())
        return sorted((int(one[1]), path, one[2]) for one, path in named if one)

    def _run(self) -> None:
        try:
            for _, _, transfer_id in self._orders():
                self._endpoint.remember(transfer_id)
            self._endpoint.start()
            while not self._closed.is_set():
                wait_s = self._heartbeat_due - time.monotonic()
                event = self._endpoint.poll(min(max(wait_s, 0.0), _HEARTBEAT_S))
                self._offer_report()
                if event is not None:
                    self._handle(event)
                self._beat()
        except (ProtofleetError, OSError) as error:
            self._tell(failure=str(error))
        finally:
            self._endpoint.publish(self._presence("left"))
            self._endpoint.close()

    def _tell(self, failure: str = "") -> None:
        with self._lock:
            self._news, self._failure = True, failure or self._failure
        self._wake()

    def _offer_report(self) -> None:
        with self._lock:
            report, self._report = self._report, None
        if report is not None:
            path, self._round = report
            self._endpoint.send_update(path, self._round)

    def _handle(self, event: Event) -> None:
        match event:
            case Connected():
                self._endpoint.publish(self._presence("online"))
                self._heartbeat_due = time.monotonic() + _HEARTBEAT_S
            case Disconnected(final=True):
                raise UnavailableError(f"broker {self._address.access.broker}: {event.reason}")
            case PeerMessage(message=Announcement() as announcement):
                self._on_announcement(announcement)
            case PeerMessage(message=Task() as task):
                self._on_task(task)
            case Received():
                self._on_received(event)
            case Delivered():
                self._heartbeat_due = 0.0
            case Rejected() if self.ordered_round() <= event.offer.round_id:
                raise UnavailableError(
                    f"root of federation '{self._address.federation}': it refuses the report of "
                    f"round {event.offer.round_id}: {event.reason}"
                )
            case Ignored() if self._throttle.is_news(event.rule):
                _log.warning("root: ignored a message: %s", event.detail)
            case Hindered():
                _log.warning("root: the broker hinders: %s", event.reason)
            case _:
                pass

    def _on_announcement(self, announcement: Announcement) -> None:
        before = self._announced
        if before is not None and announcement.epoch < before.epoch:
            return
        if announcement.bundle != self._address.bundle:
            return  # an older run's
        with self._lock:
            self._announced = announcement
            finished = announcement.phase == "finished"
            self._finished_in = announcement.round_id if finished else 0
        called = announcement.boot_id, announcement.roll_call
        if before is None or called != (before.boot_id, before.roll_call):
            self._endpoint.publish(self._presence("online"))
        self._tell()

    def _on_task(self, task: Task) -> None:
        announced = self._announced
        if announced is None or task.epoch < announced.epoch:
            return  # it comes again
        if task.payload is None:
            with self._lock:
                self._finished_in = task.round_id
            self._tell()
            return
        told = {"strategy": task.strategy, "settings": task.settings, "seed": task.seed}
        wrong = [name for name, value in self._address.agreed.items() if told[name] != value]
        if wrong:
            name = wrong[0]
            reason = (
                f"{self._address.name}: expected {name} {self._address.agreed[name]}, as its "
                f"federation file says, got {told[name]}; give root and cells the same file"
            )
            self._endpoint.reject(task.payload.transfer_id, name, reason)
            return
        self._endpoint.expect(task.payload)

    def _on_received(self, event: Received) -> None:
        offer = event.offer
        try:
            _check_order(event.path.read_bytes(), offer.round_id)
        except RefusedError as error:
            self._endpoint.reject(offer.transfer_id, error.rule, str(error))
            return
        move_whole(event.path, self._folder / f"{offer.round_id:06d}-{offer.transfer_id}.order")
        self._endpoint.accept(offer.transfer_id)
        self._tell()

    def _beat(self) -> None:
        now = time.monotonic()
        if now < self._heartbeat_due:
            return
        self._heartbeat_due = now + _HEARTBEAT_S
        traffic, (before_up, before_down) = self._endpoint.traffic, self._before
        up = before_up + traffic.socket_up_bytes
        down = before_down + traffic.socket_down_bytes
        replace_whole(self._traffic, f"{up} {down}".encode())
        self._endpoint.publish(
            Heartbeat(
                device_id=self._address.name,
                boot_id=self._boot_id,
                round_id=self._round,
                phase="idle",
                bytes_up=up,
                bytes_down=down,
                peak_rss_bytes=0,
            )
        )

    def _presence(self, status: str) -> Presence:
        address = self._address
        return Presence(
            device_id=address.name,
            boot_id=self._boot_id,
            status=status,  # type: ignore[arg-type]
            bundle=address.bundle,
            layout_hash=address.layout_hash,
        )


def _check_order(data: bytes, round_id: int) -> None:
    """Raise RefusedError, rule ``order``, unless a blob is the order of this round."""
    _, order = decode_order(data)
    if order.round_id != round_id:
        raise RefusedError(
            "order", f"order: expected one of round {round_id}, got one of {order.round_id}"
        )
