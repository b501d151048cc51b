"""The service: what comes from devices and with time, and what is sent, kept and reported."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from altered import altered
from click.testing import CliRunner
from fake_endpoint import (
    CONNECTED,
    QUIET,
    FakeCoordinatorEndpoint,
    ScriptEndError,
)

from protofleet.cli.coordinator import coordinator
from protofleet.cli.report import report
from protofleet.coordinator import events
from protofleet.coordinator.ledger.control import Orders
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.status import read_status
from protofleet.doctor.observations import Level
from protofleet.doctor.run_folder import examine_results
from protofleet.doctor.subjects import RunSubject
from protofleet.errors import UnavailableError
from protofleet.federation.coding import decode_payload, initial_tensors
from protofleet.federation.records import RunRecord, load_record
from protofleet.federation.schedules.early_stopping import StopSettings
from protofleet.federation.schedules.schedule import RoundPhase, RoundState
from protofleet.federation.schedules.synchronous import draw
from protofleet.federation.settings import CodecSettings, CohortSettings, RoundSettings
from protofleet.hub.dashboard.reading import RunReader
from protofleet.strategies.types import Evaluation, ServerState
from protofleet.tensors import blobs
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.mqtt.link import Disconnected, Hindered
from protofleet.wire.mqtt.usage import DeviceUsage
from protofleet.wire.transfers.transfer import Rejected

_LOST = Disconnected("broker gone")


def _bits(state: ServerState):
    return state.round_id, {name: value.tobytes() for name, value in state.tensors.items()}


def _tags(found):
    return [type(event).__struct_config__.tag for event in found]


def test_a_round_goes_from_presence_to_commit_and_farewell(open_federation):
    """Updates come in another order than they are aggregated in."""
    fed = open_federation()
    plan = fed.plan
    endpoint = fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        fed.delivers("b"),
        fed.delivers("a"),
        fed.gone("a", "left"),
        fed.gone("b", "left"),
    )
    assert [(one.phase, one.round_id) for one in endpoint.published] == [
        ("waiting", 1),
        ("training", 1),
        ("finished", 1),
    ]
    assert fed.invited() == [("a", 1), ("b", 1)]
    start = plan.server_init()
    sent = endpoint.sent[0]
    assert sent.blob == blobs.encode(plan.strategy.downlink(start, "a").tensors)
    assert (sent.task.strategy, sent.task.settings) == ("fedavg", plan.settings)
    assert (sent.task.seed, sent.task.deadline_s, sent.task.final) == (0, 600.0, False)
    assert fed.answers() == ["done", "done"]
    # The receipts stay: a device may ask for them again.
    assert set(endpoint.cancelled) == {sent.offer.transfer_id for sent in endpoint.sent}
    updates = [fed.update("a"), fed.update("b")]
    expected = plan.strategy.aggregate(start, updates, fed.server.tools(1))
    assert _bits(fed.server_state) == _bits(expected)
    assert set(endpoint.finished) == {"a", "b"}
    assert endpoint.closed
    assert _tags(fed.events) == [
        "started",
        "connected",
        "waiting",
        "device_online",
        "waiting",
        "device_online",
        "round_opened",
        "update_received",
        "update_received",
        "round_closed",
        "device_offline",
        "device_offline",
        "finished",
    ]


def test_the_last_state_is_left_as_a_file_that_says_what_it_is(open_federation):
    fed = open_federation(minimum=1)
    fed.play(CONNECTED, fed.online("a"), fed.delivers("a"), fed.gone("a", "left"))
    path = fed.plan.config.run_dir / "global.safetensors"
    tensors, metadata = blobs.decode(path.read_bytes(), max_bytes=1 << 20)
    assert metadata == {"strategy": "fedavg", "round_id": "1", "content": "model"}
    np.testing.assert_array_equal(tensors["w"], fed.update("a").tensors["params/w"])
    assert fed.finished.rounds == 1


@pytest.mark.parametrize(
    ("device_id", "round_id", "kind", "rule"),
    [
        ("a", 2, "update", "round"),
        ("a", 0, "update", "round"),
        ("a", 1, "payload", "kind"),
        ("x", 1, "update", "cohort"),
    ],
)
def test_an_offer_that_nobody_waits_for_is_rejected_by_its_rule(
    open_federation, device_id, round_id, kind, rule
):
    fed = open_federation()
    _, offer = fed.offered(fed.update(device_id), round_id=round_id, kind=kind)
    endpoint = fed.play(CONNECTED, fed.online("a"), fed.online("b"), PeerMessage(device_id, offer))
    assert (endpoint.expected, fed.answers()) == ([], [rule])
    assert fed.told(events.UpdateRejected, "device_id", "round_id") == [(device_id, round_id)]
    assert (fed.state.phase, fed.state.delivered) == (RoundPhase.OPEN, frozenset())


def test_a_second_update_of_a_round_that_was_on_its_way_is_rejected(open_federation):
    """It was welcome when it was offered, and the first one was accepted meanwhile."""
    fed = open_federation()
    other = fed.delivers("a", update=replace(fed.update("a"), num_examples=1))
    first = fed.delivers("a")
    fed.play(CONNECTED, fed.online("a"), fed.online("b"), other[0], first[0], first[1], other[1])
    assert fed.answers() == ["done", "cohort"]
    assert fed.state.delivered == {"a"}


def test_of_two_updates_of_a_device_that_arrive_together_the_first_counts(
    open_federation, monkeypatch
):
    """While both would wait to be made durable with those of others."""
    monkeypatch.setattr("protofleet.coordinator.arrivals.GATHER_S", 60.0)
    fed = open_federation(minimum=3)
    other = fed.delivers("a", update=replace(fed.update("a"), num_examples=1))
    first = fed.delivers("a")
    fed.play(
        CONNECTED,
        *(fed.online(one) for one in "abc"),
        *(other[0], first[0], first[1], other[1]),
        *fed.delivers("b"),
        *fed.delivers("c"),
        *(fed.gone(one, "left") for one in "abc"),
    )
    assert fed.answers() == ["done", "cohort", "done", "done"]
    updates = [fed.update(one) for one in "abc"]
    expected = fed.plan.strategy.aggregate(fed.plan.server_init(), updates, fed.server.tools(1))
    assert _bits(fed.server_state) == _bits(expected)


def test_a_loss_that_does_not_fall_is_told_while_it_can_be_mended(open_federation):
    """After the third round, once, though the process was killed after the second and fourth."""
    fed = open_federation(minimum=1, rounds=9)

    def round_of(round_id):
        update = replace(fed.update("a", round_id), evaluation=Evaluation(own_loss=2.3))
        return fed.delivers("a", round_id, update)

    for rounds in ((1, 2), (3, 4), (5, 6)):
        fed.play(CONNECTED, fed.online("a"), *(round_of(one) for one in rounds))
    told = [one.name for one in fed.events if one.name in ("round_closed", "results_trouble")]
    assert told == [*["round_closed"] * 3, "results_trouble", *["round_closed"] * 3]
    (found,) = examine_results(RunSubject(fed.folder))
    assert (found.level, found.text[:34]) == (Level.WARNING, "the mean loss on own test parts do")


def _scored(fed, device_id, round_id, loss):
    update = fed.update(device_id, round_id)
    return fed.delivers(device_id, round_id, replace(update, evaluation=Evaluation(own_loss=loss)))


def test_a_run_whose_rounds_bring_nothing_ends_and_goes_on_when_that_is_wanted(open_federation):
    """Killed at every step of the way: the same end, told each time, until the file says more."""
    fed = open_federation(minimum=1, rounds=9, stop=StopSettings(patience=2))
    fed.play(CONNECTED, fed.online("a"), _scored(fed, "a", 1, 1.0), _scored(fed, "a", 2, 1.0))
    assert fed.finished is None
    fed.play(CONNECTED, fed.online("a"), _scored(fed, "a", 3, 1.0), fed.gone("a"))
    assert fed.finished.rounds == 3
    (told,) = fed.told(events.EndedEarly, "after", "planned", "why")
    assert told == (3, 9, "patience")
    record = load_record(fed.folder / "result.json", RunRecord)
    assert (len(record.rounds), record.early_end.since) == (3, 1)

    fed.finished = None
    fed.play(CONNECTED, fed.after(10.0))
    assert fed.finished.rounds == 3
    assert fed.told(events.EndedEarly, "after")[1:] == [(3,)]

    more = msgspec.structs.replace(fed.plan.config, stop=StopSettings(patience=1))
    fed.with_config(more)
    fed.finished = None
    fed.play(CONNECTED, fed.online("a"), _scored(fed, "a", 4, 1.0))
    assert (fed.finished, fed.state.round_id) == (None, 5)  # a first round brings something
    fed.play(CONNECTED, fed.online("a"), _scored(fed, "a", 5, 1.0), fed.gone("a"))
    assert fed.finished.rounds == 5


def test_a_run_rests_looks_again_and_goes_on_when_the_loss_has_come_back(open_federation):
    """Killed before each look; a loss as before lets it rest again."""
    fed = open_federation(minimum=1, rounds=20, stop=StopSettings(patience=2, rest_s=3600.0))
    rounds = [_scored(fed, "a", number, 1.0) for number in (1, 2, 3)]
    fed.play(CONNECTED, fed.online("a"), *rounds, fed.after(3000.0))
    assert (fed.state.phase, fed.state.round_id) == (RoundPhase.WAITING, 4)
    (text,) = [one.text for one in fed.events if isinstance(one, events.EndedEarly)]
    assert text.endswith("2 rounds have brought nothing since round 1; looks again every 1 h 0 min")
    assert read_status(fed.plan.config).operation != "finished"
    assert read_status(fed.plan.config).early_end == text
    shown = RunReader("home", fed.folder, rounds=20).read()
    assert (shown.rounds, shown.early_end, shown.operation) == (20, text, "down")
    look = _scored(fed, "a", 4, 1.05)
    fed.play(CONNECTED, fed.online("a"), fed.after(100.0), fed.after(600.0), *look, QUIET)
    assert (fed.state.phase, fed.state.round_id) == (RoundPhase.WAITING, 5)
    fed.play(CONNECTED, fed.online("a"), fed.after(3700.0), *_scored(fed, "a", 5, 1.2), QUIET)
    what = "the mean loss on own test parts has gone from 1 to 1.2"
    assert fed.told(events.Drifted, "round_id", "what") == [(5, what)]
    assert (fed.state.phase, fed.state.round_id) == (RoundPhase.OPEN, 6)
    fed.play(CONNECTED, fed.online("a"), *_scored(fed, "a", 6, 1.2), QUIET)
    assert (fed.state.phase, fed.state.round_id) == (RoundPhase.OPEN, 7)
    assert fed.finished is None


def test_an_ended_run_goes_on_when_more_rounds_are_ordered(open_federation):
    """Than it was to have: the order that it was under does not undo its end."""
    fed = open_federation(minimum=1, rounds=9, stop=StopSettings(patience=1))
    rounds = (_scored(fed, "a", 1, 1.0), _scored(fed, "a", 2, 1.0))
    fed.play(CONNECTED, fed.online("a"), *rounds, fed.gone("a"))
    assert (fed.finished.rounds, read_status(fed.plan.config).phase) == (2, "finished")
    status = read_status(fed.plan.config)
    assert (status.rounds, status.planned) == (2, 9)
    assert status.early_end.startswith("ended after round 2 of 9: 1 round has brought nothing")
    for ordered, round_id in ((9, 3), (10, 3)):
        with closing(Orders(fed.plan.config.run_dir)) as orders:
            orders.extend(ordered)
        fed.play(CONNECTED, fed.online("a"), QUIET, fed.after(10.0))
        ended = ordered == 9
        assert fed.state.round_id == round_id
        assert (fed.state.phase is RoundPhase.WAITING) == ended
    assert read_status(fed.plan.config).early_end == ""
    rounds = (_scored(fed, "a", 3, 1.0), _scored(fed, "a", 4, 1.0))
    fed.play(CONNECTED, fed.online("a"), *rounds, fed.gone("a"))
    assert fed.finished.rounds == 4


def test_a_device_whose_update_breaks_a_rule_is_not_awaited(open_federation):
    """The round goes on with the others, at once."""
    fed = open_federation()
    broken = fed.update("a")
    broken.tensors["params/b"][1] = np.nan
    fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        fed.delivers("a", update=broken),
        fed.delivers("b"),
        fed.gone("a"),
        fed.gone("b"),
    )
    assert fed.answers() == ["finite", "done"]
    expected = fed.plan.strategy.aggregate(
        fed.plan.server_init(), [fed.update("b")], fed.server.tools(1)
    )
    assert _bits(fed.server_state) == _bits(expected)
    assert fed.told(events.RoundClosed, "participants") == [(1,)]


_ALL = RoundSettings(quorum=1.0)


def _moved(fed, device_id, by, **claims):
    """An update that differs from its payload by so much in each number of the bias, (3,)."""
    payload = fed.server.plan.server_init().tensors
    names = fed.server.expected.uplink.required
    tensors = {name: payload[name] + np.float32(by * (name == "params/b")) for name in names}
    return replace(fed.update(device_id), tensors=tensors, **claims)


def test_a_member_that_is_refused_is_not_needed_for_a_quorum_of_all(open_federation):
    """Nor when it shows itself again: it would break the next rule, for ever."""
    fed = open_federation(minimum=3, round=_ALL)
    broken = fed.update("a")
    broken.tensors["params/b"][1] = np.nan
    fed.play(
        CONNECTED,
        [fed.online(name) for name in "abc"],
        fed.delivers("a", update=broken),
        fed.online("a", boot_id="2"),
        fed.delivers("b"),
        fed.delivers("c"),
        [fed.gone(name) for name in "abc"],
    )
    assert fed.told(events.RoundClosed, "participants") == [(2,)]
    assert fed.invited() == [("a", 1), ("b", 1), ("c", 1)]


def test_a_liar_s_examples_count_up_to_ten_times_the_median_and_it_is_told(open_federation):
    fed = open_federation(minimum=3, round=_ALL)
    most = 2**53 - 1
    fed.play(
        CONNECTED,
        [fed.online(name, num_examples=most) for name in "abc"],
        *[fed.delivers(name, update=_moved(fed, name, 1.0, num_examples=8)) for name in "ab"],
        fed.delivers("c", update=_moved(fed, "c", 2.0, num_examples=most)),
        [fed.gone(name) for name in "abc"],
    )
    bias = fed.server_state.tensors["params/b"] - fed.plan.server_init().tensors["params/b"]
    np.testing.assert_allclose(bias, (2 * 8 * 1.0 + 80 * 2.0) / 96, rtol=1e-6)
    assert fed.told(events.ClaimLimited, "device_id", "claim", "stated", "limit") == [
        ("c", "num_examples", most, 80)
    ]


def test_more_examples_than_its_presence_says_are_refused(open_federation):
    fed = open_federation(minimum=1)
    boast = replace(fed.update("a"), num_examples=98)
    fed.play(CONNECTED, fed.online("a", num_examples=97), fed.delivers("a", update=boast))
    assert fed.answers() == ["num-examples"]


def test_a_state_that_no_update_could_follow_is_made_without_who_moved_farthest(open_federation):
    """Two of three lie alike, so that their median is a lie; ``update_norm`` allows it."""
    fed = open_federation(minimum=3, round=_ALL)
    far = 5.5e5
    fed.play(
        CONNECTED,
        [fed.online(name) for name in "abc"],
        fed.delivers("a", update=_moved(fed, "a", 0.5)),
        *[fed.delivers(name, update=_moved(fed, name, far)) for name in "bc"],
        [fed.gone(name) for name in "abc"],
    )
    ((devices, dropped, reason),) = fed.told(events.UpdatesLeftOut, "devices", "dropped", "reason")
    assert (devices, dropped) == (("b",), False)
    assert "of the new state: expected finite numbers and a norm of at most 500000" in reason
    assert fed.told(events.RoundClosed, "round_id") == [(1,)]


def test_what_is_learned_of_honest_updates_outlives_the_process(open_federation):
    """Round 2 refuses what round 1 would have taken, also from a restarted coordinator."""
    fed = open_federation(minimum=3, round=_ALL, rounds=2)
    fed.play(
        CONNECTED,
        [fed.online(name) for name in "abc"],
        *[fed.delivers(name, update=_moved(fed, name, 0.01)) for name in "abc"],
    )
    liar = replace(_moved(fed, "c", 1e4), round_id=2)
    fed.play(
        CONNECTED,
        [fed.online(name) for name in "abc"],
        fed.delivers("c", round_id=2, update=liar),
    )
    assert fed.answers() == ["norm"]


def test_an_accepted_update_is_answered_again_and_counts_once(open_federation):
    fed = open_federation()
    offer, arrival = fed.delivers("a")
    endpoint = fed.play(CONNECTED, fed.online("a"), fed.online("b"), offer, arrival, offer, offer)
    assert fed.answers() == ["done"] * 3
    assert endpoint.expected == [arrival.offer]
    assert fed.told(events.UpdateReceived, "device_id", "delivered") == [("a", 1)]


def _second_round(fed):
    """Round 1 of ``a`` and ``b``, up to the invitations to round 2."""
    return [
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        *fed.delivers("a"),
        *fed.delivers("b"),
    ]


def test_a_payload_without_its_reference_is_sent_as_one_that_needs_none(open_federation):
    fed = open_federation(rounds=2, codec=CodecSettings(down="int8"))
    endpoint = fed.play(_second_round(fed), fed.refuses("a", "base"))
    assert fed.invited() == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 2)]
    first, again = endpoint.sent[2], endpoint.sent[4]
    assert (first.offer.codec, again.offer.codec) == ("int8+zlib", "int8+zlib")
    assert (bool(first.offer.reference), again.offer.reference) == (True, "")
    assert list(fed.references) == ["b"]


def test_a_payload_in_an_unknown_codec_is_sent_raw(open_federation):
    fed = open_federation(codec=CodecSettings(down="int8"))
    endpoint = fed.play(CONNECTED, fed.online("a"), fed.online("b"), fed.refuses("a", "codec"))
    again = endpoint.sent[2]
    assert (again.device_id, again.offer.codec) == ("a", "raw")
    first, model = endpoint.sent[0], fed.plan.model
    forms = fed.plan.strategy.payload
    raw = decode_payload(first.blob, first.offer.coding, model, {}.get, forms=forms)
    tensors, _ = blobs.decode(raw, max_bytes=1 << 20)
    np.testing.assert_array_equal(tensors["params/w"], initial_tensors(model)["params/w"])
    assert fed.told(events.TaskRefused) == []


@pytest.mark.parametrize(
    "rules", [("finite",), ("diverged",), ("strategy",), ("base",), ("codec", "codec")]
)
def test_a_device_that_refuses_its_payload_in_every_form_is_not_awaited(open_federation, rules):
    """Of round 1 there is no payload with a reference, and a raw one is in no other codec."""
    fed = open_federation(codec=CodecSettings(down="int8"))
    endpoint = fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        [fed.refuses("a", rule) for rule in rules],
        fed.delivers("b"),
        fed.gone("a"),
        fed.gone("b"),
    )
    assert len(endpoint.sent) == 1 + len(rules)
    assert fed.told(events.TaskRefused, "device_id", "round_id") == [("a", 1)]
    assert fed.told(events.RoundClosed, "participants") == [(1,)]


def test_a_refusal_of_an_old_round_changes_nothing(open_federation):
    fed = open_federation(rounds=2, codec=CodecSettings(down="int8"))
    fed.play(
        _second_round(fed),
        lambda: Rejected("a", fed.endpoint.sent[0].offer, "codec", "late"),
        QUIET,
    )
    assert fed.invited() == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert fed.told(events.TaskRefused, "device_id", "round_id") == [("a", 1)]
    fed.play(CONNECTED, fed.online("a"))
    assert fed.endpoint.sent[0].offer.codec == "int8+zlib"


def test_a_refusal_after_the_end_brings_no_task(open_federation):
    """The round is closed: nobody would take what the device made of it."""
    fed = open_federation(codec=CodecSettings(down="int8"), round=RoundSettings(deadline_s=100.0))
    fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        fed.delivers("a"),
        fed.after(100),
        fed.refuses("b", "codec"),
        fed.gone("a", "left"),
        fed.gone("b", "left"),
    )
    assert fed.finished is not None
    assert fed.invited() == [("a", 1), ("b", 1)]


def test_a_device_that_returns_is_invited_again_unless_it_has_delivered(open_federation):
    fed = open_federation()
    endpoint = fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        fed.delivers("a"),
        [fed.gone("a"), fed.gone("b"), fed.gone("b", "left")],
        fed.after(15, fed.online("a")),
        fed.online("b"),
    )
    assert fed.invited() == [("a", 1), ("b", 1), ("b", 1)]
    first, again = endpoint.sent[1:]
    assert first.offer == again.offer
    assert again.task.deadline_s == first.task.deadline_s - 15
    assert fed.told(events.DeviceOffline, "device_id", "reason") == [
        ("a", "offline"),
        ("b", "offline"),
    ]


def test_below_the_quorum_a_round_is_extended_with_others(open_federation):
    """At the deadline the live member is asked again, and a spare one in place of the lost."""
    cohort = CohortSettings(minimum=2, size=2)
    fed = open_federation(cohort=cohort, round=RoundSettings(deadline_s=100.0, quorum=1.0))
    fed.play(
        CONNECTED,
        [fed.online("a"), fed.online("b"), fed.online("c")],
        fed.after(50, fed.gone("b")),
        fed.after(50, fed.beat("a")),
    )
    assert fed.invited() == [("a", 1), ("b", 1), ("a", 1), ("c", 1)]
    assert fed.told(events.RoundExtended, "attempt", "needed", "added") == [(1, 2, ("c",))]
    assert (fed.state.cohort, fed.state.attempt) == (("a", "b", "c"), 1)


def test_a_device_s_log_is_told_once_and_of_rounds_that_there_were(open_federation):
    fed = open_federation()
    fed.play(
        CONNECTED,
        [fed.online("a"), fed.online("b")],
        [fed.beat("a", log="why\nit"), fed.beat("a", log="again")],
        [fed.beat("b", 9, log="of a round to come"), fed.beat("x", log="of nobody")],
    )
    assert fed.told(events.DeviceLog, "device_id", "round_id", "lines") == [("a", 1, ("why", "it"))]


def test_a_silent_device_is_not_awaited_longer_than_its_grace(open_federation):
    """Silent after 150 s, and 20 s more; seen one second late."""
    fed = open_federation(rounds=2)
    offer, arrival = fed.delivers("b")
    fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        offer,
        fed.after(140, arrival),
        [fed.after(11), fed.after(19), fed.after(1)],
    )
    assert fed.told(events.DeviceOffline, "device_id", "reason") == [("a", "silent")]
    assert fed.told(events.RoundClosed, "participants", "seconds") == [(1, 171.0)]


@pytest.mark.parametrize("heard", [lambda fed: fed.beat("a"), lambda fed: fed.delivers("a")[0]])
def test_a_silent_device_that_is_heard_again_is_invited_again(open_federation, heard):
    fed = open_federation()
    fed.play(CONNECTED, fed.online("a"), fed.online("b"), fed.after(151), heard(fed))
    assert fed.invited() == [("a", 1), ("b", 1), ("a", 1)]
    silent = [("a", "silent"), ("b", "silent")]
    assert fed.told(events.DeviceOffline, "device_id", "reason") == silent
    assert fed.told(events.DeviceOnline, "device_id")[2:] == [("a",)]


_SAMPLED = {"rounds": 2, "cohort": CohortSettings(minimum=3, size=2)}


def _drawn(plan, round_id):
    schedule = plan.schedule(plan.server_init)
    return draw(schedule, RoundState(round_id=round_id), "abc", 2)


def test_a_restart_goes_on_with_the_same_cohort_and_gives_the_same_bits(open_federation):
    """Killed with one of two updates: only the other member is asked again, whoever else comes."""
    straight = open_federation(name="straight", **_SAMPLED)
    present = [straight.online(device_id) for device_id in "abc"]
    one, two = (_drawn(straight.plan, round_id) for round_id in (1, 2))
    begin = straight.delivers(one[0])
    rest = [
        *straight.delivers(one[1]),
        *straight.delivers(two[0], 2),
        *straight.delivers(two[1], 2),
    ]
    rest += [straight.gone(device_id, "left") for device_id in "abc"]
    straight.play(CONNECTED, present, begin, rest)

    broken = open_federation(name="broken", **_SAMPLED)
    broken.play(CONNECTED, present, begin)
    payload = broken.endpoint.sent[0].blob
    assert (broken.state.cohort, broken.state.delivered) == (one, {one[0]})
    broken.play(CONNECTED, broken.online("d"), present, broken.gone("d"), begin[0], rest)
    assert broken.invited() == [(one[1], 1), (two[0], 2), (two[1], 2)]
    assert broken.endpoint.sent[0].blob == payload
    assert broken.answers() == ["done"] * 4
    assert broken.endpoint.remembered == [begin[0].message.transfer_id]
    opened = broken.told(events.RoundOpened, "round_id", "resumed", "delivered")
    assert opened == [(1, False, 0), (1, True, 1), (2, False, 0)]
    assert _bits(broken.server_state) == _bits(straight.server_state)


def test_a_process_that_dies_before_the_commit_is_made_up_for(open_federation, monkeypatch):
    """The round is closed when it dies, so what comes later does not count."""
    fed = open_federation(rounds=2)
    start = [CONNECTED, fed.online("a"), fed.online("b"), *fed.delivers("a")]

    def die(*_, **__):
        raise ScriptEndError

    with monkeypatch.context() as killed:
        killed.setattr(Ledger, "commit_round", die)
        fed.play(start, fed.after(600))
    assert (fed.state.phase, fed.server_state) == (RoundPhase.CLOSING, None)
    assert fed.answers() == ["done"]
    assert fed.endpoint.cancelled
    fed.play(CONNECTED, fed.delivers("b")[0])
    assert (fed.state.round_id, fed.answers()) == (2, ["round"])
    expected = fed.plan.strategy.aggregate(
        fed.plan.server_init(), [fed.update("a")], fed.server.tools(1)
    )
    assert _bits(fed.server_state) == _bits(expected)


def test_what_the_wire_ignored_is_reported(open_federation):
    fed = open_federation()
    fed.play(
        CONNECTED, Ignored("a", "chunk-size", "too large"), Ignored("a", "chunk-size", "again")
    )
    found = fed.told(events.DeviceRefused, "device_id", "rule", "reason")
    assert found == [("a", "chunk-size", "too large"), ("a", "chunk-size", "again")]


def test_a_broker_that_is_gone_is_reported_and_one_that_refuses_ends_the_run(open_federation):
    fed = open_federation()
    with pytest.raises(UnavailableError, match="not authorised"):
        fed.play(
            CONNECTED, Hindered("too large"), _LOST, Disconnected("not authorised", final=True)
        )
    assert fed.told(events.BrokerHinders, "reason") == [("too large",)]
    assert fed.told(events.BrokerDisconnected, "reason") == [("broker gone",)]
    assert fed.endpoint.closed


def test_a_device_of_another_bundle_is_refused_and_told_what_runs_here(open_federation):
    """At first, and not every time: an announcement is a message to the whole fleet."""
    fed = open_federation(minimum=1)
    wrong = fed.online("a", bundle="other")
    endpoint = fed.play(CONNECTED, wrong, wrong, wrong)
    assert [one.phase for one in endpoint.published] == ["waiting"] * 3
    assert fed.told(events.DeviceRefused, "rule") == [("bundle",), ("bundle",)]
    assert endpoint.sent == []


def test_a_member_that_returns_with_another_bundle_is_not_awaited(open_federation):
    fed = open_federation()
    fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        fed.delivers("a"),
        [fed.online("b", bundle="other"), fed.after(20), fed.gone("a", "left")],
    )
    assert fed.told(events.RoundClosed, "participants") == [(1,)]
    assert fed.endpoint.finished == ["a"]


def test_a_final_fit_is_asked_for_as_one_and_aggregates_nothing(open_federation):
    """Also after a restart; its task says in which codec the update is to come."""
    fed = open_federation(codec=CodecSettings(up="int8"))
    description = replace(fed.plan.strategy.description, final_fit=True)
    plan = replace(fed.plan, strategy=altered(fed.plan.strategy, description=description))
    fed.plan, fed.server = plan, replace(fed.server, plan=plan)
    fed.play(CONNECTED, fed.online("a"), fed.online("b"), fed.delivers("a"), fed.delivers("b"))
    aggregated = _bits(fed.server_state)[1]
    present = [fed.online("a"), fed.online("b")]
    updates = fed.delivers("a", 2) + fed.delivers("b", 2)
    fed.play(CONNECTED, present, updates, fed.gone("a", "left"), fed.gone("b", "left"))
    tasks = [sent.task for sent in fed.endpoint.sent]
    assert [(task.round_id, task.final, task.update_codec) for task in tasks] == [
        (2, True, "int8+zlib")
    ] * 2
    assert fed.told(events.RoundClosed, "round_id", "final") == [(1, False), (2, True)]
    assert _bits(fed.server_state) == (2, aggregated)
    assert fed.finished.rounds == 1


def test_where_class_counts_are_needed_a_device_is_there_when_it_has_registered(open_federation):
    fed = open_federation(minimum=1)
    fed.server = replace(fed.server, expected=replace(fed.server.expected, class_counts=True))
    fed.play(CONNECTED, fed.online("a"))
    assert fed.endpoint.sent == []
    fed.play(CONNECTED, fed.online("a", num_examples=8, class_counts=(3, 4, 1)), fed.delivers("a"))
    assert fed.invited() == [("a", 1)]
    assert fed.answers() == ["class-counts"]


def test_totals_of_heartbeats_are_kept_but_not_those_of_rounds_to_come(open_federation):
    fed = open_federation()
    beats = [fed.beat("a", bytes_up=5), fed.beat("a", bytes_up=7), fed.beat("a", 9, bytes_up=99)]
    early = [fed.online("c"), fed.beat("c", bytes_up=1), fed.online("a"), fed.beat("a", bytes_up=3)]
    fed.play(CONNECTED, early[2:], fed.online("b"), early[:2], beats, fed.beat("x"))
    assert fed.usage == {"a": (1, DeviceUsage(bytes_up=7, bytes_down=0, peak_rss_bytes=0))}


def test_the_farewell_waits_for_devices_no_longer_than_it_is_allowed_to(open_federation):
    """A device that appears meanwhile is sent home too."""
    fed = open_federation(minimum=1)
    endpoint = fed.play(
        CONNECTED, fed.online("a"), fed.delivers("a"), QUIET, fed.online("b"), QUIET, fed.after(3)
    )
    assert endpoint.finished == ["a", "b"]
    assert fed.finished is not None


def test_the_farewell_is_said_as_the_link_has_room_and_heard_before_the_end(
    open_federation, monkeypatch
):
    """What waits in the link is lost with it: the last announcement stands behind everything."""
    unacknowledged = iter([2, 1, 0])
    monkeypatch.setattr(FakeCoordinatorEndpoint, "room", 1)
    monkeypatch.setattr(
        FakeCoordinatorEndpoint, "unacknowledged", property(lambda _: next(unacknowledged))
    )
    fed = open_federation()
    endpoint = fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        fed.delivers("b"),
        fed.delivers("a"),
        fed.gone("a", "left"),
        fed.gone("b", "left"),
    )
    assert sorted(endpoint.finished) == ["a", "b"]
    assert endpoint.published[-1].phase == "finished"
    assert next(unacknowledged, None) is None
    assert fed.finished is not None


@pytest.mark.parametrize("back", [True, False])
def test_the_farewell_waits_for_a_lost_broker_a_while(open_federation, back):
    """While it was away the deadline has closed the last round."""
    fed = open_federation(round=RoundSettings(deadline_s=100.0))
    end = [fed.gone("a", "left"), fed.gone("b", "left")] if back else [fed.after(3)]
    endpoint = fed.play(
        CONNECTED,
        fed.online("a"),
        fed.online("b"),
        fed.delivers("a"),
        _LOST,
        fed.after(100),
        fed.after(30),
        CONNECTED if back else fed.after(30),
        end,
    )
    assert fed.finished.rounds == 1
    assert set(endpoint.finished) == ({"a", "b"} if back else set())
    assert (endpoint.published[-1].phase == "finished") is back


def test_waiting_for_devices_is_told_at_growing_intervals(open_federation):
    fed = open_federation()
    minutes = [fed.after(10)] * 40
    fed.play(CONNECTED, *minutes[:30], fed.online("a"), *minutes[30:])
    told = [one for one in fed.events if isinstance(one, events.Waiting)]
    assert [(one.live, round(one.waited_s)) for one in told] == [
        *((0, seconds) for seconds in (0, 30, 90, 210)),
        *((1, seconds) for seconds in (300, 330, 390)),
    ]


def test_a_round_that_rests_says_when_it_opens(open_federation):
    fed = open_federation(minimum=1, rounds=2)
    fed.with_config(msgspec.structs.replace(fed.plan.config, round=RoundSettings(every_s=3600.0)))
    day = [fed.after(600)] * 7
    first, second = fed.delivers("a"), fed.delivers("a", 2)
    fed.play(CONNECTED, fed.online("a"), first, *day, second, fed.gone("a"))
    assert fed.finished.rounds == 2
    told = [one.text for one in fed.events if isinstance(one, events.Waiting) and one.opens_in_s]
    assert told[0] == "round 2 opens in 1 h 0 min (round.every_s); devices that are there: 1"


@pytest.mark.slow(seconds=2)  # matplotlib
def test_a_runs_folder_is_reported_and_what_its_page_lacks_is_told(open_federation):
    fed = open_federation(minimum=1)
    run_dir = str(fed.plan.config.run_dir)
    refused = CliRunner().invoke(report, [run_dir])
    assert "this is no run's folder" in str(refused.exception)
    fed.play(CONNECTED, fed.online("a"), fed.delivers("a"), fed.gone("a", "left"))
    told = CliRunner().invoke(report, [run_dir])
    assert told.stdout.strip() == f"{run_dir}/report.html"
    assert "not in it: prototypes: only of a demonstration with FedAli" in told.stderr
    page = (Path(run_dir) / "report.html").read_text()
    assert f"Federation {fed.plan.config.federation}" in page


def _status(config, folder):
    """What the command prints."""
    file = folder / "fed.toml"
    file.write_text(
        f'federation = "home"\nbroker = "mqtt://127.0.0.1"\nbundle = "{config.bundle}"\n'
        f'run_dir = "{config.run_dir}"\nrounds = 1\n'
    )
    return CliRunner().invoke(coordinator, ["status", str(file)]).output


def test_who_lacks_the_strategy_is_not_invited_and_listed_until_it_has_it(
    open_federation, tmp_path
):
    """The reason is told once, and stands in the status of the run."""
    fed = open_federation(minimum=1)
    lacking = fed.online("a", strategies=("local", "fedproto"))
    fed.play(CONNECTED, lacking, QUIET)
    assert fed.told(events.DeviceRefused, "device_id", "rule") == [("a", "strategy")]
    (listed,) = read_status(fed.plan.config).refused
    assert (listed.device_id, listed.rule) == ("a", "strategy")
    assert "only fedproto, local" in listed.reason
    assert f"not invited: {listed.reason}\n" in _status(fed.plan.config, tmp_path)
    fed.play(CONNECTED, fed.online("b"), lacking, fed.beat("a"), QUIET)
    assert fed.invited() == [("b", 1)]
    fed.play(CONNECTED, fed.online("a", strategies=("local", "fedavg")), QUIET)
    assert read_status(fed.plan.config).refused == ()


def test_a_payload_comes_in_chunks_that_its_device_takes(open_federation):
    fed = open_federation(minimum=1)
    fed.play(CONNECTED, fed.online("a", chunk_bytes=3900), fed.online("a", chunk_bytes=600), QUIET)
    offers = [sent.offer for sent in fed.endpoint.sent]
    assert [one.chunk_bytes for one in offers] == [3900, 600]
    assert len({one.transfer_id for one in offers}) == 1
