"""Who is there: live devices from presence, heartbeats and the time they were last heard of.

A device's id is that of the topic, which a broker can check against the user; a body that claims
another one is refused. Devices with another bundle or layout are known but never live, and so are
devices that have not registered the class counts that the strategy needs. That a device is gone is
a hint, which a broker gives late and others can forge: any later sign of the device outweighs it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from protofleet.errors import RefusedError
from protofleet.wire.messages import Heartbeat, Presence

DEVICES_MAX = 100_000
"""More are not kept: names cost nothing to invent, and a fleet of this size has other needs."""
_BOOTS = 8
"""Processes of a device that are remembered, to tell one that is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What is known of one device.

    Attributes:
        device_id: from the topic.
        fits: whether its last presence with a bundle fitted the federation and had registered.
        live: fits, and heard of lately.
        num_examples: training samples, as its last presence says that says so; None: none did.
    """

    device_id: str
    fits: bool
    live: bool
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
        self._boots: dict[str, tuple[str, ...]] = {}
        self._last_heard: OrderedDict[str, float] = OrderedDict()

    @property
    def live(self) -> AbstractSet[str]:
        """Ids of the live devices; changes with them."""
        return self._last_heard.keys()

    def presence(self, device_id: str, presence: Presence, now: float) -> Device:
        """Take a presence; the device as it is known from now on.

        Raises:
            RefusedError: the body names another device, or (rule ``bundle`` or ``layout``) the
                device runs something else than this federation, or (rule ``class-counts``) its
                counts cannot be; it is not live then. Or (rule ``devices``) there are too many.
        """
        if presence.device_id != device_id:
            raise RefusedError(
                "identity",
                f"presence on the topic of '{device_id}': its body names '{presence.device_id}'",
            )
        if presence.status != "online":
            return self._depart(device_id)
        if device_id not in self.devices and len(self.devices) >= DEVICES_MAX:
            raise RefusedError("devices", f"device '{device_id}': {DEVICES_MAX} are known already")
        self._last_heard.pop(device_id, None)
        known = self.devices.get(device_id)
        device = self.devices[device_id] = Device(
            device_id=device_id,
            fits=False,
            live=False,
            num_examples=None if known is None else known.num_examples,
        )
        _check_same("bundle", device_id, self._bundle, presence.bundle)
        _check_same("layout", device_id, self._layout_hash, presence.layout_hash)
        if self._num_classes is not None:
            if not presence.class_counts:
                return device
            _check_counts(presence, self._num_classes)
        self.devices[device_id] = device = replace(
            device, fits=True, live=True, num_examples=presence.num_examples
        )
        self._last_heard[device_id] = now
        return device

    def num_examples(self, device_id: str) -> int | None:
        """How many training samples a device has registered; None: it has not said."""
        device = self.devices.get(device_id)
        return (device.num_examples or None) if device else None

    def fits(self, device_id: str) -> bool:
        """Whether the device has presented itself as one that can take part."""
        device = self.devices.get(device_id)
        return device is not None and device.fits

    def has_twin(self, device_id: str, message: Presence | Heartbeat) -> bool:
        """Whether a process of the device is back after another one came: two have its id."""
        if isinstance(message, Presence) and message.status != "online":
            return False
        boots, boot_id = self._boots.get(device_id, ()), message.boot_id
        if boots[-1:] == (boot_id,):
            return False
        others = tuple(boot for boot in boots if boot != boot_id)
        self._boots[device_id] = (*others, boot_id)[-_BOOTS:]
        return boot_id in boots

    def check_heartbeat(self, device_id: str, heartbeat: Heartbeat) -> None:
        """Whether it can be one of the device.

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

    def heard(self, device_id: str, now: float) -> bool:
        """Something came from the device.

        Returns:
            Whether it is live again after a silence, or after it was said to be gone.
        """
        device = self.devices.get(device_id)
        if device is None or not device.fits:
            return False
        self._last_heard[device_id] = now
        self._last_heard.move_to_end(device_id)
        if device.live:
            return False
        self.devices[device_id] = replace(device, live=True)
        return True

    def forget(self, device_id: str) -> None:
        """The device may not take part any more."""
        self._depart(device_id)
        self.devices.pop(device_id, None)

    def mark_silent(self, now: float) -> tuple[str, ...]:
        """Devices that from now on are not live, because nothing was heard of them for too long."""
        silent = []
        for device_id, last_heard in self._last_heard.items():
            if now - last_heard <= self._silent_after_s:
                break  # the rest was heard later
            silent.append(device_id)
        for device_id in silent:
            self._depart(device_id)
        return tuple(silent)

    def _depart(self, device_id: str) -> Device:
        self._last_heard.pop(device_id, None)
        device = self.devices.get(device_id)
        if device is None:  # not known before: nothing to keep
            return Device(device_id=device_id, fits=False, live=False)
        self.devices[device_id] = device = replace(device, live=False)
        return device


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
