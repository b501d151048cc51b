"""A coordinator's end for the browser's tests: ``coordinator_end.py URL FOLDER [--keyed]``.

The first line that it writes holds the credentials of device ``pi-7``, or null. From then on it
obeys JSON lines on its standard input, and writes one for every event:

- ``{"task": 1, "bytes": 700000}`` sends a task with a payload of so many bytes;
- ``{"refuse": "cohort"}`` rejects every update from now on by that rule.

Updates are accepted where they are the payload backwards, else rejected by rule ``test``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import queue
import random
import sys
import threading
from pathlib import Path
from typing import Any

from keyed import BUNDLE, Keyed

from protofleet.wire.coordinator_endpoint import CoordinatorEndpoint
from protofleet.wire.endpoint import Event
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.messages import Announcement, Presence, Task, TransferOffer
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected
from protofleet.wire.transfers.transfer import Delivered, Received, Rejected
from protofleet.wire.trust.coordinator_protection import CoordinatorProtection
from protofleet.wire.trust.device_protection import DeviceCredentials

DEVICE = "pi-7"
ANNOUNCEMENT = Announcement(
    federation="lab",
    boot_id="c1",
    phase="training",
    round_id=1,
    rounds=9,
    strategy="fedavg",
    bundle=BUNDLE,
    layout_hash="ef" * 32,
)


def say(event: str, **fields: Any) -> None:
    write({"event": event, **fields})


def write(line: dict[str, Any] | None) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class CoordinatorEnd:
    """Announces itself, sends tasks, takes updates."""

    def __init__(self, endpoint: CoordinatorEndpoint) -> None:
        self._endpoint = endpoint
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._payloads: dict[int, bytes] = {}
        self._refuse = ""

    def run(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        self._endpoint.start()
        while True:
            event = self._endpoint.poll(0.5)
            if event is not None:
                self._handle(event)
            while not self._orders.empty():
                order = self._orders.get()
                if order is None:
                    self._endpoint.close()
                    return
                self._obey(order)

    def _read(self) -> None:
        for line in sys.stdin:
            self._orders.put(json.loads(line))
            self._endpoint.wake()
        self._orders.put(None)
        self._endpoint.wake()

    def _obey(self, order: dict[str, Any]) -> None:
        self._refuse = order.get("refuse", self._refuse)
        if "task" in order:
            round_id = order["task"]
            payload = self._payloads[round_id] = random.Random(round_id).randbytes(order["bytes"])
            task = Task(task="train", round_id=round_id, federation="lab", seed=2**62 + 1)
            self._endpoint.send_task(DEVICE, task, payload)
            say("sent", sha256=hashlib.sha256(payload).hexdigest())

    def _handle(self, event: Event) -> None:
        match event:
            case Connected():
                self._endpoint.publish(ANNOUNCEMENT)
                say("connected")
            case PeerMessage(message=Presence() as presence):
                say("presence", status=presence.status, num_examples=presence.num_examples)
            case PeerMessage(message=TransferOffer() as offer):
                if self._refuse:
                    why = f"refused by rule {self._refuse}"
                    self._endpoint.reject(DEVICE, offer.transfer_id, self._refuse, why)
                else:
                    self._endpoint.expect(DEVICE, offer)
            case PeerMessage(message=message):
                say(type(message).__name__.lower())
            case Received(offer=offer, path=path):
                self._received(offer, path.read_bytes())
            case Delivered():
                say("delivered")
            case Rejected(rule=rule, reason=reason):
                say("rejected", rule=rule, reason=reason)
            case Ignored(rule=rule):
                say("ignored", rule=rule)

    def _received(self, offer: TransferOffer, update: bytes) -> None:
        good = update[::-1] == self._payloads[offer.round_id]
        if good:
            self._endpoint.accept(offer.transfer_id)
        else:
            self._endpoint.reject(DEVICE, offer.transfer_id, "test", "not the payload backwards")
        say("update", round_id=offer.round_id, good=good, chunk_bytes=offer.chunk_bytes)


def shown(credentials: DeviceCredentials) -> dict[str, Any]:
    return {
        "key": credentials.key.private_bytes_raw().hex(),
        "grant": credentials.grant,
        "federation_key": credentials.federation_key.hex(),
        "start": credentials.start,
        "announced": credentials.announced,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("url")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--keyed", action="store_true")
    options = arguments.parse_args()
    keyed = Keyed() if options.keyed else None
    write(shown(keyed.device(DEVICE)) if keyed else None)
    endpoint = CoordinatorEndpoint.create(
        BrokerAccess(url=options.url),
        "lab",
        options.folder,
        protection=CoordinatorProtection(keyed.coordinator()) if keyed else None,
    )
    CoordinatorEnd(endpoint).run()


if __name__ == "__main__":
    main()
