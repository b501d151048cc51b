"""When bytes have passed a link: at a rate, or as a recorded trace says.

A trace is a file of Mahimahi (Netravali et al., USENIX ATC 2015): each line is the millisecond at
which a packet of 1500 bytes may pass, and behind the last one it begins again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from protofleet.errors import InputError

PACKET_BYTES = 1500
_MOST_BYTES = 64 << 20
"""Of a file: an hour at 12 MB/s."""


class Pace(Protocol):
    """One direction of one connection."""

    def passed_s(self, size: int, now_s: float) -> float:
        """When bytes that are sent now have passed, behind all that were sent before.

        Args:
            size: bytes.
            now_s: seconds; never less than at the call before.
        """
        ...


class Rate:
    """Always the same.

    Args:
        bytes_s: bytes in a second.
    """

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s, self._free_s = bytes_s, 0.0

    def passed_s(self, size: int, now_s: float) -> float:
        """As of every pace."""
        self._free_s = max(self._free_s, now_s) + size / self._bytes_s
        return self._free_s


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded link.

    Attributes:
        times_ms: when a packet may pass, ascending; the last is the length of the trace.
    """

    times_ms: tuple[int, ...]

    def packets_by(self, time_s: float) -> int:
        """How many may have passed since the trace began."""
        rounds, at_ms = divmod(time_s * 1000, self.times_ms[-1])
        return int(rounds) * len(self.times_ms) + bisect_right(self.times_ms, at_ms)

    def time_of(self, packet: int) -> float:
        """When a packet may pass, in seconds; the first is 0."""
        rounds, at = divmod(packet, len(self.times_ms))
        return (rounds * self.times_ms[-1] + self.times_ms[at]) / 1000


class TracePace:
    """As a trace says.

    Args:
        trace: the link.
        began_s: when it began.
    """

    def __init__(self, trace: Trace, began_s: float) -> None:
        self._trace, self._began_s, self._passed = trace, began_s, 0

    def passed_s(self, size: int, now_s: float) -> float:
        """As of every pace; what a packet has room for beyond the bytes is left to the next."""
        missed = self._trace.packets_by(now_s - self._began_s) * PACKET_BYTES
        self._passed = max(self._passed, missed) + size
        last = -(-self._passed // PACKET_BYTES) - 1
        return max(now_s, self._began_s + self._trace.time_of(last))


def read_trace(path: Path) -> Trace:
    """A trace from a file.

    Raises:
        InputError: not readable, too large, a line that is no whole millisecond, time that goes
            back, or no length.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"trace {path}: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise InputError(f"trace {path}: larger than {_MOST_BYTES >> 20} MiB")
    times = [
        _millisecond(path, number, line) for number, line in enumerate(text.splitlines(), start=1)
    ]
    for number, (before, after) in enumerate(pairwise(times), start=2):
        if after < before:
            raise InputError(f"trace {path}, line {number}: {after} ms comes after {before} ms")
    if not times or not times[-1]:
        raise InputError(
            f"trace {path}: no length; expected lines with the milliseconds at which a packet of "
            f"{PACKET_BYTES} bytes may pass, as Mahimahi writes them"
        )
    return Trace(tuple(times))


def _millisecond(path: Path, number: int, line: bytes) -> int:
    digits = line.strip()
    if not digits.isdigit() or len(digits) > 12:
        told = digits[:20].decode(errors="replace")
        raise InputError(
            f"trace {path}, line {number}: expected a whole number of milliseconds, got '{told}'"
        )
    return int(digits)
