"""Weeks in virtual time: who takes part, what it costs, and the bits of the same run elsewhere."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pytest
from rehearsed import HOST, regrouped

import protofleet
from protofleet.datasets import load_device_data
from protofleet.edge.owner.policy import Policy
from protofleet.errors import InputError
from protofleet.experiments.processes import processes
from protofleet.federation.schedules.schedule_settings import ScheduleSettings
from protofleet.federation.settings import CohortSettings, RoundSettings, load_config
from protofleet.firmware_sim.world.habits import Habits, Window
from protofleet.firmware_sim.world.hardware import HARDWARE
from protofleet.rehearsal.fleet_file import DeviceGroup
from protofleet.rehearsal.run import Rehearsal, varied
from protofleet.rehearsal.text import answer_lines

pytestmark = pytest.mark.slow(seconds=3)


@pytest.fixture(scope="module")
def opened():
    with processes(1) as workers:
        yield workers


@pytest.fixture
def rehearse(opened, fleet, tmp_path):
    """A rehearsal's answer, for changes of the fleet's and the federation's files."""

    def answer(*groups, trains=True, seed=0, told=lambda _label, _round: None, file=(), **config):
        changed = regrouped(fleet, *groups, **dict(file))
        federation = msgspec.structs.replace(load_config(fleet.federation), **config)
        rehearsal = Rehearsal(
            file=changed, opened=opened, folder=tmp_path / "states", trains=trains, host=HOST
        )
        return rehearsal.answer(federation, "", seed, told)

    return answer


def test_devices_that_are_always_there_give_the_bits_of_the_same_run_without_a_clock(
    rehearse, study
):
    records = []
    found = rehearse(told=lambda _, done: records.append(done.record))
    clients = {f"board-{n + 1}": study / "data" / f"owner-{n}.npz" for n in range(4)}
    same = protofleet.Federation(
        study / "bundle.pfb", clients, rounds=3, seed=5, folder=study / "same"
    ).run()
    assert [one.scores for one in records] == [
        msgspec.structs.replace(one.scores, generalisation=None, global_=None)
        for one in same.rounds
    ]
    assert [one.update_norms for one in records] == [one.update_norms for one in same.rounds]
    assert found.outcome.since_start == same.outcome.since_start
    assert found.finished


def test_the_same_seed_gives_the_same_answer_and_another_one_other_days(rehearse):
    phones = DeviceGroup(
        name="phone",
        count=4,
        hardware="phone-low",
        habits="phone",
        policy=Policy(only_charging=True),
    )
    answers = [rehearse(phones, seed=seed, file={"days": 3.0}) for seed in (0, 0, 1)]
    assert answers[0] == answers[1]
    assert answers[0].rounds != answers[2].rounds


def test_a_round_lasts_as_long_as_its_slowest_device(rehearse):
    """Forty examples of 0.1 s: four seconds on a Pi 4, by its speed more on a Pi 3."""
    slow = 1 / HARDWARE["pi-3"].speed.likely
    found = rehearse(
        DeviceGroup(name="fast", count=2, hardware="pi-4", network="ethernet"),
        DeviceGroup(name="slow", count=2, hardware="pi-3", network="ethernet"),
    )
    lasted = [86_400 * (one.closed_d - one.opened_d) for one in found.rounds]
    assert lasted == pytest.approx([4 * slow + 2 * 0.08] * 3, rel=0.01)
    fast, other = found.groups
    assert fast.round_s.likely == pytest.approx(4.0)
    assert other.round_s.likely == pytest.approx(4 * slow)
    assert fast.rounds_a_week == other.rounds_a_week
    assert (fast.battery_percent, fast.never) == (None, 0)


def test_energy_and_bytes_a_day_are_those_of_the_rounds(rehearse):
    records = []
    found = rehearse(told=lambda _, done: records.append(done.record))
    (group,) = found.groups
    watts = HARDWARE["pi-4"].train_w.likely
    assert group.train_s * found.days == pytest.approx(3 * 4.0)
    assert group.joules * found.days == pytest.approx(3 * 4.0 * watts)
    assert group.connected_joules == 0  # a cable
    # Scores in an update are some digits longer than in those of the first round; messages are
    # beside it, and heartbeats while it trains.
    up = sum(one.bytes_up for one in records) / 4 + 3 * 880 + 12 * 3.3
    down = sum(one.bytes_down for one in records) / 4 + 3 * 1600 + 12 * 2.3
    assert group.up_bytes * found.days == pytest.approx(up, rel=0.03)
    assert group.down_bytes * found.days == pytest.approx(down, rel=0.001)


