"""Who is there: live devices from presence, heartbeats and the time they were last heard of.

A device's id is that of the topic, which a broker can check against the user; a body that claims
another one is refused. Devices with another bundle or layout are known but never live, and so are
devices that have not registered the class counts that the strategy needs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from protofleet.errors import RefusedError
from protofleet.wire.messages import Heartbeat, Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What is known of one device.

    Attributes:
        device_id: from the topic.
        online: whether its last presence says so, it fits the federation and it has registered.
        live: online, and heard of lately.
        last_seen: when it was last heard of (monotonic seconds).
        num_examples: training samples, as its last presence says that says so; None: none did.
    """

    device_id: str
    online: bool
    live: bool
    last_seen: float
    num_examples: int | None = None


class Registry:
    """All devices heard of.

    Args:
        bundle: digest that a device must have.
        layout_hash: layout that a device must have.
        silent_after_s: a device that is not heard of for so long is not live.
        num_classes: C of the class counts that devices must register; None: they need not.
    """

    def __init__(
        self,
        *,
        bundle: str,
        layout_hash: str,
        silent_after_s: float,
        num_classes: int | None = None,
    ) -> None:
        self.devices: dict[str, Device] = {}
        self._num_classes = num_classes
        self._bundle = bundle
        self._layout_hash = layout_hash
        self._silent_after_s = silent_after_s
        self._boots: dict[str, deque[str]] = {}

    @property
    def live(self) -> tuple[str, ...]:
        """Ids of the live devices, sorted."""
        return tuple(sorted(d.device_id for d in self.devices.values() if d.live))

    def presence(self, device_id: str, presence: Presence, now: float) -> Device:
        """Take a presence; the device as it is known from now on.

        Raises:
            RefusedError: the body names another device, or (rule ``bundle`` or ``layout``) the
                device runs something else than this federation, or (rule ``class-counts``) its
                counts cannot be; it is not live then.
        """
        if presence.device_id != device_id:
            raise RefusedError(
                "identity",
                f"presence on the topic of '{device_id}': its body names '{presence.device_id}'",
            )
        known = self.devices.get(device_id)
        device = Device(
            device_id=device_id,
            online=False,
            live=False,
            last_seen=now,
            num_examples=None if known is None else known.num_examples,
        )
        self.devices[device_id] = device
        if presence.status != "online":
            return device
        _check_same("bundle", device_id, self._bundle, presence.bundle)
        _check_same("layout", device_id, self._layout_hash, presence.layout_hash)
        if self._num_classes is not None:
            if not presence.class_counts:
                return device
            _check_counts(presence, self._num_classes)
        self.devices[device_id] = replace(
            device, online=True, live=True, num_examples=presence.num_examples
        )
        return self.devices[device_id]

    def num_examples(self, device_id: str) -> int | None:
        """How many training samples a device has registered; None: it has not said."""
        device = self.devices.get(device_id)
        return (device.num_examples or None) if device else None

    def has_twin(self, device_id: str, presence: Presence) -> bool:
        """Whether a process of the device is back after another one came: two have its id."""
        if presence.status != "online":
            return False
        boots = self._boots.setdefault(device_id, deque(maxlen=8))
        is_back = presence.boot_id in boots and presence.boot_id != boots[-1]
        if presence.boot_id in boots:
            boots.remove(presence.boot_id)
        boots.append(presence.boot_id)
        return is_back

    def heartbeat(self, device_id: str, heartbeat: Heartbeat, now: float) -> bool:
        """Take a heartbeat; what ``heard`` says of it.

        Raises:
            RefusedError: the body names another device, or a counter is no count.
        """
        if heartbeat.device_id != device_id:
            raise RefusedError(
                "identity",
                f"heartbeat on the topic of '{device_id}': its body names '{heartbeat.device_id}'",
            )
        for name in ("round_id", "bytes_up", "bytes_down", "peak_rss_bytes"):
            if not 0 <= getattr(heartbeat, name) < 2**63:
                raise RefusedError(
                    "heartbeat",
                    f"heartbeat of '{device_id}': {name} {getattr(heartbeat, name)} is no count",
                )
        return self.heard(device_id, now)

    def heard(self, device_id: str, now: float) -> bool:
        """Something came from the device.

        Returns:
            Whether it is live again after a silence.
        """
        device = self.devices.get(device_id)
        if device is None:
            return False
        self.devices[device_id] = replace(device, last_seen=now, live=device.online)
        return device.online and not device.live

    def forget(self, device_id: str) -> None:
        """The device may not take part any more."""
        self.devices.pop(device_id, None)

    def mark_silent(self, now: float) -> tuple[str, ...]:
        """Devices that from now on are not live, because nothing was heard of them for too long."""
        silent = tuple(
            d.device_id
            for d in self.devices.values()
            if d.live and now - d.last_seen > self._silent_after_s
        )
        for device_id in silent:
            self.devices[device_id] = replace(self.devices[device_id], live=False)
        return silent


def _check_counts(presence: Presence, num_classes: int) -> None:
    counts = presence.class_counts
    rules = (
        (len(counts) == num_classes, f"{num_classes} classes", f"{len(counts)}"),
        (all(0 <= count < 2**53 for count in counts), "counts", f"{min(counts)} to {max(counts)}"),
        (
            sum(counts) == presence.num_examples,
            f"a sum of {presence.num_examples}, its num_examples",
            f"{sum(counts)}",
        ),
    )
    for holds, expected, got in rules:
        if not holds:
            raise RefusedError(
                "class-counts",
                f"class counts of '{presence.device_id}': expected {expected}, got {got}",
            )


def _check_same(what: str, device_id: str, expected: str, got: str) -> None:
    if got != expected:
        raise RefusedError(
            what,
            f"device '{device_id}': expected {what} {expected[:12]}, got {got[:12] or 'none'}; "
            "provision it with this federation's bundle",
        )
