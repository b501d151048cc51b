"""A device that speaks the protocol without the edge and sends whatever bytes a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from protofleet.bundle import Bundle
from protofleet.federation.settings import FederationConfig
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Presence, Task
from protofleet.wire.mqtt.link import Connected
from protofleet.wire.transfers.transfer import Received, Rejected


class HostileDevice:
    """Runs in a thread until the federation finishes, or ``stop``.

    Args:
        config: of the federation.
        name: device id.
        answer: round → blob of the update.
        class_counts: what it registers.

    Attributes:
        rejections: reasons of the coordinator, in order.
    """

    def __init__(
        self,
        config: FederationConfig,
        name: str,
        answer: Callable[[int], bytes],
        class_counts: tuple[int, ...] = (),
    ) -> None:
        bundle = Bundle.open(config.bundle, any_signer=True)
        folder = Path(config.run_dir).with_name(f"hostile-{name}")
        folder.mkdir()
        self.rejections: list[str] = []
        self._answer, self._over = answer, threading.Event()
        self._presence = Presence(
            device_id=name,
            boot_id="1",
            status="online",
            bundle=bundle.digest,
            layout_hash=bundle.manifest.layout_hash,
            num_examples=sum(class_counts),
            class_counts=class_counts,
        )
        self._endpoint = DeviceEndpoint.create(config.broker, config.federation, name, folder)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        self._endpoint.start()
        while not self._over.is_set():
            match self._endpoint.poll(0.05):
                case Connected():
                    self._endpoint.publish(self._presence)
                case PeerMessage(message=Task(task="train") as task):
                    self._endpoint.expect(task.payload)
                case PeerMessage(message=Task()):
                    break
                case Received(offer=offer):
                    self._endpoint.accept(offer.transfer_id)
                    blob = self._answer(offer.round_id)
                    self._endpoint.send_update(blob, offer.round_id)
                case Rejected(reason=reason):
                    self.rejections.append(reason)
        self._endpoint.publish(replace(self._presence, status="left"))
        self._endpoint.close()
