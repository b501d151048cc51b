"""What devices say that they have paid: of participants, and only what can be.

Heartbeats carry counters that nobody can check. What a device says moves its own figures and the
sums over devices in the results, and nothing else; these rules keep one device from making the sums
useless, and cannot refuse an honest one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.errors import RefusedError
from protofleet.wire.mqtt.usage import FIGURES, DeviceUsage, merged

BYTES_PER_S = 1.25e9
"""10 Gbit/s: what a counter can have grown since the last heartbeat, …"""
SLACK_BYTES = 2**30
"""… and what may have waited in buffers."""


class _Latest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A device's last heartbeat that counted; ``at_s`` None: an earlier process has noted it."""

    round_id: int
    usage: DeviceUsage
    at_s: float | None


class ReportedUsage:
    """Notes heartbeats' counters in the ledger.

    Args:
        ledger: of the run.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._latest: dict[str, _Latest] = {}
        self._early: dict[str, _Latest] = {}
        for device_id, round_id, usage in ledger.usage.latest():
            self._latest[device_id] = _Latest(round_id=round_id, usage=usage, at_s=None)
        self._participants = set(self._latest)

    @property
    def known(self) -> int:
        """How many devices take, or took, part."""
        return len(self._participants)

    def invited(self, cohort: Iterable[str]) -> None:
        """These take part from now on; what they said before counts, too."""
        for device_id in cohort:
            self._participants.add(device_id)
            early = self._early.pop(device_id, None)
            if early is not None:
                self._keep(device_id, early)

    def note(self, device_id: str, round_id: int, usage: DeviceUsage, now: float) -> None:
        """Take the counters of a heartbeat (``now``: monotonic seconds).

        A counter never falls: that of a device whose process was killed may begin a little lower.

        Raises:
            RefusedError: rule ``heartbeat``: a counter has grown by more than can be.
        """
        takes_part = device_id in self._participants
        before = (self._latest if takes_part else self._early).get(device_id)
        if before is not None:
            _check_growth(device_id, usage, before, now)
            round_id = max(round_id, before.round_id)
            usage = merged(before.usage, usage)
        latest = _Latest(round_id=round_id, usage=usage, at_s=now)
        if takes_part:
            self._keep(device_id, latest)
        else:
            self._early[device_id] = latest

    def _keep(self, device_id: str, latest: _Latest) -> None:
        self._latest[device_id] = latest
        self._ledger.usage.note(device_id, latest.round_id, latest.usage)


def _check_growth(device_id: str, usage: DeviceUsage, before: _Latest, now: float) -> None:
    if before.at_s is None:
        return
    grown = int(BYTES_PER_S * (now - before.at_s) + SLACK_BYTES)
    for one in FIGURES:
        count, was = one.of(usage), one.of(before.usage)
        if one.shown.merge != "counter" or count is None or was is None:
            continue
        if count > was + grown:
            raise RefusedError(
                "heartbeat",
                f"heartbeat of '{device_id}': expected {one.name} of at most {was + grown}, "
                f"got {count}",
            )
