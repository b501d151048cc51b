"""Processors, batteries and memories of real devices, by published measurements.

A device's speed is told beside a Raspberry Pi 4's, one thread of each. Two benchmarks bound it: the
prime numbers of sysbench (integers) and Linpack (floating point); training lies between them, as
small models spend their time on calls and large ones on products. Where no measurement of the very
processor was found, that of the same core is scaled by its clock, and ``source`` says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
import numpy as np

from protofleet.errors import InputError

PI_4_PRIMES = 1477.83
"""Passes of sysbench's test (primes up to 10 000) in a second by one thread of a Pi 4."""
PI_4_GFLOPS = 11.889 / 4
"""Linpack of a Pi 4, by core."""
_LARGEST_PRIME, _MATRIX, _PASSES = 10_000, 384, 20


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure that is not known exactly: the likely value, and between which it lies."""

    low: float
    likely: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.likely <= self.high < math.inf:
            raise InputError(
                f"expected 0 < low <= likely <= high, got {self.low:g}, {self.likely:g} and "
                f"{self.high:g}"
            )


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a kind of device can do.

    Attributes:
        speed: of one thread, as a multiple of a Raspberry Pi 4's.
        memory_mb: of the device (MiB).
        train_w: power of one busy core above the idle device (watts).
        idle_w: of the device while its owner leaves it alone.
        used_w: while its owner uses it.
        battery_wh: capacity; 0: it hangs on the mains.
        charge_w: of its charger.
        source: where the figures are from, for people.
    """

    speed: Span
    memory_mb: int
    train_w: Span
    idle_w: float
    used_w: float = 0.0
    battery_wh: float = 0.0
    charge_w: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("memory_mb", "idle_w"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name}: expected more than 0, got {getattr(self, name):g}")
        for name in ("used_w", "battery_wh", "charge_w"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}: expected 0 or more, got {getattr(self, name):g}")
        if self.battery_wh and self.charge_w <= max(self.idle_w, self.used_w):
            raise InputError(
                f"charge_w: expected more than the device draws ({max(self.idle_w, self.used_w):g} "
                f"W), got {self.charge_w:g}"
            )


def _span(low: float, likely: float, high: float) -> Span:
    return Span(low=low, likely=likely, high=high)


_BOARDS = (
    "sysbench: leoncode.co.uk/articles/raspberry-pi-benchmarks; Linpack: "
    "github.com/geerlingguy/top500-benchmark; watts: pidramble.com, four cores less idle, by four"
)
_A53 = "a Pi 3 B+'s Cortex-A53, by its clock"
_PHONE_WATTS = "watts of one core: anandtech.com/show/11088, Kirin 950 to Snapdragon 820"

HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {
        "pi-5": Hardware(
            speed=_span(1.85, 2.2, 2.54),
            memory_mb=4096,
            train_w=_span(0.8, 1.05, 2.0),
            idle_w=3.0,
            source=f"{_BOARDS}; a Pi 5 idle 3 W, under load 7.2 W (Linpack: 11 W)",
        ),
        "pi-4": Hardware(
            speed=_span(1.0, 1.0, 1.0),
            memory_mb=4096,
            train_w=_span(0.8, 0.93, 1.1),
            idle_w=2.7,
            source=_BOARDS,
        ),
        "pi-3": Hardware(
            speed=_span(0.3, 0.38, 0.47),
            memory_mb=1024,
            train_w=_span(0.6, 0.8, 0.9),
            idle_w=1.9,
            source=f"{_BOARDS}; a Pi 3 B's Linpack: Cloutier, Paradis, Weaver, Electronics 5(4):61",
        ),
        "pi-zero-2w": Hardware(
            speed=_span(0.2, 0.27, 0.33),
            memory_mb=512,
            train_w=_span(0.3, 0.38, 0.6),
            idle_w=0.6,
            source=f"{_A53} (1.0 of 1.4 GHz); watts: cnx-software.com (idle), {_BOARDS}",
        ),
        "jetson-nano": Hardware(
            speed=_span(0.32, 0.7, 1.0),
            memory_mb=4096,
            train_w=_span(0.8, 1.2, 2.0),
            idle_w=2.0,
            source="Linpack: kreier.github.io/benchmark (low), a Jetson TX1's by the clock, "
            "Electronics 5(4):61 (high); watts: its power modes of 5 and 10 W",
        ),
        "phone-high": Hardware(
            speed=_span(1.85, 3.0, 5.0),
            memory_mb=8192,
            train_w=_span(1.35, 1.8, 2.4),
            idle_w=0.05,
            used_w=1.5,
            battery_wh=17.0,
            charge_w=15.0,
            source=f"at least a Pi 5's Cortex-A76; the rest is assumed; {_PHONE_WATTS}",
        ),
        "phone-low": Hardware(
            speed=_span(0.43, 0.54, 0.67),
            memory_mb=3072,
            train_w=_span(0.2, 0.4, 0.8),
            idle_w=0.05,
            used_w=1.2,
            battery_wh=15.0,
            charge_w=7.5,
            source=f"{_A53} (2.0 of 1.4 GHz); watts: anandtech.com/show/9330 (Cortex-A53)",
        ),
        "watch": Hardware(
            speed=_span(0.36, 0.46, 0.57),
            memory_mb=1024,
            train_w=_span(0.15, 0.3, 0.6),
            idle_w=0.03,
            used_w=0.15,
            battery_wh=1.3,
            charge_w=1.5,
            source=f"{_A53} (1.7 of 1.4 GHz); watts as of a low phone's core; battery: 340 mAh",
        ),
    }
)


class HostSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This machine, one thread of it, by the two benchmarks.

    Attributes:
        primes: passes of the primes up to 10 000 in a second.
        gflops: 10⁹ operations in double precision in a second, of a matrix product.
    """

    primes: float
    gflops: float

    @property
    def speed(self) -> Span:
        """Beside a Raspberry Pi 4."""
        low, high = sorted((self.primes / PI_4_PRIMES, self.gflops / PI_4_GFLOPS))
        return Span(low=low, likely=math.sqrt(low * high), high=high)

    def slowdown(self, hardware: Hardware) -> Span:
        """How many times longer a device takes than this machine, likely and at the ends."""
        ours, theirs = self.speed, hardware.speed
        return Span(
            low=ours.low / theirs.high,
            likely=ours.likely / theirs.likely,
            high=ours.high / theirs.low,
        )


def measure_host() -> HostSpeed:
    """Measure this machine; other work on it makes it look slow. Some seconds."""
    from numba import njit  # noqa: PLC0415 - a second, for whoever measures

    count = njit(_count_primes)
    count(100)  # compiled before the clock runs
    a = np.random.default_rng(0).standard_normal((_MATRIX, _MATRIX))
    one_pass = min(_seconds(lambda: count(_LARGEST_PRIME)) for _ in range(_PASSES))
    product = min(_seconds(lambda: a @ a) for _ in range(_PASSES))
    return HostSpeed(primes=1 / one_pass, gflops=2 * _MATRIX**3 / product / 1e9)


def _count_primes(largest: int) -> int:
    """By trial division up to the root, as sysbench's cpu test does."""
    found = 0
    for number in range(3, largest):
        root = math.sqrt(number)
        divisor = 2
        while divisor <= root and number % divisor:
            divisor += 1
        found += divisor > root
    return found


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
