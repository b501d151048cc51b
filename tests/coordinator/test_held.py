"""Devices that may not take part now, rounds that invite more than they need, and less work."""

from __future__ import annotations

import msgspec
import pytest
from fake_endpoint import CONNECTED, Arrival
from packed import pack_update

from protofleet.coordinator import events
from protofleet.coordinator.status import read_status
from protofleet.federation.records import Costs
from protofleet.federation.schedules.schedule import RoundPhase
from protofleet.federation.settings import CohortSettings, StragglerSettings
from protofleet.wire.events import PeerMessage
from protofleet.wire.transfers.transfer import describe


def test_a_held_device_is_told_of_and_not_invited_until_nothing_holds_it(open_federation):
    fed = open_federation(rounds=1)
    endpoint = fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b", held=("charging", "network")),
        fed.beat("b"),  # a sign of life is no consent
        fed.after(1.5),
    )
    assert (fed.state.phase, endpoint.sent) == (RoundPhase.WAITING, [])
    (told,) = fed.told(events.DeviceHeld, "device_id", "conditions", "live")
    assert told == ("b", ("charging", "network"), 1)
    (event,) = [one for one in fed.events if isinstance(one, events.DeviceHeld)]
    assert event.text == "b is there and may not take part: charging, network (1 live)"
    (hold,) = read_status(fed.plan.config).held
    assert (hold.device_id, hold.conditions) == ("b", ("charging", "network"))
    fed.play(CONNECTED, fed.online("a"), fed.online("b", held=("idle",)), fed.online("b"))
    assert fed.invited() == [("a", 1), ("b", 1)]
    fed.play(CONNECTED, fed.after(1.5))
    assert read_status(fed.plan.config).held == ()


def test_a_member_that_is_held_counts_as_gone_and_its_update_counts_in_time(open_federation):
    fed = open_federation(minimum=3, rounds=2)
    grace = fed.plan.config.liveness.grace_s
    held = fed.online("c", held=("quiet-hours",))
    fed.play(
        CONNECTED,
        *[fed.online(one) for one in "abc"],
        held,
        *[fed.delivers(one) for one in "ab"],
        fed.delivers("c"),
    )
    assert fed.told(events.RoundClosed, "participants") == [(3,)]
    other = open_federation(minimum=3, name="other", rounds=2)
    other.play(
        CONNECTED,
        *[other.online(one) for one in "abc"],
        held,
        *[other.delivers(one) for one in "ab"],
        other.after(grace + 1),
    )
    assert other.told(events.RoundClosed, "participants") == [(2,)]
    assert other.endpoint.published[-1].phase == "waiting"  # c need not go on


def test_a_device_that_refused_and_is_free_again_gets_its_task_once_more(open_federation):
    fed = open_federation()
    fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        fed.refuses("b", "policy"),
        fed.online("b", held=("battery",)),
        fed.online("b"),
        fed.delivers("a"),
    )
    assert fed.invited() == [("a", 1), ("b", 1), ("b", 1)]
    assert fed.state.phase is RoundPhase.OPEN


def test_the_wanted_number_closes_the_round_and_the_rest_hear_of_it(open_federation):
    """Also after a restart between the updates: the ledger keeps what is wanted."""
    cohort = CohortSettings(minimum=4, size=2, over_selection=2.0)
    fed = open_federation(rounds=2, cohort=cohort)
    online = [fed.online(one) for one in "abcd"]
    fed.play(CONNECTED, *online, fed.delivers("a"))
    assert fed.told(events.RoundOpened, "size", "cohort") == [(2, ("a", "b", "c", "d"))]
    assert read_status(fed.plan.config).size == 2
    fed.play(CONNECTED, *online, fed.delivers("c"), fed.delivers("d")[0])
    assert fed.told(events.RoundClosed, "round_id", "participants") == [(1, 2)]
    assert fed.answers() == ["done", "round"]
    assert fed.endpoint.published[-1].round_id == 2


def test_whom_rotation_invites_follows_from_the_ledger(open_federation):
    cohort = CohortSettings(minimum=6, size=2, selection="least_recent")
    changes = {"rounds": 3, "cohort": cohort}

    def rounds(fed, restarts):
        online = [fed.online(one) for one in "abcdef"]
        fed.play(CONNECTED, *online)
        cohorts = [fed.state.cohort]
        for round_id in (1, 2):
            if restarts:
                fed.play(CONNECTED)
            fed.play(CONNECTED, *online, *[fed.delivers(o, round_id) for o in cohorts[-1]])
            cohorts.append(fed.state.cohort)
        return cohorts

    cohorts = rounds(open_federation(**changes), restarts=False)
    assert sorted(sum(cohorts, ())) == list("abcdef")
    assert cohorts == rounds(open_federation(name="again", **changes), restarts=True)


def _took(fed, device_id, seconds, round_id=1, work=msgspec.UNSET):
    """The steps of an update that says how long its training took."""
    update = fed.update(device_id, round_id)
    share = 1.0 if work is msgspec.UNSET else work
    blob = pack_update(update, Costs(phases_s={"train": seconds}), work=share)
    offer = describe(blob, kind="update", device_id=device_id, round_id=round_id)
    return [PeerMessage(device_id, offer), Arrival(device_id, offer, blob)]


def _work(fed):
    return {sent.device_id: sent.task.work for sent in fed.endpoint.sent}


def test_who_was_slow_is_asked_for_less_and_the_same_after_a_restart(open_federation):
    settings = StragglerSettings(budget_s=10.0)
    fed = open_federation(minimum=2, rounds=3, stragglers=settings)
    online = [fed.online("a"), fed.online("b")]
    fed.play(CONNECTED, *online, _took(fed, "a", 40.0), _took(fed, "b", 5.0))
    assert fed.state.round_id == 2
    assert [sent.task.work for sent in fed.endpoint.sent] == [1.0, 1.0, 0.25, 1.0]
    fed.play(CONNECTED, *online)
    assert _work(fed) == {"a": 0.25, "b": 1.0}
    fed.play(CONNECTED, *online, _took(fed, "a", 10.0, 2, 0.25), _took(fed, "b", 20.0, 2))
    assert _work(fed) == {"a": 0.25, "b": 0.5}


@pytest.mark.parametrize("budget", [None, 10.0])
def test_who_missed_a_round_is_asked_for_half_where_there_is_a_budget(open_federation, budget):
    fed = open_federation(
        rounds=2,
        cohort=CohortSettings(minimum=2, size=1, over_selection=2.0),
        stragglers=StragglerSettings(budget_s=budget),
    )
    fed.play(CONNECTED, fed.online("a"), fed.online("b"), _took(fed, "a", 5.0))
    assert _work(fed) == {"a": 1.0, "b": 1.0 if budget is None else 0.5}
