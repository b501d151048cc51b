"""What the coordinator tells each device of the other owners' gains."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from fake_endpoint import CONNECTED

from protofleet.coordinator.fleet_gains import _MOST, FleetGains
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.federation.records import EvaluationRecord, HeldOutGain, UpdateRecord
from protofleet.strategies.types import Evaluation


def _counts(right, wrong):
    return [[right, wrong, 0], [0, 0, 0], [0, 0, 0]]


def _record(name, own, start=None):
    told = EvaluationRecord(own=own, start=start)
    return UpdateRecord(client_id=name, round_id=1, num_examples=5, evaluation=told)


@pytest.fixture
def gains(tmp_path):
    with Ledger(tmp_path / "run", {"federation": "home"}) as ledger:
        yield FleetGains(ledger, "classification")


def test_a_start_that_was_told_once_serves_for_later_rounds(gains):
    names = ("anna", "ben", "carl")
    gains.add(_record(name, _counts(10, 10), _counts(10, 10)) for name in names)
    assert gains.now.mean == 0
    gains.add(_record(name, _counts(18, 2)) for name in names)
    assert (gains.now.owners, gains.now.mean) == (3, pytest.approx(0.4))


def test_who_tells_nothing_counts_for_nothing(gains):
    gains.add([_record("anna", None), _record("ben", _counts(3, 1)), _record("carl", None)])
    assert gains.now is None


def test_held_out_examples_count_as_test_examples_do(gains):
    held = HeldOutGain(examples=60, gain=0.8)
    tested = [_record(name, _counts(10, 10), _counts(10, 10)) for name in ("anna", "ben")]
    gains.add(msgspec.structs.replace(record, held_out=held) for record in tested)
    assert dict(gains._gains) == {name: (pytest.approx(0.6), 80) for name in ("anna", "ben")}
    gains.add([msgspec.structs.replace(_record("carl", None), held_out=held)])
    assert gains.now.owners == 3


def test_memory_is_bounded(gains):
    gains.add(_record(f"pi-{k}", _counts(3, 1), _counts(2, 2)) for k in range(_MOST + 50))
    assert gains.now.owners == _MOST
    assert len(gains._starts) == _MOST


def test_tasks_of_the_next_round_have_it_and_a_restart_begins_anew(open_federation):
    fed = open_federation(minimum=3, rounds=3)
    come = [fed.online(name) for name in "abc"]

    def updates(round_id):
        for name in "abc":
            start = np.array(_counts(10, 10)) if round_id == 1 else None
            told = Evaluation(own=np.array(_counts(16, 4)), start=start)
            update = replace(fed.update(name, round_id), evaluation=told)
            yield fed.delivers(name, round_id, update)

    fed.play(CONNECTED, come, *updates(1))
    tasks = {sent.task.round_id: sent.task.fleet for sent in fed.endpoint.sent}
    assert tasks[1] is msgspec.UNSET
    assert (tasks[2].owners, tasks[2].mean) == (3, pytest.approx(0.3))
    fed.play(CONNECTED, come, *updates(2))
    tasks = {sent.task.round_id: sent.task.fleet for sent in fed.endpoint.sent}
    assert tasks[2] is msgspec.UNSET
    assert (tasks[3].owners, tasks[3].mean) == (3, pytest.approx(0.3))
