"""What devices paid: totals that only grow, and what they say of each round."""

from __future__ import annotations

from protofleet.coordinator.ledger import Ledger
from protofleet.coordinator.ledger_rows import Totals

_IDENTITY = {"federation": "home", "seed": "1"}


def test_totals_only_grow(tmp_path):
    """A heartbeat that arrives late does not take bytes back."""
    with Ledger(tmp_path, _IDENTITY) as ledger:
        ledger.traffic.note("a", 1, Totals(bytes_up=10, bytes_down=20, peak_rss_bytes=5))
        ledger.traffic.totals()
        ledger.traffic.note("a", 1, Totals(bytes_up=7, bytes_down=30, peak_rss_bytes=4))
        assert ledger.traffic.totals() == {
            "a": {1: Totals(bytes_up=10, bytes_down=30, peak_rss_bytes=5)}
        }


def test_what_devices_paid_is_read_one_by_one_as_it_is_read_at_once(tmp_path):
    """A device that missed a round has what it paid meanwhile in its next one."""
    said = {("a", 0): 3, ("a", 1): 10, ("b", 1): 5, ("a", 3): 30, ("b", 2): 5}
    with Ledger(tmp_path, _IDENTITY) as ledger:
        for (name, round_id), count in said.items():
            totals = Totals(bytes_up=count, bytes_down=2 * count, peak_rss_bytes=count)
            ledger.traffic.note(name, round_id, totals)
        devices = dict(ledger.traffic.by_device())
        assert {
            name: [(one.round_id, one.bytes_up, one.bytes_down) for one in traffic]
            for name, traffic in devices.items()
        } == {"a": [(0, 3, 6), (1, 7, 14), (3, 20, 40)], "b": [(1, 5, 10), (2, 0, 0)]}
        latest = {
            name: list(by_round.values())[-1] for name, by_round in ledger.traffic.totals().items()
        }
        assert dict(ledger.traffic.latest()) == latest
