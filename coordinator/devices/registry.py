"""Who is there: live devices from presence, heartbeats and the time they were last heard of.

A device's id is that of the topic, which a broker can check against the user; a body that claims
another one is refused. Devices with another bundle or layout are known but never live, and so are
devices whose client lacks the strategy, or that have not registered the class counts that it needs.
A device that its owner's conditions hold is known and not live until it says otherwise.
That a device is gone is a hint, which a broker gives late and others can forge: any later sign of
the device outweighs it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Set as AbstractSet

import msgspec
from msgspec.structs import replace

from protofleet.errors import RefusedError
from protofleet.strategies import DESCRIPTIONS
from protofleet.wire.messages import Heartbeat, Presence
from protofleet.wire.transfers.chunks import MIN_DATA_BYTES

DEVICES_MAX = 100_000
"""More are not kept: names cost nothing to invent, and a fleet of this size has other needs."""
_BOOTS = 8
"""Processes of a device that are remembered, to tell one that is back."""


class Device(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of one device.

    Attributes:
        device_id: from the topic.
        fits: whether its last presence with a bundle fitted the federation and had registered.
        live: fits, and heard of lately.
        num_examples: training samples, as its last presence says that says so; None: none did.
        chunk_bytes: most data of a chunk that it takes; 0: what a packet holds.
        held: its owner's conditions that are not met; it fits, and is not live while there are any.
        bundle: digest of the one that it has.
        sequence: of that.
        takes_bundles: whether it is there and takes another one over the wire.
        calibrates: whether it can try learning rates.
    """

    device_id: str
    fits: bool
    live: bool
    num_examples: int | None = None
    chunk_bytes: int = 0
    held: tuple[str, ...] = ()
    bundle: str = ""
    sequence: int = 0
    takes_bundles: bool = False
    calibrates: bool = False


class Registry:
    """All devices heard of.

    Args:
        bundle: digest that a device must have.
        layout_hash: layout that a device must have.
        strategy: that a device's client must know.
        silent_after_s: a device that is not heard of for so long is not live.
        num_classes: C of the class counts that devices must register; None: they need not.

    Attributes:
        devices: by id.
        welcome: digests of all bundles whose devices can take part.
    """

    def __init__(
        self,
        *,
        bundle: str,
        layout_hash: str,
        strategy: str,
        silent_after_s: float,
        num_classes: int | None = None,
    ) -> None:
        self.devices: dict[str, Device] = {}
        self._num_classes = num_classes
        self._bundle = bundle
        self.welcome = frozenset({bundle})
        self._layout_hash = layout_hash
        self._strategy = strategy
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
                device runs something else than this federation, or (rule ``strategy``) its client
                lacks the strategy, or (rules ``chunk-bytes``, ``class-counts``) what it says of
                chunks or classes cannot be; it is not live then. Or (rule ``devices``) there are
                too many.
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
            chunk_bytes=presence.chunk_bytes if presence.chunk_bytes >= MIN_DATA_BYTES else 0,
            held=presence.held,
            bundle=sys.intern(presence.bundle),  # most have the same
            sequence=presence.sequence,
            takes_bundles=presence.takes_bundles,
            calibrates=presence.calibration is not msgspec.UNSET,
        )
        if presence.bundle not in self.welcome:
            _check_same("bundle", device_id, self._bundle, presence.bundle)
        _check_same("layout", device_id, self._layout_hash, presence.layout_hash)
        _check_strategy(presence, self._strategy)
        _check_chunks(presence)
        if self._num_classes is not None:
            if not presence.class_counts:
                return device
            _check_counts(presence, self._num_classes)
        self.devices[device_id] = device = replace(
            device,
            fits=True,
            live=not presence.held,
            num_examples=presence.num_examples,
            chunk_bytes=presence.chunk_bytes,
            held=presence.held,
        )
        if device.live:
            self._last_heard[device_id] = now
        return device

    def num_examples(self, device_id: str) -> int | None:
        """How many training samples a device has registered; None: it has not said."""
        device = self.devices.get(device_id)
        return (device.num_examples or None) if device else None

    def chunk_bytes(self, device_id: str) -> int:
        """Most data of a chunk that the device takes; 0: what a packet holds."""
        device = self.devices.get(device_id)
        return device.chunk_bytes if device else 0

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
            RefusedError: the body names another device.
        """
        if heartbeat.device_id != device_id:
            raise RefusedError(
                "identity",
                f"heartbeat on the topic of '{device_id}': its body names '{heartbeat.device_id}'",
            )

    def heard(self, device_id: str, now: float) -> bool:
        """Something came from the device.

        Returns:
            Whether it is live again after a silence, or after it was said to be gone. One that is
            held says itself when it may take part again.
        """
        device = self.devices.get(device_id)
        if device is None or not device.fits or device.held:
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
        gone = replace(device, live=False, held=(), takes_bundles=False)
        self.devices[device_id] = device = gone
        return device


def _check_counts(presence: Presence, num_classes: int) -> None:
    counts, told = presence.class_counts, presence.num_examples
    # Numbers of thousands of digits are not added up, nor written into a message.
    plausible = all(0 <= count < 2**53 for count in (*counts, told))
    total = sum(counts) if plausible else 0
    short = all(abs(count) < 2**64 for count in (*counts, told))
    found = f"{min(counts)} to {max(counts)}" if short else "more than 64 bits"
    rules = (
        (plausible, "counts", found),
        (len(counts) == num_classes, f"{num_classes} classes", f"{len(counts)}"),
        (total == told, f"a sum of {told if plausible else 0}, its num_examples", f"{total}"),
    )
    for holds, expected, got in rules:
        if not holds:
            raise RefusedError(
                "class-counts",
                f"class counts of '{presence.device_id}': expected {expected}, got {got}",
            )


def _check_strategy(presence: Presence, strategy: str) -> None:
    if presence.strategies and strategy not in presence.strategies:
        known = sorted(set(presence.strategies) & DESCRIPTIONS.keys())
        raise RefusedError(
            "strategy",
            f"device '{presence.device_id}': its client does not know strategy '{strategy}', only "
            f"{', '.join(known) or 'others'}; update its client or install the package that "
            "brings it there, or choose one that it knows",
        )


def _check_chunks(presence: Presence) -> None:
    if 0 < presence.chunk_bytes < MIN_DATA_BYTES:
        raise RefusedError(
            "chunk-bytes",
            f"device '{presence.device_id}': expected that it takes chunks of at least "
            f"{MIN_DATA_BYTES} bytes, or 0 for any, got {presence.chunk_bytes}",
        )


def _check_same(what: str, device_id: str, expected: str, got: str) -> None:
    if got != expected:
        raise RefusedError(
            what,
            f"device '{device_id}': expected {what} {expected[:12]}, got {got[:12] or 'none'}; "
            "provision it with this federation's bundle, or let it fetch that: protofleet bundle "
            "publish FILE",
        )
