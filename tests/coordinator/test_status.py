from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from protofleet import strategies
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.status import read_status
from protofleet.strategies.types import ServerState


@pytest.fixture
def run(tiny):
    """A run's ledger and, at every call, its status."""
    with Ledger(tiny.plan.config.run_dir, tiny.plan.identity) as ledger:
        yield ledger, lambda: read_status(tiny.plan.config)


def _commit(ledger, round_id, *, final=False):
    ledger.open_round(round_id, ("a", "b"), 0.0, final=final)
    ledger.close_round(round_id)
    state = ServerState(round_id=round_id, tensors={"w": np.zeros(1)})
    ledger.commit_round(state, {}, 1.0, keep_states=1)


def test_a_run_is_finished_after_its_last_round(run):
    ledger, status = run
    assert (status().phase, status().committed, status().round_id) == ("waiting", 0, 0)
    ledger.open_round(1, ("b", "a"), 0.0)
    assert (status().phase, status().cohort, status().delivered) == ("open", ("a", "b"), ())
    ledger.close_round(1)
    assert (status().phase, status().committed) == ("closing", 0)
    state = ServerState(round_id=1, tensors={"w": np.zeros(1)})
    ledger.commit_round(state, {}, 1.0, keep_states=1)
    assert (status().phase, status().committed) == ("waiting", 1)
    _commit(ledger, 2)
    assert (status().phase, status().committed, status().final) == ("finished", 2, False)


def test_with_a_final_fit_it_is_finished_only_after_that(run, monkeypatch):
    changed = replace(strategies.DESCRIPTIONS["fedavg"], final_fit=True)
    monkeypatch.setitem(strategies.DESCRIPTIONS, "fedavg", changed)
    ledger, status = run
    for round_id in (1, 2):
        _commit(ledger, round_id)
    assert (status().phase, status().committed) == ("waiting", 2)
    ledger.open_round(3, ("a",), 0.0, final=True)
    assert (status().phase, status().committed, status().final) == ("open", 2, True)
    ledger.close_round(3)
    state = ServerState(round_id=3, tensors={"w": np.zeros(1)})
    ledger.commit_round(state, {}, 1.0, keep_states=1)
    assert (status().phase, status().committed, status().final) == ("finished", 2, True)


def test_members_that_cannot_be_read_cost_no_more_than_what_ends_when(tiny, tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "members.sqlite").write_bytes(b"no database at all, but of some length" * 40)
    config = msgspec.structs.replace(tiny.plan.config, keys=keys)
    with Ledger(config.run_dir, tiny.plan.identity) as ledger:
        ledger.open_round(1, ("a", "b"), 0.0)
        found = read_status(config)
    assert (found.phase, found.cohort, found.ending) == ("open", ("a", "b"), ())
    assert found.unread.startswith("what ends by the calendar: ")
    assert "members.sqlite" in found.unread
