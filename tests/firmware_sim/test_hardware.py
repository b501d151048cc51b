"""Real devices' figures, and this machine's beside them."""

from __future__ import annotations

import pytest

from protofleet.errors import InputError
from protofleet.firmware_sim.world import hardware
from protofleet.firmware_sim.world.hardware import (
    HARDWARE,
    PI_4_GFLOPS,
    PI_4_PRIMES,
    Hardware,
    HostSpeed,
    Span,
)

_POWER = Span(low=0.5, likely=1.0, high=2.0)


def test_a_device_is_slower_by_both_benchmarks_and_its_own_spread():
    host = HostSpeed(primes=4 * PI_4_PRIMES, gflops=9 * PI_4_GFLOPS)
    pi = host.slowdown(HARDWARE["pi-4"])
    assert (pi.low, pi.likely, pi.high) == pytest.approx((4, 6, 9))
    half = Hardware(
        speed=Span(low=0.25, likely=0.5, high=1.0), memory_mb=512, train_w=_POWER, idle_w=1.0
    )
    slow = host.slowdown(half)
    assert (slow.low, slow.likely, slow.high) == pytest.approx((4, 12, 36))


def test_every_kind_says_where_its_figures_are_from():
    assert {"phone-high", "phone-low", "watch", "pi-zero-2w", "pi-3", "pi-4", "pi-5"} <= set(
        HARDWARE
    )
    for kind in HARDWARE.values():
        assert len(kind.source) > 20
        assert kind.battery_wh == 0 or kind.charge_w > kind.used_w


def test_the_primes_are_counted_as_sysbench_counts_them():
    assert hardware._count_primes(100) == 24  # 25 below 100, from 3 on


@pytest.mark.slow
def test_this_machine_is_measured():
    host = hardware.measure_host()
    assert host.primes > 10
    assert host.gflops > 0.01


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"memory_mb": 0}, "memory_mb: expected more than 0"),
        ({"idle_w": 0.0}, "idle_w: expected more than 0"),
        ({"battery_wh": -1.0}, "battery_wh: expected 0 or more"),
        ({"battery_wh": 10.0, "charge_w": 1.0, "used_w": 2.0}, "charge_w: expected more than"),
    ],
)
def test_a_device_that_cannot_be_is_refused_by_its_key(fields, said):
    good = {"speed": _POWER, "memory_mb": 512, "train_w": _POWER, "idle_w": 0.5}
    with pytest.raises(InputError, match=said):
        Hardware(**{**good, **fields})


def test_a_span_has_an_order():
    with pytest.raises(InputError, match="low <= likely <= high"):
        Span(low=2.0, likely=1.0, high=3.0)
