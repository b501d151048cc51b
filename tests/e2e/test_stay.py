"""A device that runs as a service: it is there before, between and after the runs."""

from __future__ import annotations

import signal

import pytest
from tiny_bundle import tiny_bundle

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=10)]


def _is(name):
    return lambda event: event["event"] == name


def test_a_service_outlives_the_finish_its_own_restart_and_takes_part_when_the_run_goes_on(
    make_federation, tmp_path, key
):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 1)
    federation.write(rounds=1)
    coordinator = federation.start_coordinator()
    first = federation.start_device("device0", stay="")
    assert coordinator.finish() == 0, coordinator.log
    first.wait_for(_is("finished"))
    first.terminate()
    assert first.finish() == 128 + signal.SIGTERM

    again = federation.start_device("device0", stay="")
    again.wait_for(_is("finished"))  # the broker has kept it

    federation.write(rounds=2)
    coordinator = federation.start_coordinator()
    assert coordinator.finish() == 0, coordinator.log
    again.wait_for(lambda e: e["event"] == "finished" and e["round_id"] == 2)
    assert [e["round_id"] for e in again.events if e["event"] == "delivered"] == [2]
    again.terminate()
    assert again.finish() == 128 + signal.SIGTERM
