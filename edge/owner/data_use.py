"""How many bytes a device has paid in the local day and month, over restarts."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated

import msgspec

from protofleet.durable import write_whole

_CLOCK_SET = 2025
"""A clock that tells an earlier year is not set yet, as on boards without a battery at their start:
it begins no day and no month, or each start would forget what was used."""
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Since(msgspec.Struct, frozen=True, kw_only=True):
    """What the total was when the day and the month began, as far as this device was there."""

    day: str
    day_from: _Count
    month: str
    month_from: _Count


class DataUse:
    """Counts from the device's durable total; a file keeps where day and month began.

    Args:
        path: of the file; what cannot be read begins anew.
        keeps: whether the file is written, which the device's own process does alone.
    """

    def __init__(self, path: Path, *, keeps: bool = True) -> None:
        self._path, self._keeps = path, keeps
        self._since: _Since | None = None
        self._kept = True
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._since = msgspec.json.decode(path.read_bytes(), type=_Since)

    def used(self, total: int, now: time.struct_time) -> tuple[int, int]:
        """Bytes of the day and of the month.

        Args:
            total: bytes that the device has ever sent and received.
            now: local time. Where the disk takes no writes, the file follows later.
        """
        day, month = time.strftime("%Y-%m-%d", now), time.strftime("%Y-%m", now)
        known = self._since
        if known and now.tm_year < _CLOCK_SET:
            day, month = known.day, known.month
        day_from = known.day_from if known and known.day == day else total
        month_from = known.month_from if known and known.month == month else total
        since = _Since(
            day=day, day_from=min(day_from, total), month=month, month_from=min(month_from, total)
        )
        if since != known or not self._kept:
            self._since = since
            if self._keeps:
                self._kept = self._keep(since)
        return total - since.day_from, total - since.month_from

    def _keep(self, since: _Since) -> bool:
        try:
            write_whole(self._path, msgspec.json.encode(since))
        except OSError:
            return False
        return True
