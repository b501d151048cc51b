"""What devices paid: totals that only grow, and what they say of each round."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from msgspec.structs import replace

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.usage_rows import UsageRows
from protofleet.wire.mqtt.usage import DeviceUsage

_IDENTITY = {"federation": "home", "seed": "1"}


def _latest(ledger):
    return {name: (last, usage) for name, last, usage in ledger.usage.latest()}


def test_totals_only_grow(tmp_path):
    """A heartbeat that arrives late does not take bytes back."""
    with Ledger(tmp_path, _IDENTITY) as ledger:
        ledger.usage.note("a", 1, DeviceUsage(bytes_up=10, bytes_down=20, peak_rss_bytes=5))
        _latest(ledger)
        ledger.usage.note("a", 1, DeviceUsage(bytes_up=7, bytes_down=30, peak_rss_bytes=4))
        assert _latest(ledger) == {
            "a": (1, DeviceUsage(bytes_up=10, bytes_down=30, peak_rss_bytes=5))
        }


def test_what_devices_paid_is_read_one_by_one_as_it_is_read_at_once(tmp_path):
    """A device that missed a round has what it paid meanwhile in its next one."""
    said = {("a", 0): 3, ("a", 1): 10, ("b", 1): 5, ("a", 3): 30, ("b", 2): 5}
    with Ledger(tmp_path, _IDENTITY) as ledger:
        for (name, round_id), count in said.items():
            totals = DeviceUsage(bytes_up=count, bytes_down=2 * count, peak_rss_bytes=count)
            ledger.usage.note(name, round_id, totals)
        devices = dict(ledger.usage.by_device())
        assert {
            name: [(one.round_id, one.bytes_up, one.bytes_down) for one in traffic]
            for name, traffic in devices.items()
        } == {"a": [(0, 3, 6), (1, 7, 14), (3, 20, 40)], "b": [(1, 5, 10), (2, 0, 0)]}
        assert {name: ledger.usage.of_device(name) for name in "ab"} == devices
        assert ledger.usage.by_round() == {0: (3, 6), 1: (12, 24), 2: (0, 0), 3: (20, 40)}
        assert {name: last for name, (last, _) in _latest(ledger).items()} == {"a": 3, "b": 2}
        assert _latest(ledger)["a"][1].bytes_down == 60


def test_a_ledger_without_a_figure_is_read_and_gets_a_column_when_it_goes_on(tmp_path):
    """A run of an earlier version is shown, and taken up, though its devices told less."""
    with Ledger(tmp_path, _IDENTITY) as ledger:
        used = DeviceUsage(bytes_up=10, bytes_down=20, peak_rss_bytes=5)
        ledger.usage.note("a", 1, used)
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE traffic DROP COLUMN peak_rss_bytes")
        told = [("a", 1, replace(used, peak_rss_bytes=0))]
        assert list(UsageRows(db).latest()) == told
    with Ledger(tmp_path, _IDENTITY) as ledger:
        assert list(ledger.usage.latest()) == told
        ledger.usage.note("a", 1, used)
        assert list(ledger.usage.latest()) == [("a", 1, used)]
