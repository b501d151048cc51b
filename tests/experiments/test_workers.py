"""What clients keep between rounds, wherever they are trained."""

from __future__ import annotations

import pytest

from protofleet.errors import RefusedError
from protofleet.experiments._worker import StoredClient
from protofleet.experiments.workers import ClientStates


def stored(round_id, state=b"s"):
    return StoredClient(round_id=round_id, state=state, residual=b"")


def test_the_state_of_the_last_complete_round_is_kept_beside_that_of_the_open_one():
    """An engine that fails in round 2 goes back to the end of round 1."""
    states = ClientStates({"b": stored(4)})
    states.begin(5)
    assert states.at("a", 0) is None
    states.put("a", 0, stored(5))
    states.begin(6)
    states.put("a", 5, stored(6))
    assert [states.at("a", of).round_id for of in (5, 6)] == [5, 6]
    assert states.at("b", 4) == stored(4)


def test_older_states_are_forgotten_when_a_round_opens():
    states = ClientStates({"a": stored(1)})
    states.begin(2)
    states.put("a", 1, stored(2))
    states.begin(3)
    assert states.at("a", 1) is None
    assert states.at("a", 2) == stored(2)


def test_a_round_made_again_takes_the_place_of_its_state():
    states = ClientStates({"a": stored(1)})
    states.begin(2)
    states.put("a", 1, stored(2))
    states.put("a", 1, stored(2, b"again"))
    assert states.at("a", 2).state == b"again"
    assert states.at("a", 1) == stored(1)


def test_a_state_survives_being_packed():
    one = StoredClient(round_id=3, state=b"\x00\x01", residual=b"")
    assert StoredClient.unpacked(3, one.packed()) == one
    with pytest.raises(RefusedError):
        StoredClient.unpacked(3, b"nothing")
