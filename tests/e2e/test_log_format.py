"""Both sides' logs as lines of JSON: one form, and the ids by which they are joined."""

from __future__ import annotations

import json

import pytest
from tiny_bundle import tiny_bundle

from protofleet.hub.dashboard.reading import RunReader

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=4)]

_HEAD = ["time", "level", "side", "event"]


def test_a_transfer_is_found_in_the_logs_of_both_sides(make_federation, tmp_path, key):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 1)
    federation.write(rounds=2)
    coordinator = federation.start_coordinator("--log-format", "json")
    device = federation.start_device("device0", **{"log-format": "json"})
    assert coordinator.finish() == 0, coordinator.log
    assert device.finish() == 0, device.log
    ours = [json.loads(line) for line in coordinator.log.splitlines()]
    theirs = [json.loads(line) for line in device.log.splitlines()]
    for line in ours + theirs:
        assert list(line)[:4] == _HEAD
        assert line["message"]
    assert {(line["side"], line["federation"]) for line in ours} == {("coordinator", "home")}
    joined = [line["event"] for line in theirs].index("joined")
    about = {(line["side"], line["federation"], line["device"]) for line in theirs[joined:]}
    assert about == {("device", "home", "device0")}
    received = {
        (line["round"], line["device"], line["transfer"])
        for line in ours
        if line["event"] == "update_received"
    }
    delivered = {
        (line["round"], line["device"], line["transfer"])
        for line in theirs
        if line["event"] == "delivered"
    }
    assert received == delivered
    assert {round_id for round_id, _, _ in received} == {1, 2}
    # --json on stdout is what it was.
    assert [event["event"] for event in coordinator.events][-1] == "finished"


def test_the_reason_of_an_early_end_is_a_line_too(make_federation, tmp_path, key):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 1)
    federation.write(rounds=2)
    federation.trust.unlink()
    device = federation.start_device("device0", **{"log-format": "json"})
    assert device.finish() == 2
    (line,) = map(json.loads, device.log.splitlines())
    assert (line["event"], line["level"]) == ("ended", "critical")
    assert "key.pem" in line["message"]


def test_the_log_of_a_round_that_failed_comes_only_from_the_device_that_may_send_it(
    make_federation, tmp_path, key
):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    federation.write(rounds=2, extra="[limits]\nupdate_bytes = 10\n")
    coordinator = federation.start_coordinator()
    silent = federation.start_device("device0")
    telling = federation.start_device("device1", **{"send-log": ""})
    for device in (silent, telling):
        device.wait_for(lambda event: event["event"] == "dropped")
    coordinator.wait_for(lambda event: event["event"] == "device_log")
    rejected = [event for event in coordinator.events if event["event"] == "update_rejected"]
    assert {(event["device_id"], event["rule"]) for event in rejected} == {
        ("device0", "blob-size"),
        ("device1", "blob-size"),
    }
    told = [event for event in coordinator.events if event["event"] == "device_log"]
    assert [(event["device_id"], event["round_id"]) for event in told] == [("device1", 1)]
    assert "round 1: update rejected: " in told[0]["lines"][-1]
    assert str(tmp_path) not in "".join(told[0]["lines"])
    stream = (federation.run_dir / "events.jsonl").read_text()
    kept = json.loads(stream[stream.index('{"event":"device_log"') :].splitlines()[0])
    assert kept == {**told[0], "time_s": kept["time_s"]}  # each stream looks at the clock itself
    shown = RunReader("home", federation.run_dir).read().logs
    assert [(name, list(log.said.lines)) for name, log in shown.items()] == [
        ("device1", told[0]["lines"])
    ]
