"""What a device says about itself and its data, and what it must agree on with a federation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from protofleet.edge.learning.meter import device_usage
from protofleet.edge.state.journal import StoreBinding
from protofleet.errors import RefusedError
from protofleet.federation.records import Sends
from protofleet.strategies import DESCRIPTIONS
from protofleet.wire.messages import (
    Announcement,
    BundleOffer,
    BundleProgress,
    CalibrationAnswer,
    Heartbeat,
    HeartbeatPhase,
    Presence,
    Task,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """What the presence says of the data.

    Attributes:
        num_examples: training samples; 1 or 0 where the owner keeps their number back.
        class_counts: of each class; empty unless the federation's strategy asks for them.
    """

    num_examples: int
    class_counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device in one process.

    Attributes:
        device_id: the durable identity.
        boot_id: drawn anew by every process.
        binding: the federation and the bundle that it has.
        num_examples: training samples at the start.
        sequence: of the bundle.
        takes_bundles: whether it takes another bundle over the wire.
        sends: what the owner allows to be told beside tensors.
        doubts: what is strange about its data.
    """

    device_id: str
    boot_id: str
    binding: StoreBinding
    num_examples: int
    sequence: int = 0
    takes_bundles: bool = False
    sends: Sends = field(default_factory=Sends)
    doubts: tuple[str, ...] = ()

    def presence(
        self,
        status: Literal["online", "offline", "left"],
        data: DataSummary | None = None,
        held: tuple[str, ...] = (),
        progress: BundleProgress | None = None,
        calibration: CalibrationAnswer | UnsetType = UNSET,
    ) -> Presence:
        """The retained record with what is said of the ``data``; without it, the last will.

        ``held``: the owner's conditions that are not met. ``progress``: with an offered bundle.
        ``calibration``: what came of learning rates.
        """
        data = data or DataSummary(num_examples=self.sends.count(self.num_examples))
        return Presence(
            device_id=self.device_id,
            boot_id=self.boot_id,
            status=status,
            bundle=self.binding.bundle,
            layout_hash=self.binding.layout_hash,
            num_examples=data.num_examples,
            class_counts=data.class_counts,
            strategies=tuple(DESCRIPTIONS) if status == "online" else (),
            held=held,
            sequence=self.sequence,
            takes_bundles=self.takes_bundles and status == "online",
            progress=progress,
            calibration=calibration,
            doubts=self.doubts if self.doubts and status == "online" else UNSET,
        )

    def heartbeat(
        self, phase: HeartbeatPhase, round_id: int, totals: tuple[int, int], log: str = ""
    ) -> Heartbeat:
        """Liveness and costs; ``totals`` are bytes up and down at the socket."""
        return Heartbeat(
            device_id=self.device_id,
            boot_id=self.boot_id,
            round_id=round_id,
            phase=phase,
            log=log,
            **asdict(device_usage(*totals)),
        )

    def figures(self) -> dict[str, Any]:
        """For people and programs that watch the device."""
        return {
            "device_id": self.device_id,
            "federation": self.binding.federation,
            "bundle": self.binding.bundle,
            "num_examples": self.num_examples,
        }

    def check(self, message: Announcement | BundleOffer | Task) -> None:
        """Raise RefusedError unless the coordinator runs what this device is bound to.

        The rule is ``federation``, ``bundle`` or ``layout``.
        """
        rules = {"federation": "federation", "bundle": "bundle", "layout_hash": "layout"}
        if isinstance(message, BundleOffer):
            del rules["bundle"]  # another one, by its nature
        for name, rule in rules.items():
            ours, theirs = getattr(self.binding, name), getattr(message, name, None)
            if theirs is None or ours == theirs:
                continue
            if name == "bundle" and ours in getattr(message, "bundles", ()):
                continue
            if name != "federation":
                ours, theirs = ours[:16], theirs[:16]  # as other commands show digests
            raise RefusedError(
                rule,
                f"federation '{message.federation[:64]}': its {name} is '{theirs[:64]}', this "
                f"device has '{ours}'; join with the federation's own bundle",
            )
