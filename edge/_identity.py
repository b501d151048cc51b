"""What a device says about itself, and what it must agree on with a federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from protofleet.edge._journal import Binding
from protofleet.edge._registration import Told
from protofleet.edge.meter import peak_rss_bytes
from protofleet.errors import ProvisionError
from protofleet.wire.messages import Announcement, Heartbeat, Presence, Task

DevicePhase = Literal["idle", "receive", "train", "send", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One device in one process.

    Attributes:
        device_id: the durable identity.
        boot_id: drawn anew by every process.
        binding: the federation and the bundle that it has.
        num_examples: training samples at the start.
    """

    device_id: str
    boot_id: str
    binding: Binding
    num_examples: int

    def presence(
        self, status: Literal["online", "offline", "left"], told: Told | None = None
    ) -> Presence:
        """The retained record with what is ``told`` of the data; without it, the last will."""
        told = told or Told(num_examples=self.num_examples)
        return Presence(
            device_id=self.device_id,
            boot_id=self.boot_id,
            status=status,
            bundle=self.binding.bundle,
            layout_hash=self.binding.layout_hash,
            num_examples=told.num_examples,
            class_counts=told.class_counts,
        )

    def heartbeat(self, phase: DevicePhase, round_id: int, totals: tuple[int, int]) -> Heartbeat:
        """Liveness and costs; ``totals`` are bytes up and down at the socket."""
        return Heartbeat(
            device_id=self.device_id,
            boot_id=self.boot_id,
            round_id=round_id,
            phase=phase,
            bytes_up=totals[0],
            bytes_down=totals[1],
            peak_rss_bytes=peak_rss_bytes(),
        )

    def figures(self) -> dict[str, Any]:
        """For people and programs that watch the device."""
        return {
            "device_id": self.device_id,
            "federation": self.binding.federation,
            "bundle": self.binding.bundle,
            "num_examples": self.num_examples,
        }

    def check(self, message: Announcement | Task) -> None:
        """Raise ProvisionError unless the coordinator runs what this device is bound to."""
        for name in ("federation", "bundle", "layout_hash"):
            ours, theirs = getattr(self.binding, name), getattr(message, name, None)
            if theirs is not None and ours != theirs:
                raise ProvisionError(
                    f"federation '{message.federation}': its {name} is '{theirs}', this device "
                    f"has '{ours}'; join with the federation's own bundle"
                )
