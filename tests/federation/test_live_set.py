from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protofleet.federation.schedules.live_set import LiveSet


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 600).map(str)), max_size=300))
def test_it_is_a_set_that_never_changes(steps):
    live, expected = LiveSet(), frozenset()
    for enters, name in steps:
        before, copy = live, set(live)
        live = live.including(name) if enters else live.excluding(name)
        expected = expected | {name} if enters else expected - {name}
        assert set(before) == copy
        assert live == expected
        assert (len(live), name in live) == (len(expected), enters)
    assert LiveSet(expected) == live
