"""An owner's days."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from protofleet.errors import InputError
from protofleet.firmware_sim.world.habits import (
    DAY_S,
    HABITS,
    HOUR_S,
    Condition,
    Habits,
    Window,
    changes,
)


def test_a_window_is_drawn_for_each_day_and_what_began_yesterday_is_there_at_midnight():
    night = Habits(charging=(Window(at="22:00", hours=9.0),))
    found = [(one.at_s / HOUR_S, one.begins) for one in changes(night, 2, (0,))]
    assert found == [(0, True), (7, False), (22, True), (31, False), (46, True), (55, False)]


@pytest.mark.parametrize("name", sorted(HABITS))
def test_the_same_owner_lives_the_same_days_and_all_that_begins_ends(name):
    found = list(changes(HABITS[name], 28, (3, 7)))
    assert found == list(changes(HABITS[name], 28, (3, 7)))
    assert found == sorted(found)
    open_now = Counter()
    for one in found:
        open_now[one.condition] += 1 if one.begins else -1
        assert open_now[one.condition] >= 0
    assert not +open_now


def test_owners_differ_more_than_their_days_do():
    window = Window(at="12:00", hours=1.0, sd_minutes=30)
    starts = np.array(
        [
            [
                one.at_s % DAY_S
                for one in changes(Habits(busy=(window,)), 60, (owner,))
                if one.begins and one.at_s
            ][:50]
            for owner in range(40)
        ]
    )
    within = starts.std(axis=1).mean() / 60
    between = starts.mean(axis=1).std() / 60
    assert within == pytest.approx(15, rel=0.15)
    assert between == pytest.approx(30, rel=0.3)


def test_a_share_of_the_days():
    window = Window(at="12:00", hours=1.0, share=0.25)
    begun = [one for one in changes(Habits(off=(window,)), 400, (1,)) if one.begins]
    assert 70 < len(begun) < 130
    assert {one.condition for one in begun} == {Condition.OFF}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"at": "24:00", "hours": 1.0}, "at: expected a time"),
        ({"at": "8:00", "hours": 1.0}, "at: expected a time"),
        ({"at": "08:00", "hours": 0.0}, "hours: expected"),
        ({"at": "08:00", "hours": 25.0}, "hours: expected"),
        ({"at": "08:00", "hours": 1.0, "share": 1.5}, "share: expected"),
        ({"at": "08:00", "hours": 1.0, "sd_minutes": -1.0}, "sd_minutes: expected"),
    ],
)
def test_a_window_that_cannot_be_is_refused_by_its_key(fields, said):
    with pytest.raises(InputError, match=said):
        Window(**fields)
