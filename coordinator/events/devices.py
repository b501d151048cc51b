"""Of single devices, and of what comes from them."""

from __future__ import annotations

import logging
from typing import ClassVar

from protofleet.coordinator.events.base import CoordinatorEvent, RefusalEvent
from protofleet.coordinator.events.text import safe
from protofleet.units import byte_text

_CLAIMS = {"num_examples": "the number of examples", "difference": "the length of the update"}


class DeviceOnline(CoordinatorEvent, frozen=True, kw_only=True, tag="device_online"):
    """A device is present, for the first time or again."""

    routine: ClassVar[bool] = True

    device_id: str
    live: int

    def _says(self) -> str:
        return f"{self.device_id} is online ({self.live} live)"


class DeviceOffline(CoordinatorEvent, frozen=True, kw_only=True, tag="device_offline"):
    """A device is absent: ``offline`` (link lost), ``left``, ``silent`` or ``unregistered``."""

    routine: ClassVar[bool] = True

    device_id: str
    reason: str
    live: int

    def _says(self) -> str:
        return f"{self.device_id} is gone: {self.reason} ({self.live} live)"


class DeviceHeld(CoordinatorEvent, frozen=True, kw_only=True, tag="device_held"):
    """A device is there, and its owner's ``conditions`` forbid that it takes part for now."""

    routine: ClassVar[bool] = True

    device_id: str
    conditions: tuple[str, ...]
    live: int

    def _says(self) -> str:
        held = ", ".join(self.conditions)
        return f"{self.device_id} is there and may not take part: {held} ({self.live} live)"


class DeviceRefused(RefusalEvent, frozen=True, kw_only=True, tag="device_refused"):
    """A device cannot take part, or something it sent was discarded."""

    def _says(self) -> str:
        return f"[yellow]refused[/yellow] {self.device_id} ({self.rule}): {safe(self.reason)}"


class DeviceLog(CoordinatorEvent, frozen=True, kw_only=True, tag="device_log"):
    """The last ``lines`` of a device's log, which it sends because the round has failed on it."""

    round_id: int
    device_id: str
    lines: tuple[str, ...]

    def _says(self) -> str:
        lines = safe(" | ".join(self.lines))
        return f"round {self.round_id} has failed on {self.device_id}; its log: {lines}"


class DeviceTrouble(CoordinatorEvent, frozen=True, kw_only=True, tag="device_trouble"):
    """A device takes part, and something is wrong on it that only people can mend."""

    level: ClassVar[int] = logging.WARNING

    device_id: str
    what: str
    remedy: str

    def _says(self) -> str:
        return f"[yellow]look at {self.device_id}[/yellow]: {safe(self.what)}; {safe(self.remedy)}"


class TaskRefused(RefusalEvent, frozen=True, kw_only=True, tag="task_refused"):
    """A device will not take part in the round; the transfer is its task's payload."""

    round_id: int
    transfer_id: str = ""

    def _says(self) -> str:
        return f"round {self.round_id}: {self.device_id} takes no part: {safe(self.reason)}"


class UpdateReceived(CoordinatorEvent, frozen=True, kw_only=True, tag="update_received"):
    """An update was checked and stored.

    ``round_id``: of its task; ``counted_in``: the round in which it counts, later if it was late.
    ``delivered`` of ``cohort``: updates of that round by now, and how many there may be; of a
    buffered schedule, how many its buffer holds.
    """

    routine: ClassVar[bool] = True

    round_id: int
    device_id: str
    bytes: int
    num_examples: int
    loss: float | None
    delivered: int
    cohort: int
    counted_in: int
    transfer_id: str = ""

    def _says(self) -> str:
        rounds = self.counted_in - self.round_id
        late = f", {rounds} {'round' if rounds == 1 else 'rounds'} late" if rounds else ""
        return (
            f"round {self.counted_in}: update {self.delivered} of {self.cohort} from "
            f"{self.device_id}, {byte_text(self.bytes)}{late}"
        )


class UpdateRejected(RefusalEvent, frozen=True, kw_only=True, tag="update_rejected"):
    """An update was late, invalid or unwanted."""

    round_id: int
    transfer_id: str = ""

    def _says(self) -> str:
        return (
            f"[yellow]round {self.round_id}: rejected[/yellow] the update of {self.device_id}: "
            f"{safe(self.reason)}"
        )


class ClaimLimited(CoordinatorEvent, frozen=True, kw_only=True, tag="claim_limited"):
    """What a device stated counted in part.

    ``claim``: its number of examples (``num_examples``), or the norm of a ``difference`` that was
    clipped.
    """

    level: ClassVar[int] = logging.WARNING

    round_id: int
    device_id: str
    claim: str
    stated: float
    limit: float

    def _says(self) -> str:
        return (
            f"[yellow]round {self.round_id}: {_CLAIMS[self.claim]} of {self.device_id}[/yellow] "
            f"counted as {self.limit:.4g}, not as {self.stated:.4g}"
        )
