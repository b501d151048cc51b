"""The last lines of a device's log: which are kept, how many, and that they go only if they may."""

from __future__ import annotations

import logging

import pytest
from fake_endpoint import CONNECTED

from protofleet.edge.log_tail import LogTail, log_tail
from protofleet.wire.messages import MOST_LOG_CHARS, Heartbeat, decode, encode


def _logs(endpoint):
    beats = [one for one in endpoint.published if isinstance(one, Heartbeat)]
    return [(one.round_id, one.phase, one.log) for one in beats if one.log]


@pytest.fixture
def tail():
    logging.getLogger("protofleet").setLevel(logging.INFO)
    with log_tail(kept=True) as found:
        yield found


def test_lines_of_modules_that_see_data_are_not_kept(tail):
    for name in (
        "edge.learning.training",
        "edge.data.examples",
        "edge.learning.meter",
        "cli.device",
    ):
        logging.getLogger(f"protofleet.{name}").warning("loss 0.3 of 17 examples")
    logging.getLogger("protofleet.edge.agent").warning("round %d refused: %s", 3, "a\x1b[31m\né")
    (line,) = tail.text().split("\n")
    assert line.endswith("Z warning round 3 refused: a\\u001b[31m\\u000a\\xe9")
    assert line.isascii()
    assert line.isprintable()


def test_the_latest_lines_are_kept_as_far_as_a_heartbeat_has_room(tail):
    log = logging.getLogger("protofleet.edge.agent")
    for number in range(200):
        log.warning("%d %s", number, "x" * 300)
    lines = tail.text().split("\n")
    assert len(tail.text()) <= MOST_LOG_CHARS < len(tail.text()) + 350
    assert [int(line.split()[2]) for line in lines] == list(range(200 - len(lines), 200))
    beat = Heartbeat(
        device_id="a",
        boot_id="1",
        round_id=1,
        phase="idle",
        bytes_up=0,
        bytes_down=0,
        peak_rss_bytes=0,
        log='"' * MOST_LOG_CHARS,
    )
    assert decode(encode(beat), Heartbeat) == beat


def test_a_line_that_is_too_long_leaves_nothing_rather_than_a_part(tail):
    logging.getLogger("protofleet.edge.agent").warning("x" * MOST_LOG_CHARS)
    assert tail.text() == ""


def test_without_leave_nothing_is_kept_or_sent(device):
    with log_tail(kept=False) as none:
        assert none is None
    device.play(CONNECTED, device.round(), device.rejected)
    assert _logs(device.endpoint) == []


def test_a_round_that_fails_takes_the_log_with_it(device, tail):
    device.tail = tail
    endpoint = device.play(CONNECTED, device.round(), device.rejected)
    ((round_id, phase, text),) = _logs(endpoint)
    assert (round_id, phase) == (1, "send")
    assert text.endswith("warning round 1: update rejected: too late")
    assert isinstance(tail, LogTail)
