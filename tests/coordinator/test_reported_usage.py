from __future__ import annotations

import pytest

from protofleet.coordinator.devices.reported_usage import SLACK_BYTES, ReportedUsage
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.errors import RefusedError
from protofleet.wire.mqtt.usage import DeviceUsage


def _totals(up, down=0, rss=0):
    return DeviceUsage(bytes_up=up, bytes_down=down, peak_rss_bytes=rss)


def _latest(ledger):
    return {name: (last, usage) for name, last, usage in ledger.usage.latest()}


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path, {}) as one:
        yield one


def test_only_participants_count_and_what_they_said_before_does(ledger):
    reported = ReportedUsage(ledger)
    reported.note("a", 0, _totals(5), 0.0)
    reported.note("stranger", 0, _totals(5), 0.0)
    reported.invited(["a"])
    reported.note("a", 1, _totals(9), 1.0)
    assert _latest(ledger) == {"a": (1, _totals(9))}


def test_counters_never_fall_and_never_go_back_to_an_earlier_round(ledger):
    """A killed device may begin a little lower; nobody rewrites what was noted."""
    reported = ReportedUsage(ledger)
    reported.invited(["a"])
    reported.note("a", 2, _totals(100, 50), 0.0)
    reported.note("a", 1, _totals(90, 60), 1.0)
    assert _latest(ledger) == {"a": (2, _totals(100, 60))}


@pytest.mark.parametrize("totals", [_totals(2**40), _totals(0, 2**40)])
def test_what_cannot_be_is_refused_and_changes_nothing(ledger, totals):
    reported = ReportedUsage(ledger)
    reported.invited(["a"])
    reported.note("a", 1, _totals(7), 0.0)
    with pytest.raises(RefusedError, match="heartbeat of 'a'"):
        reported.note("a", 1, totals, 10.0)
    assert _latest(ledger) == {"a": (1, _totals(7))}


def test_a_restarted_coordinator_takes_whatever_was_exchanged_meanwhile(ledger):
    first = ReportedUsage(ledger)
    first.invited(["a"])
    first.note("a", 1, _totals(7), 0.0)
    again = ReportedUsage(ledger)
    assert again.known == 1
    again.note("a", 1, _totals(100 * SLACK_BYTES), 0.0)
    assert _latest(ledger)["a"][1].bytes_up == 100 * SLACK_BYTES
