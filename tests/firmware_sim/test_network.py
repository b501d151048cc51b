"""Networks."""

from __future__ import annotations

import pytest

from protofleet.errors import InputError
from protofleet.firmware_sim.world.network import NETWORKS, Network


def test_a_radio_draws_what_huang_et_al_have_measured():
    """LTE: 438.39 mW and 51.97 mW for each Mbit/s up and down, 1288.04 mW beside."""
    lte = NETWORKS["cellular"]
    assert lte.watts(up=True) == pytest.approx(0.43839 * 6 + 1.28804)
    assert lte.watts(up=False) == pytest.approx(0.05197 * 13 + 1.28804)
    assert lte.tail_j == pytest.approx(11.576 * 1.06)
    assert lte.metered


def test_rates_are_bits_and_transfers_bytes():
    link = Network(up_kbit_s=8.0, down_kbit_s=16.0)
    assert (link.bytes_per_s(up=True), link.bytes_per_s(up=False)) == (1000, 2000)
    assert link.watts(up=True) == 0


def test_lost_segments_bound_the_rate():
    """At 1 % and a round trip of 100 ms: 12.2 segments of 1460 bytes in each, 178 kB/s."""
    link = Network(up_kbit_s=10_000.0, down_kbit_s=100.0, delay_ms=50.0, loss=0.01)
    assert link.bytes_per_s(up=True) == pytest.approx(1.22 * 10 * 1460 / 0.1)
    assert link.bytes_per_s(up=False) == 12_500  # slower than that anyway


@pytest.mark.parametrize(
    "fields", [{"up_kbit_s": 0.0}, {"delay_ms": -1.0}, {"tail_s": -1.0}, {"loss": 1.0}]
)
def test_a_network_that_cannot_be_is_refused_by_its_key(fields):
    (name,) = fields
    with pytest.raises(InputError, match=name):
        Network(**{"up_kbit_s": 1.0, "down_kbit_s": 1.0, **fields})
