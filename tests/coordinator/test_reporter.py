from __future__ import annotations

from collections import Counter

from protofleet.coordinator import events
from protofleet.coordinator.reporter import BURST, MINUTE_S, PER_MINUTE, Reporter
from protofleet.errors import RefusedError


def _flood(reporter, kinds, start=0):
    for i in range(start, start + 10_000):
        for kind in kinds:
            if kind == "refused":
                reporter.refused(f"invented-{i}", RefusedError("session", "who is it?"))
            elif kind == "online":
                reporter.online(f"invented-{i}", i)
            else:
                reporter.offline(f"invented-{i}", "offline", i)


def test_invented_devices_fill_no_log_and_their_number_is_told():
    """10,000 of them wrote 10,000 lines, and again the next time."""
    told = []
    reporter = Reporter(60.0, told.append)
    reporter.watch(0.0)
    _flood(reporter, ("refused", "online", "offline"))
    assert Counter(map(type, told)) == dict.fromkeys(
        (events.DeviceRefused, events.DeviceOnline, events.DeviceOffline), BURST
    )
    told.clear()
    reporter.watch(MINUTE_S)
    assert {(one.kind, one.count, one.seconds) for one in told} == {
        (kind, 10_000 - BURST, MINUTE_S)
        for kind in ("device_refused", "device_online", "device_offline")
    }
    told.clear()
    _flood(reporter, ("refused",), 10_000)
    assert len(told) == PER_MINUTE


def test_of_equal_refusals_the_1st_2nd_4th_8th_are_told():
    told = []
    reporter = Reporter(60.0, told.append)
    for _ in range(100):
        reporter.refused("a", RefusedError("seal", "x"))
    assert len(told) == 7


def test_announcements_to_refused_devices_are_few_however_many_there_are():
    reporter = Reporter(60.0, print)
    error = RefusedError("bundle", "x")
    assert sum(reporter.may_answer(f"invented-{i}", error) for i in range(10_000)) == BURST
