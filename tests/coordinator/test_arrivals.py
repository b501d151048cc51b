"""When updates that wait for the disk are accepted."""

from __future__ import annotations

from pathlib import Path

from protofleet.coordinator.arrivals import GATHER_S, MOST, Arrivals
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.federation.records import UpdateRecord
from protofleet.federation.schedules.schedule import RoundState
from protofleet.wire.messages import TransferOffer
from protofleet.wire.transfers.transfer import Received

_ROUND = RoundState(size=1000)


def _add(arrivals, name, now):
    offer = TransferOffer(
        transfer_id="0" * 32, kind="update", round_id=1, total_bytes=1, sha256="", chunk_bytes=256
    )
    record = UpdateRecord(client_id=name, round_id=1, num_examples=1)
    accepted = Accepted(device_id=name, transfer_id="t", record=record)
    arrivals.add(Received(name, offer, Path(name)), ArrivedUpdate(Path(name), accepted), now)


def test_an_empty_one_is_never_due():
    assert not Arrivals().is_due(10.0, _ROUND, idle=True)
    assert Arrivals().wait_s(10.0) == float("inf")


def test_an_update_waits_a_moment_for_others_and_no_longer_if_none_come():
    arrivals = Arrivals()
    _add(arrivals, "a", 10.0)
    _add(arrivals, "b", 10.02)
    assert arrivals.holds("a")
    assert not arrivals.holds("c")
    assert not arrivals.is_due(10.02, _ROUND, idle=False)
    assert arrivals.is_due(10.02, _ROUND, idle=True)
    assert arrivals.wait_s(10.02) == 10.0 + GATHER_S - 10.02
    assert arrivals.is_due(10.0 + GATHER_S, _ROUND, idle=False)
    assert [event.device_id for event, _ in arrivals.take()] == ["a", "b"]
    assert not arrivals.take()
    assert not arrivals.holds("a")


def test_what_completes_a_round_or_a_batch_waits_for_nothing():
    arrivals = Arrivals()
    for number in range(MOST):
        assert not arrivals.is_due(10.0, _ROUND, idle=False)
        _add(arrivals, f"{number}", 10.0)
    assert arrivals.is_due(10.0, _ROUND, idle=False)
    arrivals.take()
    _add(arrivals, "last", 10.0)
    assert arrivals.is_due(10.0, RoundState(size=3, delivered=frozenset("ab")), idle=False)
