"""The log as lines of JSON."""

from __future__ import annotations

import json
import logging
import math

import pytest

from protofleet.log_lines import JsonLines, log_event


@pytest.fixture
def written(caplog):
    """What ``JsonLines`` makes of what is logged."""
    lines = JsonLines("device")
    caplog.set_level(logging.DEBUG, "protofleet.x")
    log = logging.getLogger("protofleet.x")
    return log, lines, lambda: [json.loads(lines.format(record)) for record in caplog.records]


def test_an_event_has_its_ids_on_top_and_the_rest_in_fields(written):
    log, lines, read = written
    lines.about.update(federation="home", device="pi-1")
    fields = {"round_id": 3, "transfer_id": "ab", "loss": math.nan, "p": (1.5, math.inf)}
    log_event(log, "trained", fields, "round 3", level=logging.WARNING)
    (line,) = read()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "side": "device",
        "event": "trained",
        "federation": "home",
        "device": "pi-1",
        "round": 3,
        "transfer": "ab",
        "message": "round 3",
        "logger": "protofleet.x",
        "fields": {"loss": None, "p": [1.5, None]},
    }


def test_other_messages_are_of_the_event_log_with_their_exception(written):
    log, _, read = written
    try:
        raise ValueError("no\x1b[31m\nline 2")  # noqa: TRY301 - one with a traceback
    except ValueError:
        log.exception("told %s", "\u202eso")
    (line,) = read()
    assert (line["event"], line["message"]) == ("log", "told \u202eso")
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("line 2")
    assert "round" not in line


def test_a_line_is_plain_printable_ascii_whatever_a_peer_has_sent(caplog):
    caplog.set_level(logging.INFO, "protofleet.x")
    log_event(logging.getLogger("protofleet.x"), "dropped", {"reason": "\x1b]0;\ud800\x7f"}, "é\n")
    text = JsonLines("coordinator").format(caplog.records[0])
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)["fields"] == {"reason": "\x1b]0;\ud800\x7f"}
