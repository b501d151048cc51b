"""Networks: rates, delay, cost, and what a byte takes of a battery."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from protofleet.errors import InputError

_MATHIS, _SEGMENT_BYTES = 1.22, 1460


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to the broker.

    Energy by Huang et al., "A Close Examination of Performance and Power Characteristics of 4G LTE
    Networks" (MobiSys 2012), tables 3 and 4: while it sends, a radio draws ``base_w`` and a part
    that grows with the rate, and behind a transfer it stays awake for ``tail_s``.

    Attributes:
        up_kbit_s, down_kbit_s: rates in 1000 bit/s.
        delay_ms: of one direction.
        loss: share of the segments that are lost, at random. TCP then sends at most 1.22 segments
            of 1460 bytes in a round trip, divided by its root (Mathis et al., "The Macroscopic
            Behavior of the TCP Congestion Avoidance Algorithm", CCR 27(3), 1997).
        metered: whether it costs by volume.
        up_w_per_mbit_s, down_w_per_mbit_s: power for each 10⁶ bit/s.
        base_w: power of a transfer at any rate.
        tail_s, tail_w: how long the radio stays awake, and what that draws.
        source: of the figures, for people.
    """

    up_kbit_s: float
    down_kbit_s: float
    delay_ms: float = 20.0
    loss: float = 0.0
    metered: bool = False
    up_w_per_mbit_s: float = 0.0
    down_w_per_mbit_s: float = 0.0
    base_w: float = 0.0
    tail_s: float = 0.0
    tail_w: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("up_kbit_s", "down_kbit_s"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name}: expected more than 0, got {getattr(self, name):g}")
        for name in ("delay_ms", "base_w", "tail_s", "tail_w"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}: expected 0 or more, got {getattr(self, name):g}")
        if not 0 <= self.loss < 1:
            raise InputError(f"loss: expected 0 to less than 1, got {self.loss:g}")

    def bytes_per_s(self, *, up: bool) -> float:
        """The rate of a transfer."""
        plain = (self.up_kbit_s if up else self.down_kbit_s) * 125
        if not self.loss or not self.delay_ms:
            return plain
        round_trip_s = 2 * self.delay_ms / 1000
        return min(plain, _MATHIS * _SEGMENT_BYTES / (round_trip_s * math.sqrt(self.loss)))

    def watts(self, *, up: bool) -> float:
        """What the radio draws beside the idle device while it transfers."""
        slope = self.up_w_per_mbit_s if up else self.down_w_per_mbit_s
        return self.base_w + slope * self.bytes_per_s(up=up) / 125_000

    @property
    def tail_j(self) -> float:
        """Energy behind a transfer."""
        return self.tail_s * self.tail_w


_HUANG = "Huang et al., MobiSys 2012, tables 3 and 4"


def _wifi(up_kbit_s: float, down_kbit_s: float, delay_ms: float) -> Network:
    return Network(
        up_kbit_s=up_kbit_s,
        down_kbit_s=down_kbit_s,
        delay_ms=delay_ms,
        up_w_per_mbit_s=0.28317,
        down_w_per_mbit_s=0.13701,
        base_w=0.13286,
        tail_s=0.238,
        tail_w=0.119,
        source=f"{_HUANG}; rates are assumed",
    )


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "ethernet": Network(up_kbit_s=40_000, down_kbit_s=100_000, source="on the mains: no radio"),
        "home-wifi": _wifi(10_000, 50_000, 20),
        "slow-wifi": _wifi(1_000, 6_000, 60),
        "cellular": Network(
            up_kbit_s=6_000,
            down_kbit_s=13_000,
            delay_ms=35,
            metered=True,
            up_w_per_mbit_s=0.43839,
            down_w_per_mbit_s=0.05197,
            base_w=1.28804,
            tail_s=11.576,
            tail_w=1.06,
            source=f"{_HUANG}; rates: its medians (LTE)",
        ),
        "bluetooth": Network(
            up_kbit_s=700,
            down_kbit_s=700,
            delay_ms=50,
            base_w=0.4,
            source="Aalborg University, energy measurements on mobile phones: 5.7e-7 J/bit",
        ),
    }
)