def test_a_phone_that_stays_connected_by_a_cellular_network_is_told_what_that_takes(rehearse):
    phones = {"name": "phone", "count": 4, "hardware": "phone-low", "network": "cellular"}
    found = rehearse(DeviceGroup(**phones))
    assert found.groups[0].connected_percent > 20
    assert "staying connected alone takes" in "\n".join(answer_lines(found))
    at_home = rehearse(DeviceGroup(**{**phones, "network": "home-wifi"}), trains=False)
    assert at_home.groups[0].connected_percent < 1


def test_who_charges_at_night_alone_takes_part_at_night_alone(rehearse):
    nightly = Habits(charging=(Window(at="23:00", hours=6.0),))
    found = rehearse(
        DeviceGroup(
            name="phone",
            count=4,
            hardware="phone-low",
            habits="nightly",
            policy=Policy(only_charging=True),
        ),
        file={"habits": {"nightly": nightly}, "days": 2.0},
    )
    (first, *_) = found.rounds
    assert first.opened_d == pytest.approx(15 / 24)  # from eight in the morning


def test_rounds_follow_each_other_at_their_pace(rehearse):
    found = rehearse(round=RoundSettings(every_s=3600.0))
    assert [24 * one.opened_d for one in found.rounds] == pytest.approx([0, 1, 2], abs=0.001)


def test_a_device_that_leaves_in_a_round_is_not_waited_for_beyond_the_deadline(rehearse):
    offline = Habits(off=(Window(at="08:00", hours=20.0),))
    found = rehearse(
        DeviceGroup(name="board", count=3, hardware="pi-4", network="ethernet"),
        DeviceGroup(name="gone", count=1, hardware="pi-4", network="ethernet", habits="gone"),
        file={"habits": {"gone": offline}},
        cohort=CohortSettings(minimum=3),
    )
    assert found.finished
    assert [one.counted for one in found.rounds] == [3, 3, 3]
    assert found.groups[1].never == 1


def test_devices_that_are_slower_than_the_deadline_never_count_and_that_is_told(rehearse):
    """A Pi 3 takes ten seconds; the round closes after six, and the next task takes its place."""
    found = rehearse(
        DeviceGroup(name="fast", count=2, hardware="pi-4", network="ethernet"),
        DeviceGroup(name="slow", count=2, hardware="pi-3", network="ethernet"),
        round=RoundSettings(deadline_s=6.0, quorum=0.5),
    )
    assert [one.counted for one in found.rounds] == [2, 2, 2]
    assert found.groups[1].never == 2
    assert found.groups[1].abandoned * found.days / 7 == pytest.approx(2)
    assert "slow: a device gives up" in "\n".join(answer_lines(found))


def test_who_finishes_behind_its_round_is_told_as_late_and_goes_on_from_there(rehearse):
    """Two of four are invited in turn: a slow one finishes while the others have their round."""
    found = rehearse(
        DeviceGroup(name="fast", count=2, hardware="pi-4", network="ethernet"),
        DeviceGroup(name="slow", count=2, hardware="pi-3", network="ethernet"),
        rounds=6,
        cohort=CohortSettings(size=2, minimum=4, selection="least_recent"),
        round=RoundSettings(deadline_s=6.0, quorum=1),
    )
    assert found.finished
    assert found.late_updates > 0
    assert found.groups[0].never == 0


def test_below_the_quorum_the_round_goes_on_until_the_slow_have_come(rehearse):
    found = rehearse(
        DeviceGroup(name="fast", count=1, hardware="pi-4", network="ethernet"),
        DeviceGroup(name="slow", count=3, hardware="pi-3", network="ethernet"),
        round=RoundSettings(deadline_s=6.0, quorum=0.5),
    )
    assert all(one.extended == 1 for one in found.rounds)
    assert all(one.counted >= 2 for one in found.rounds)


def test_without_training_the_same_devices_take_part(rehearse):
    kinds = (
        DeviceGroup(name="phone", count=3, hardware="phone-low", habits="phone"),
        DeviceGroup(name="board", count=3, hardware="pi-3"),
    )
    trained, counted = (
        rehearse(*kinds, trains=trains, file={"days": 2.0}) for trains in (True, False)
    )
    assert counted.outcome is None
    assert [one.counted for one in counted.rounds] == [one.counted for one in trained.rounds]
    assert [one.closed_d for one in counted.rounds] == pytest.approx(
        [one.closed_d for one in trained.rounds]
    )


def test_days_until_a_score_is_good_enough(rehearse):
    found = rehearse(file={"target": 0.01})
    assert found.target_d == found.rounds[0].closed_d
    assert rehearse(file={"target": 1.1}).target_d is None


