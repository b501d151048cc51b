"""A coordinator for tests of devices: rounds over the real wire, nothing durable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from toy_model import new_rng, server_tools

from protofleet.bundle import Bundle
from protofleet.federation.coding import decode_update
from protofleet.federation.records import Costs
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import ServerState, Update
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding
from protofleet.wire.coordinator_endpoint import CoordinatorEndpoint
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Announcement, Heartbeat, Presence, Task, TransferOffer
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected
from protofleet.wire.transfers.transfer import Received, Rejected

FEDERATION = "test-fed"
Answer = Literal["take", "reject", "ignore"]
"""What to do with the offer of an update of one round while another is the current one."""


class ScriptedCoordinator:
    """Runs ``rounds`` rounds with exactly ``devices`` devices in a thread, then says finish.

    Attributes:
        updates: by round and device.
        costs: the same.
        presence: last record of each device.
        heartbeats: all of them, in order.
        rejected: reasons of devices that refused a payload.
        round_s: wall time of each round.
        state: the server's state.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        bundle: Bundle,
        strategy: Strategy,
        *,
        settings: Mapping[str, Any],
        devices: int = 1,
        rounds: int = 2,
        announced_bundle: str = "",
        before_round: Callable[[int], None] = lambda _: None,
        answer: Callable[[int, int], Answer] = lambda _offered, _current: "take",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        broker = BrokerAccess(url=url)
        self._endpoint = CoordinatorEndpoint.create(broker, FEDERATION, folder)
        self._bundle, self._strategy, self._settings = bundle, strategy, dict(settings)
        self._announced_bundle = announced_bundle or bundle.digest
        self._devices, self._rounds = devices, rounds
        self._before_round = before_round
        self._answer = answer
        self.updates: dict[int, dict[str, Update]] = {}
        self.costs: dict[int, dict[str, Costs]] = {}
        self.presence: dict[str, Presence] = {}
        self.heartbeats: list[Heartbeat] = []
        self.rejected: list[str] = []
        self.round_s: list[float] = []
        self.state: ServerState | None = None
        self.error: BaseException | None = None
        self._settled: dict[int, set[str]] = {}
        self._finished = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._endpoint.wake()
        self._thread.join(10)

    def wait(self, timeout_s: float = 45.0) -> None:
        """Until all rounds are done and every device has left."""
        self._thread.join(timeout_s)
        if self.error is not None:
            raise self.error
        if self._thread.is_alive():
            raise TimeoutError(f"coordinator: rounds {sorted(self.updates)} only")

    def wait_for_status(self, device_id: str, status: str, timeout_s: float = 10.0) -> None:
        """Until the device's presence says ``status``."""
        deadline = time.monotonic() + timeout_s
        while self.presence[device_id].status != status:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{device_id}: {self.presence[device_id].status}, not {status}")
            time.sleep(0.01)

    def _run(self) -> None:
        try:
            self._endpoint.start()
            self._federate()
        except BaseException as error:  # noqa: BLE001 - raised by wait, in the test's thread
            self.error = error
        finally:
            self._endpoint.close()

    def _federate(self) -> None:
        self._serve(lambda: self._count("online") >= self._devices)
        self.state = self._strategy.server_init(self._bundle.model(), new_rng())
        for round_id in range(1, self._rounds + 1):
            if self._stop.is_set():
                return
            self._before_round(round_id)
            start = time.perf_counter()
            self.updates[round_id], self.costs[round_id] = {}, {}
            self._settled[round_id] = set()
            self._announce()
            for device_id in self._members():
                self._send_task(device_id, round_id)
            self._serve(lambda r=round_id: len(self._settled[r]) >= self._devices)
            updates = [self.updates[round_id][d] for d in sorted(self.updates[round_id])]
            self.state = self._strategy.aggregate(self.state, updates, server_tools())
            self.round_s.append(time.perf_counter() - start)
        self._finished = True
        for device_id in self._members():
            self._send_finish(device_id)
        self._serve(lambda: self._count("left") >= self._devices)

    def _invite_again(self, device_id: str) -> None:
        """A device that starts anew in an open round has its payload, but no longer its task."""
        if self._finished:
            self._send_finish(device_id)
        elif self.updates and device_id not in self.updates[max(self.updates)]:
            self._send_task(device_id, max(self.updates))

    def _send_finish(self, device_id: str) -> None:
        finish = Task(task="finish", round_id=self._rounds, federation=FEDERATION)
        self._endpoint.send_finish(device_id, finish)

    def _send_task(self, device_id: str, round_id: int) -> None:
        payload = self._strategy.downlink(self.state, device_id)
        task = Task(
            task="train",
            round_id=round_id,
            federation=FEDERATION,
            strategy=self._strategy.description.name,
            settings=self._settings,
            seed=7,
            deadline_s=60.0,
        )
        self._endpoint.send_task(device_id, task, blobs.encode(payload.tensors))

    def _serve(self, done: Callable[[], bool]) -> None:
        while not done() and not self._stop.is_set():
            event = self._endpoint.poll(0.5)
            if isinstance(event, Connected):
                self._announce()
            elif isinstance(event, Received):
                self._take(event)
            elif isinstance(event, Rejected):
                self.rejected.append(event.reason)
            elif isinstance(event, PeerMessage):
                self._hear(event.device_id, event.message)

    def _announce(self) -> None:
        self._endpoint.publish(
            Announcement(
                federation=FEDERATION,
                boot_id="boot",
                phase="training",
                round_id=max(self.updates, default=1),
                rounds=self._rounds,
                strategy=self._strategy.description.name,
                bundle=self._announced_bundle,
                layout_hash=self._bundle.manifest.layout_hash,
            )
        )

    def _hear(self, device_id: str, message: object) -> None:
        if isinstance(message, Presence):
            self.presence[device_id] = message
            if message.bundle != self._announced_bundle:
                self._announce()
            if message.status == "online":
                self._invite_again(device_id)
        elif isinstance(message, Heartbeat):
            self.heartbeats.append(message)
        elif isinstance(message, TransferOffer):
            answer = self._answer(message.round_id, max(self.updates))
            if answer == "take":
                self._endpoint.expect(device_id, message)
                return
            self._settled[message.round_id].add(device_id)
            if answer == "reject":
                self._endpoint.reject(
                    device_id, message.transfer_id, "offer", "as the test wants it"
                )

    def _take(self, event: Received) -> None:
        blob = event.path.read_bytes()
        decoded = decode_update(blob, Coding(), {}, max_bytes=1 << 30)
        round_id = decoded.record.round_id
        self.updates[round_id][event.device_id] = decoded.update
        self.costs[round_id][event.device_id] = decoded.record.costs
        self._settled[round_id].add(event.device_id)
        self._endpoint.accept(event.offer.transfer_id)

    def _count(self, status: str) -> int:
        return sum(p.status == status for p in self.presence.values())

    def _members(self) -> list[str]:
        return sorted(d for d, p in self.presence.items() if p.status != "left")
