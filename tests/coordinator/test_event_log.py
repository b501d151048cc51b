"""The run folder's event stream."""

from __future__ import annotations

import json

from protofleet.coordinator import events
from protofleet.coordinator.process import event_log
from protofleet.coordinator.process.event_log import EVENTS, FORMER_EVENTS, EventLog

_EVENT = events.BrokerConnected(protocol="5")


def test_each_event_is_a_line_of_a_private_file_and_goes_on_to_the_sink(tmp_path):
    told = []
    log = EventLog(tmp_path, told.append)
    log(_EVENT)
    log(_EVENT)
    lines = (tmp_path / EVENTS).read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["connected"] * 2
    assert told == [_EVENT] * 2
    assert (tmp_path / EVENTS).stat().st_mode & 0o077 == 0


def test_a_full_file_makes_room_and_one_before_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "MAX_BYTES", 200)
    log = EventLog(tmp_path, lambda _: None)
    for _ in range(7):
        log(_EVENT)
    assert (tmp_path / FORMER_EVENTS).stat().st_size > 200
    assert (tmp_path / EVENTS).stat().st_size <= 200


def test_a_disk_that_takes_no_writes_holds_nothing_up(tmp_path):
    told = []
    EventLog(tmp_path / "missing", told.append)(_EVENT)
    assert told == [_EVENT]