def test_settings_are_varied_by_their_keys(fleet):
    config = load_config(fleet.federation)
    other = varied(config, [("codec.up", "int8"), ("strategy.settings.epochs", 3)])
    assert (other.codec.up, other.strategy.settings) == ("int8", {"epochs": 3})
    assert msgspec.structs.replace(other, codec=config.codec, strategy=config.strategy) == config


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([("codec.up", "int9")], "`up`: expected one of"),
        ([("codec.upp", "int8")], "upp"),
        ([("nothing.up", "int8")], "'nothing' is no table"),
        ([("rounds", 0)], "`rounds`: expected 1"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_their_keys(fleet, settings, said):
    with pytest.raises(InputError, match=said):
        varied(load_config(fleet.federation), settings)


def test_schedules_that_a_rehearsal_lacks_are_refused_with_the_remedy(rehearse):
    with pytest.raises(InputError, match=r"rounds of one coordinator.*fleet run"):
        rehearse(schedule=ScheduleSettings(kind="buffered", buffer=2))


def test_a_fleet_that_this_machine_cannot_hold_is_refused_before_it_starts(rehearse, monkeypatch):
    told = os.sysconf
    monkeypatch.setattr("os.sysconf", lambda name: 1 if name == "SC_AVPHYS_PAGES" else told(name))
    with pytest.raises(InputError, match=r"12 devices keep about .* rehearse \d+ of them.*--no-tr"):
        rehearse(DeviceGroup(name="board", count=12, hardware="pi-4"))
    assert rehearse(DeviceGroup(name="board", count=12, hardware="pi-4"), trains=False).rounds


@contextmanager
def _nothing(*_arguments):
    raise AssertionError("nobody is to train")
    yield


@pytest.mark.parametrize("damage", ["classes", "bytes"])
def test_an_owners_file_that_does_not_fit_is_named_before_anybody_trains(
    fleet, study, tmp_path, damage
):
    path = study / "data" / "owner-2.npz"
    if damage == "bytes":
        path.write_bytes(path.read_bytes()[:500])
    else:
        data = load_device_data(path)
        replace(data, classes=("a", "b", "c")).save(path)
    rehearsal = Rehearsal(file=fleet, opened=_nothing, folder=tmp_path, host=HOST)
    with pytest.raises(InputError, match=r"owner-2\.npz"):
        rehearsal.answer(load_config(fleet.federation), "", 0, lambda *_: None)


def test_a_folder_without_data_is_told(fleet, tmp_path):
    empty = msgspec.structs.replace(fleet, data=tmp_path / "nowhere")
    rehearsal = Rehearsal(file=empty, opened=_nothing, folder=tmp_path, host=HOST)
    with pytest.raises(InputError, match=r"expected a folder with an \.npz for each owner"):
        rehearsal.answer(load_config(fleet.federation), "", 0, lambda *_: None)


def test_owners_come_late_and_leave_for_good(rehearse, fleet):
    day, rounds = 86_400.0, []
    early = DeviceGroup(name="early", count=4, hardware="pi-4", leaves_d=(1.0, 1.25))
    late = DeviceGroup(name="late", count=2, hardware="pi-4", joins_d=(0.5, 0.75))
    found = rehearse(
        early,
        late,
        told=lambda _, done: rounds.append(done),
        file={"days": 2.0},
        rounds=30,
        cohort=CohortSettings(minimum=2),
        round=RoundSettings(deadline_s=600.0, every_s=7200.0),
    )
    assert found.groups[0].never == found.groups[1].never == 0
    for done in rounds:
        since = (done.opened_s - fleet.start_s) / day
        there = {name.partition("-")[0] for name in done.invited}
        assert ("late" in there) or since < 0.75
        assert ("late" not in there) or since >= 0.5
        assert ("early" not in there) or since <= 1.25
        assert ("early" in there) or since >= 1.0
    assert (rounds[-1].opened_s - fleet.start_s) / day > 1.25


def test_owners_who_label_badly_train_on_copies(rehearse, fleet):
    def group(share):
        return DeviceGroup(
            name="board", count=4, hardware="pi-4", network="ethernet", wrong_labels=share
        )

    before = {path.name: path.read_bytes() for path in fleet.data.glob("*.npz")}
    right, wrong = rehearse(group(0.0), rounds=8), rehearse(group(1.0), rounds=8)
    assert wrong.final_score < right.final_score - 0.2
    assert {path.name: path.read_bytes() for path in fleet.data.glob("*.npz")} == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"joins_d": (3.0, 1.0)}, r"joins_d: expected days that ascend from 0, got \[3.0, 1.0\]"),
        ({"leaves_d": (-1.0, 1.0)}, "leaves_d: expected days that ascend from 0"),
        ({"wrong_labels": 1.5}, "wrong_labels: expected 0 to 1, got 1.5"),
    ],
)
def test_owners_that_cannot_be_are_refused(fields, said):
    with pytest.raises(InputError, match=said):
        DeviceGroup(name="a", count=1, hardware="pi-4", **fields)
