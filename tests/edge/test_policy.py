"""When a device may take part: settings, and the decision from what is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.edge.owner.policy import (
    MB,
    Moment,
    Platform,
    Policy,
    read_policy,
    unmet_conditions,
    untold,
)
from protofleet.errors import InputError


def _unmet(policy, platform=None, **moment):
    found = unmet_conditions(Policy(**policy), Platform(**(platform or {})), Moment(**moment))
    return [one.condition for one in found]


@pytest.mark.parametrize(
    ("policy", "platform", "unmet"),
    [
        ({}, {"charging": False, "unmetered": False, "idle": False}, []),
        ({"only_charging": True}, {"charging": True}, []),
        ({"only_charging": True}, {"charging": False}, ["charging"]),
        ({"only_unmetered": True}, {"unmetered": False}, ["network"]),
        ({"only_idle": True}, {"idle": False}, ["idle"]),
        ({"least_battery_percent": 30}, {"battery_percent": 30.0}, []),
        ({"least_battery_percent": 30}, {"battery_percent": 29.5}, ["battery"]),
        ({"most_temperature_c": 45}, {"temperature_c": 45.0}, []),
        ({"most_temperature_c": 45}, {"temperature_c": 45.1}, ["temperature"]),
        (
            {"only_charging": True, "only_idle": True, "most_temperature_c": 45},
            {"charging": False, "idle": False, "temperature_c": 80.0},
            ["charging", "temperature", "idle"],
        ),
    ],
)
def test_a_condition_that_is_asked_for_and_not_met_holds(policy, platform, unmet):
    assert _unmet(policy, platform) == unmet


def test_what_is_not_told_is_allowed_unless_the_policy_forbids_it():
    asked = {"only_charging": True, "only_unmetered": True, "least_battery_percent": 1}
    assert untold(Policy(**asked), Platform(unmetered=True)) == ("battery", "charging")
    assert _unmet(asked, {"unmetered": True}) == []
    assert _unmet({**asked, "unknown": "forbid"}, {"unmetered": True}) == ["charging", "battery"]


@pytest.mark.parametrize(
    ("hours", "minute", "held"),
    [
        ("22:00-07:00", 21 * 60 + 59, False),
        ("22:00-07:00", 22 * 60, True),
        ("22:00-07:00", 0, True),
        ("22:00-07:00", 7 * 60 - 1, True),
        ("22:00-07:00", 7 * 60, False),
        ("12:30-13:00", 12 * 60 + 29, False),
        ("12:30-13:00", 12 * 60 + 30, True),
        ("12:30-13:00", 13 * 60, False),
        ("00:00-23:59", 23 * 60 + 59, False),
    ],
)
def test_quiet_hours_begin_and_end_to_the_minute_also_over_midnight(hours, minute, held):
    assert _unmet({"quiet_hours": (hours,)}, minute=minute) == ["quiet-hours"] * held


def test_data_are_kept_for_a_whole_round():
    policy = {"data_per_day_mb": 10.0, "data_per_month_mb": 100.0}
    assert _unmet(policy, day_bytes=8 * MB, month_bytes=9 * MB, round_bytes=2 * MB) == []
    assert _unmet(policy, day_bytes=8 * MB, round_bytes=2 * MB + 1) == ["data-per-day"]
    assert _unmet(policy, month_bytes=100 * MB) == ["data-per-month"]
    (told,) = unmet_conditions(
        Policy(**policy), Platform(), Moment(day_bytes=9_500_000, round_bytes=MB)
    )
    assert told.reason == "9.5 of 10 MB are used today, a round takes 1.0 MB"


def test_a_reason_says_what_is_and_what_is_asked_for():
    policy = Policy(least_battery_percent=30, only_idle=True, unknown="forbid")
    found = unmet_conditions(policy, Platform(battery_percent=12.0), Moment())
    assert [one.reason for one in found] == [
        "battery at 12 %, at least 30 % are asked for",
        "the platform does not tell 'idle', which is asked for",
    ]


_maybe = st.none() | st.booleans()
_number = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.builds(
        Platform,
        charging=_maybe,
        unmetered=_maybe,
        idle=_maybe,
        battery_percent=_number,
        temperature_c=_number,
    )
)
def test_whatever_is_told_nothing_holds_that_is_not_asked_for(platform):
    assert unmet_conditions(Policy(), platform, Moment()) == ()
    asked = Policy(only_idle=True, most_temperature_c=40)
    assert {one.condition for one in unmet_conditions(asked, platform, Moment())} <= asked.asked


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("only_chargin = true", "unknown key `only_chargin`; known are .*only_charging"),
        ("only_charging = 1", "`only_charging`: expected true or false"),
        ("least_battery_percent = 101", "`least_battery_percent`: expected 0 to 100"),
        ("most_temperature_c = nan", "`most_temperature_c`: expected -40 to 150"),
        ("data_per_day_mb = -1", "`data_per_day_mb`: expected megabytes from 0"),
        ("quiet_hours = ['22-7']", "`quiet_hours`: expected hours as 22:00-07:00, got '22-7'"),
        ("quiet_hours = ['24:00-07:00']", "`quiet_hours`: expected hours as"),
        ("quiet_hours = ['07:00-07:00']", "`quiet_hours`: expected two different times"),
        ("unknown = 'perhaps'", "`unknown`: expected one of allow, forbid, got 'perhaps'"),
        ("use = 'both'", "`use`: expected one of auto, bundle, head, personal, got 'both'"),
        ("only_charging =", "policy.toml"),
    ],
)
def test_a_policy_that_cannot_be_one_is_refused_by_name(tmp_path, text, named):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=named) as caught:
        read_policy(path, {})
    assert str(path) in str(caught.value)


def test_the_command_line_holds_in_place_of_the_file(tmp_path):
    path = tmp_path / "policy.toml"
    assert read_policy(path, {"only_idle": True}) == Policy(only_idle=True)
    path.write_text("only_charging = true\nleast_battery_percent = 50\n")
    assert read_policy(path, {"least_battery_percent": 20.0}) == Policy(
        only_charging=True, least_battery_percent=20.0
    )
