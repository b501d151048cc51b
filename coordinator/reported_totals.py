"""What devices say that they have paid: of participants, and only what can be.

Heartbeats carry counters that nobody can check. What a device says moves its own figures and the
sums over devices in the results, and nothing else; these rules keep one device from making the sums
useless, and cannot refuse an honest one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from protofleet.coordinator.ledger import Ledger
from protofleet.coordinator.ledger_rows import Totals
from protofleet.errors import RefusedError

COUNTER_MAX = 2**44
"""16 TiB: more than a device exchanges, or has as memory, in its life."""
BYTES_PER_S = 1.25e9
"""10 Gbit/s: what a counter can have grown since the last heartbeat, …"""
SLACK_BYTES = 2**30
"""… and what may have waited in buffers."""
_COUNTERS = Totals.__struct_fields__


class _Latest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A device's last heartbeat that counted; ``at_s`` None: an earlier process has noted it."""

    round_id: int
    totals: Totals
    at_s: float | None


class ReportedTotals:
    """Notes heartbeats' counters in the ledger.

    Args:
        ledger: of the run.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._latest: dict[str, _Latest] = {}
        self._early: dict[str, _Latest] = {}
        for device_id, by_round in ledger.traffic.totals().items():
            round_id = max(by_round)
            self._latest[device_id] = _Latest(
                round_id=round_id, totals=by_round[round_id], at_s=None
            )
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

    def note(self, device_id: str, round_id: int, totals: Totals, now: float) -> None:
        """Take the counters of a heartbeat (``now``: monotonic seconds).

        A counter never falls: that of a device whose process was killed may begin a little lower.

        Raises:
            RefusedError: rule ``heartbeat``: a counter is, or has grown by, more than can be.
        """
        takes_part = device_id in self._participants
        before = (self._latest if takes_part else self._early).get(device_id)
        _check(device_id, totals, before, now)
        if before is not None:
            round_id = max(round_id, before.round_id)
            totals = Totals(
                **{n: max(getattr(totals, n), getattr(before.totals, n)) for n in _COUNTERS}
            )
        latest = _Latest(round_id=round_id, totals=totals, at_s=now)
        if takes_part:
            self._keep(device_id, latest)
        else:
            self._early[device_id] = latest

    def _keep(self, device_id: str, latest: _Latest) -> None:
        self._latest[device_id] = latest
        self._ledger.traffic.note(device_id, latest.round_id, latest.totals)


def _check(device_id: str, totals: Totals, before: _Latest | None, now: float) -> None:
    for name in _COUNTERS:
        count, most = getattr(totals, name), COUNTER_MAX
        if before is not None and before.at_s is not None and name != "peak_rss_bytes":
            grown = BYTES_PER_S * (now - before.at_s) + SLACK_BYTES
            most = min(most, getattr(before.totals, name) + int(grown))
        if not 0 <= count <= most:
            raise RefusedError(
                "heartbeat",
                f"heartbeat of '{device_id}': expected {name} of 0 to {most}, got {count}",
            )
