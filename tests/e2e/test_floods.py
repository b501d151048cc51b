"""Honest devices go on under a flood, as the benchmark of floods measures it."""

from __future__ import annotations

import pytest

from protofleet.benchmarks import floods


@pytest.mark.mosquitto
@pytest.mark.slow(seconds=20)
def test_rounds_go_on_while_a_member_offers_half_a_gigabyte(monkeypatch):
    monkeypatch.setattr(floods, "_FLOATS", 1_000)
    monkeypatch.setattr(floods, "_DEADLINE_S", 1.0)
    name = "1,000 offers of 512 MB by a member"
    row = floods._row(name, floods.FLOODS[name])
    assert row.details["messages"] == 1_001
    assert row.details["rounds"] >= 5
    assert row.details["coordinator_rss_mb"] < 200
