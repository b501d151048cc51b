"""Logs that are longer than they may be, that command a terminal, or that come without end."""

from __future__ import annotations

import json

import pytest

from protofleet.coordinator import events
from protofleet.coordinator.reporter import BURST, Reporter
from protofleet.errors import RefusedError
from protofleet.wire.messages import MOST_LOG_CHARS, Heartbeat, decode, encode

_BEAT = Heartbeat(
    device_id="a",
    boot_id="1",
    round_id=1,
    phase="idle",
    bytes_up=0,
    bytes_down=0,
    peak_rss_bytes=0,
)


@pytest.mark.parametrize("log", ["x" * (MOST_LOG_CHARS + 1), 1, None, ["x"], {"x": 1}])
def test_what_is_no_short_text_makes_a_heartbeat_invalid(log):
    data = json.dumps({**json.loads(encode(_BEAT)), "log": log}).encode()
    with pytest.raises(RefusedError) as caught:
        decode(data, Heartbeat)
    assert caught.value.rule == "message-schema"
    assert len(str(caught.value)) < 500


def test_a_heartbeat_without_a_log_is_the_bytes_that_it_was():
    assert b"log" not in encode(_BEAT)


@pytest.fixture
def told():
    found = []
    return Reporter(60.0, found.append), found


def test_what_commands_a_terminal_is_text(told):
    reporter, found = told
    reporter.device_log("a", 1, "\x1b]0;pwned\x07\nfinished \u202e")
    assert found == [
        events.DeviceLog(
            device_id="a", round_id=1, lines=("\\u001b]0;pwned\\u0007", "finished \\u202e")
        )
    ]


def test_a_device_tells_of_each_round_once_and_many_devices_little(told):
    reporter, found = told
    for round_id in (2, 2, 1, 3):
        reporter.device_log("a", round_id, "x")
    assert [event.round_id for event in found] == [2, 3]
    for number in range(1000):
        reporter.device_log(f"d{number}", 1, "x" * MOST_LOG_CHARS)
    assert len(found) <= BURST // 8
