"""How far devices are believed, in arithmetic by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from protofleet.errors import RefusedError
from protofleet.federation import client_limits
from protofleet.federation.records import UpdateRecord
from protofleet.strategies.types import Update


def _admitted(client_id, num_examples=10, **norms):
    record = UpdateRecord(client_id=client_id, round_id=1, num_examples=num_examples)
    return SimpleNamespace(record=record, norms=norms)


def _updates(*admitted, class_counts=None):
    return [
        Update(
            client_id=one.record.client_id,
            round_id=1,
            num_examples=one.record.num_examples,
            tensors={},
            class_counts=class_counts,
        )
        for one in admitted
    ]


def test_norms_are_those_of_differences_by_group():
    """Two tensors of one group, one without a baseline, integers passed over."""
    tensors = {
        "params/a": np.array([4.0, 2.0], np.float32),
        "params/b": np.array([5.0], np.float32),
        "prototypes": np.array([[3.0, 4.0]], np.float32),
        "labels": np.array([1, 2]),
    }
    baseline = {"params/a": np.array([1.0, 2.0], np.float32), "params/b": np.array([1.0])}
    assert client_limits.difference_norms(tensors, baseline) == {"params": 5.0, "prototypes": 5.0}


def test_bounds_are_learned_from_the_last_ten_rounds_that_moved():
    rounds = [{"params": 9.0}, *({"params": 0.5 + 0.01 * n} for n in range(10)), {"params": 0.0}]
    bounds = client_limits.learned_bounds(rounds)
    assert bounds == {"params": pytest.approx(59.0)}
    assert client_limits.relaxed_bounds(bounds, 2) == {"params": pytest.approx(5900.0)}
    assert client_limits.learned_bounds([]) == {}


def test_half_of_the_accepted_move_no_bound():
    norms = client_limits.median_norms([{"a": 1.0}, {"a": 1.2, "b": 3.0}, {"a": 9e5}])
    assert norms == {"a": 1.2, "b": 3.0}


def test_a_difference_beyond_what_was_learned_is_refused_with_both_numbers():
    baseline, bounds = {"params/a": np.zeros(2, np.float32)}, {"params": 50.0}
    client_limits.check_differences({"params": 50.0}, baseline, bounds, most=1e6)
    message = r"its 'params' to differ .* of at most 50, got 9.9e\+05$"
    with pytest.raises(RefusedError, match=message):
        client_limits.check_differences({"params": 9.9e5}, baseline, bounds, most=1e6)


def test_a_client_may_go_as_far_as_its_payload_is_long_and_before_round_two_farther():
    baseline = {"params/a": np.array([300.0, 400.0], np.float32)}
    client_limits.check_differences({"params": 499.0}, baseline, {"params": 1.0}, most=1e6)
    client_limits.check_differences({"params": 9e5}, baseline, {}, most=1e6)
    with pytest.raises(RefusedError):
        client_limits.check_differences({"params": 2e6}, baseline, {}, most=1e6)


def test_more_examples_than_registered_are_refused():
    record = _admitted("a", 2**53 - 1).record
    with pytest.raises(RefusedError, match="at most the 30 examples of its presence, got 9007"):
        client_limits.check_examples(record, 30)
    client_limits.check_examples(record, None)


def test_examples_count_up_to_a_multiple_of_the_median():
    """The liar's registered counts shrink alike; those of others stay."""
    admitted = [_admitted("a", 20), _admitted("b", 40), _admitted("c", 0), _admitted("z", 2**50)]
    counts = np.array([2**49, 2**49, 0], np.int64)
    updates = _updates(*admitted, class_counts=counts)
    believed, limited = client_limits.believed_examples(updates, admitted, 10.0)
    assert [update.num_examples for update in believed] == [20, 40, 0, 400]
    assert list(believed)[3].class_counts.tolist() == [200, 200, 0]
    assert next(iter(believed)).class_counts is counts
    assert [(one.client_id, one.claim, one.limit) for one in limited] == [
        ("z", "num_examples", 400)
    ]


def test_where_nobody_exaggerates_the_updates_are_the_very_same():
    admitted = [_admitted("a", 1), _admitted("b", 10)]
    updates = _updates(*admitted)
    believed, limited = client_limits.believed_examples(updates, admitted, 10.0)
    assert believed is updates
    assert limited == ()


def test_without_a_multiple_any_number_of_examples_counts():
    admitted = [_admitted("a", 20), _admitted("z", 2**50)]
    updates = _updates(*admitted)
    assert client_limits.believed_examples(updates, admitted, 0.0) == (updates, ())


def test_a_state_leaves_room_for_the_updates_of_the_next_round():
    state = {"w": np.full(4, 1.0, np.float32), "known": np.array([2**60])}
    assert client_limits.state_fault(state, 4.0) == ""
    assert "half of limits.update_norm, got 2" in client_limits.state_fault(state, 3.9)
    assert "got inf" in client_limits.state_fault({"w": np.array([np.inf], np.float32)}, 1e6)
    assert "got nan" in client_limits.state_fault({"w": np.array([np.nan], np.float32)}, 1e6)


def test_who_moved_farthest_in_any_group_comes_first():
    admitted = [
        _admitted("a", params=1.0, prototypes=9.0),
        _admitted("b", params=3.0, prototypes=1.0),
        _admitted("c", params=1.0, prototypes=1.0),
    ]
    assert client_limits.by_length(admitted) == ["a", "b", "c"]
