"""The agent: what a device does with what comes, what it keeps, and what it sends and reports."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from fake_endpoint import (
    CONNECTED,
    QUIET,
    UNTIL_WOKEN,
)
from scripted_coordinator import FEDERATION

from protofleet.cli._device_lines import to_text
from protofleet.edge.learning.training import Learner, TrainingCancelledError
from protofleet.edge.outbox import SETTLE_S
from protofleet.errors import InputError, UnavailableError
from protofleet.federation.client import RoundConfig, open_payload
from protofleet.federation.coding import (
    decode_update,
    encode_payload,
    payload_baseline,
    update_baseline,
)
from protofleet.federation.outcomes.gate import FOLDS
from protofleet.federation.records import Sends
from protofleet.tensors import blobs
from protofleet.wire.codecs import Codec, Coding
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.messages import FleetGain, Task
from protofleet.wire.mqtt.link import Disconnected, Hindered
from protofleet.wire.transfers.transfer import Delivered, Rejected

_NAME = "anna"
_FINISH = PeerMessage(_NAME, Task(task="finish", round_id=9, federation=FEDERATION))


class _HeldLearner(Learner):
    """Its first round takes until somebody cancels it."""

    held = False

    def train(self, strategy, state, payload, *, seed, work):
        if not self.held:
            self.held = True
            assert self.cancelled.wait(20)
        return super().train(strategy, state, payload, seed=seed, work=work)


class _DeafLearner(_HeldLearner):
    """Its first round is cancelled too late: after its last step."""

    def train(self, strategy, state, payload, *, seed, work):
        if not self.held:
            self.held = True
            assert self.cancelled.wait(20)
            self.cancelled.clear()
        return super().train(strategy, state, payload, seed=seed, work=work)


def _bits(state):
    return {name: value.tobytes() for name, value in state.tensors.items()}


def test_a_task_is_fetched_trained_sent_and_counts_when_it_is_delivered(device):
    endpoint = device.play(CONNECTED, device.round(), device.delivered)
    assert device.names() == ["joined", "task", "trained", "delivered", "left"]
    assert (device.fetched(), device.answers(), device.sent()) == ([1], ["done"], [1])
    assert (device.journal.stage, device.journal.state.round_id) == ("idle", 1)
    sent = decode_update(endpoint.sent[0].blob, Coding(), {}, max_bytes=1 << 20)
    assert (sent.update.client_id, sent.update.num_examples) == (_NAME, 40)
    kept = device.strategy.client_model(device.memory.state).params
    np.testing.assert_array_equal(sent.update.tensors["params/w"], kept["w"])
    assert [one.status for one in endpoint.published if hasattr(one, "status")] == [
        "online",
        "left",
    ]
    phases = [(one.phase, one.round_id) for one in endpoint.published if hasattr(one, "phase")]
    assert phases == [("idle", 1), ("leave", 1)]
    assert endpoint.closed
    assert (device.left, device.said("left")[0]["bytes_up"]) == (None, 100)


def test_the_owner_is_told_which_model_is_in_use_and_when_that_changes(device):
    """By the own test examples and by what the coordinator says of other owners."""
    helps, harms = (FleetGain(owners=30, mean=mean, sd=0.001) for mean in (0.9, -0.9))
    rounds = [
        [*device.round(number, fleet=fleet), device.delivered]
        for number, fleet in ((1, helps), (2, helps), (3, harms), (4, msgspec.UNSET))
    ]
    device.play(CONNECTED, *rounds)
    told = [(one["round_id"], one["model"]) for one in device.said("in_use")]
    assert told[:2] == [(1, "personal"), (3, "bundle")]
    evidence = device.journal.state.evidence
    assert (evidence.tests.examples, evidence.fleet) == (20, None)
    first = device.said("in_use")[0]
    assert "on 20 examples that it has not seen; by these and 30 owners' gains" in first["text"]
    assert "after round 1: personal" in to_text("in_use", first)


def test_every_third_round_holds_out_a_fold_and_later_updates_tell_of_it(device):
    """The next one, too, if the fold was done when its round began."""
    rounds = [[*device.round(number), device.delivered] for number in (1, 2, 3, 4)]
    endpoint = device.play(CONNECTED, *rounds, *device.round(5)[:1])
    updates = [decode_update(sent.blob, Coding(), {}, max_bytes=1 << 20) for sent in endpoint.sent]
    told = [one.record.held_out for one in updates]
    assert told[0] is msgspec.UNSET
    assert told[2].examples == 40 / FOLDS
    assert told[1] in (msgspec.UNSET, told[2])
    assert told[3] == told[2]
    evidence = device.journal.state.evidence
    assert evidence.tests.examples == 20
    assert [fold.examples for fold in evidence.folds][:1] == [told[2].examples]
    assert evidence.examples == 20 + sum(fold.examples for fold in evidence.folds)
    assert updates[3].record.costs.phases_s.get("gate", 0) == 0
    assert updates[1].record.costs.phases_s["gate"] > 0


class _BrokenLearner(Learner):
    def hold_out(self, strategy, payload, *, fold, seed):  # noqa: ARG002 - the method's own
        raise InputError("no such fold")


def test_a_fold_that_cannot_be_held_out_costs_no_round(device, caplog):
    rounds = [[*device.round(number), device.delivered] for number in (1, 2)]
    device.play(CONNECTED, *rounds, kind=_BrokenLearner)
    assert (device.journal.stage, device.journal.state.round_id) == ("idle", 2)
    evidence = device.journal.state.evidence
    assert (evidence.examples, evidence.held_out, evidence.rounds) == (20, 1, 1)
    assert "a held-out fold could not be compared" in caplog.text


def test_who_sends_no_numbers_of_examples_tells_nothing_of_folds(device):
    device.sends = Sends(counts=False)
    rounds = [[*device.round(number, counts=False), device.delivered] for number in (1, 2)]
    endpoint = device.play(CONNECTED, *rounds)
    for sent in endpoint.sent:
        update = decode_update(sent.blob, Coding(), {}, max_bytes=1 << 20)
        assert update.record.held_out is msgspec.UNSET
    assert len(device.journal.state.evidence.folds) == 1


def test_until_it_is_delivered_a_round_does_not_count(device):
    device.play(CONNECTED, device.round())
    assert (device.journal.stage, device.journal.state) == ("outbox", None)
    assert device.memory.state is None


def test_a_rejected_update_is_dropped_with_its_state(device):
    endpoint = device.play(CONNECTED, device.round(), device.rejected, device.round(2)[0])
    assert device.dropped() == [(1, "too late")]
    assert (device.journal.stage, device.memory.state) == ("idle", None)
    offers = endpoint.expected[0], endpoint.sent[0].offer
    assert endpoint.cancelled == [offer.transfer_id for offer in offers]
    assert device.fetched() == [1, 2]


@pytest.mark.parametrize("fate", ["delivered", "rejected"])
def test_a_newer_task_waits_for_the_fate_of_the_update_in_the_outbox(device, fate):
    device.play(CONNECTED, device.round(), device.round(2)[0], getattr(device, fate))
    assert device.sent() == [1, 1]
    assert device.names()[3:5] == [{"rejected": "dropped"}.get(fate, fate), "task"]
    assert device.fetched() == [1, 2]


def test_the_latest_of_several_newer_tasks_is_begun_and_none_prolongs_the_waiting(device):
    device.play(CONNECTED, device.round(), device.round(2)[0], device.round(3)[0], QUIET)
    assert (device.sent(), device.fetched()) == ([1, 1], [1, 3])


@pytest.mark.parametrize("kind", [Delivered, lambda *about: Rejected(*about, "cohort", "late")])
def test_a_receipt_of_an_older_update_decides_nothing(device, kind):
    def old():
        return kind(_NAME, device.endpoint.sent[0].offer)

    device.play(CONNECTED, device.round(), device.delivered, device.round(2), old)
    assert (device.journal.stage, device.journal.pending.round_id) == ("outbox", 2)


def test_a_newer_task_waits_no_longer_than_it_takes_to_settle(device):
    begun = device.clock.now_s
    device.play(CONNECTED, device.round(), device.round(2)[0], QUIET)
    assert device.clock.now_s == begun + SETTLE_S
    assert device.said("dropped")[0]["reason"] == "no receipt within 10 s of the next task"
    assert (device.sent(), device.fetched(), device.memory.state) == ([1, 1], [1, 2], None)


@pytest.mark.parametrize("kind", [_HeldLearner, _DeafLearner])
def test_a_newer_task_replaces_the_training_in_progress(device, kind):
    first, second = device.round(), device.round(2)
    device.play(CONNECTED, first[:2], second[0], UNTIL_WOKEN, second[1:], kind=kind)
    assert device.names() == ["joined", "task", "dropped", "task", "trained", "left"]
    assert device.dropped() == [(1, "a newer task came")]
    assert (device.fetched(), device.sent()) == ([1, 2], [2])
    assert device.journal.pending.round_id == 2


def test_a_newer_task_replaces_a_payload_that_is_still_on_its_way(device):
    first, second = device.round(), device.round(2)
    endpoint = device.play(CONNECTED, first[0], second, device.delivered)
    assert endpoint.cancelled == [endpoint.expected[0].transfer_id]
    assert device.sent() == [2]
    assert device.journal.state.round_id == 2


def test_the_task_in_progress_and_the_delivered_one_are_answered_again(device):
    first = device.round()
    device.play(CONNECTED, first[0], first, first[0], device.delivered, first[0], device.delivered)
    assert device.fetched() == [1, 1]
    assert device.answers() == ["done"] * 3
    assert device.sent() == [1, 1, 1]
    assert device.endpoint.sent[2].blob == device.endpoint.sent[0].blob
    assert device.names() == ["joined", "task", "trained", "delivered", "left"]


def test_a_delivered_update_is_given_again_when_the_one_in_the_outbox_is_gone(device):
    """A coordinator that was restored from a backup asks for round 1 and knows of no round 2."""
    first, second = device.round(), device.round(2)
    device.play(CONNECTED, first, device.delivered, second, first[0], device.rejected, first[0])
    assert device.sent() == [1, 2, 1]
    assert device.answers() == ["done"] * 3
    device.play(CONNECTED, first[0], second[0])
    assert device.sent() == [1]
    assert device.fetched() == [2]


def test_a_task_of_a_round_that_is_over_is_rejected(device):
    """Its federation has begun again under the same name."""
    device.play(CONNECTED, device.round(2), device.delivered, device.round(1)[0])
    assert device.answers() == ["done", "offer"]
    assert "this device has finished round 2" in device.endpoint.receipts[-1].reason


def _not_finite(device):
    tensors = device.payload()
    tensors["params/b"][0] = np.inf
    return blobs.encode(tensors)


@pytest.mark.parametrize(
    ("make", "rule"), [(_not_finite, "finite"), (lambda _: b"nonsense" * 9, "blob-header")]
)
def test_a_payload_that_breaks_a_rule_is_rejected_by_its_name(device, make, rule):
    """The device stays, and takes the next one."""
    bad = device.round(blob=make(device))[:2]
    device.play(CONNECTED, bad, device.round())
    assert device.answers() == [rule, "done"]
    assert device.sent() == [1]


def test_a_payload_that_refers_to_what_is_not_here_is_not_even_fetched(device):
    coding = Coding(codec="int8", raw_bytes=99, reference="f" * 64)
    coded = device.round(blob=b"never read", coding=coding)
    device.play(CONNECTED, coded[0], device.round())
    assert device.answers() == ["base", "done"]
    assert device.fetched() == [1]


def _overflowing(device, name):
    """A payload of finite numbers that training makes infinite."""
    tensors = device.payload()
    tensors[name][...] = 3e38
    return blobs.encode(tensors)


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("params/b", {"optimiser": {"kind": "sgd", "lr": 1e6, "weight_decay": 1e6}}, "params/b"),
        ("params/w", {}, "finite loss"),
    ],
)
def test_a_round_that_diverges_is_refused_and_the_device_goes_on(device, name, settings, named):
    """Its state is the one of the round before, and the coordinator is told the tensor's name."""
    settings = {"epochs": 1, "batch_size": 64, **settings}
    blob = _overflowing(device, name)
    device.play(CONNECTED, device.round(), device.delivered)
    before = _bits(device.memory.state)
    endpoint = device.play(CONNECTED, device.round(2, blob=blob, settings=settings))
    assert (device.journal.stage, device.journal.state.round_id) == ("idle", 1)
    assert _bits(device.memory.state) == before
    refused = endpoint.receipts[1]
    assert device.answers() == ["done", "diverged"]
    assert named in refused.reason
    assert device.dropped() == [(2, refused.reason)]
    bad = device.round(3, blob=blob, settings=settings)
    device.play(CONNECTED, bad, device.round(4), device.delivered)
    assert (device.sent(), device.journal.state.round_id) == ([4], 4)


def test_model_buffers_that_are_not_finite_are_not_committed(device):
    class Buffers(Learner):
        def train(self, strategy, state, payload, *, seed, work):
            state, update = super().train(strategy, state, payload, seed=seed, work=work)
            variance = np.array([1, np.nan, np.inf], np.float32)
            tensors = {**state.tensors, "state/norm.running_var": variance}
            return replace(state, tensors=tensors), update

    endpoint = device.play(CONNECTED, device.round(), kind=Buffers)
    assert (device.journal.stage, device.journal.state) == ("idle", None)
    assert endpoint.receipts[-1].reason.startswith(
        "tensor 'state/norm.running_var': 2 of its 3 values are NaN or infinite"
    )


def test_a_payload_that_was_not_asked_for_is_forgotten(device):
    first, second = device.round(), device.round(2)
    endpoint = device.play(CONNECTED, first[0], second[0], first[1], second[1:])
    assert endpoint.cancelled == [endpoint.expected[0].transfer_id] * 2
    assert device.sent() == [2]


def test_a_coded_payload_serves_as_the_reference_of_the_next(device):
    """And the update, made as the task asks, refers to the payload that it came from."""
    asked = {"update_codec": "int8"}
    tensors = device.payload()
    one = encode_payload(tensors, Codec.of("int8"), "", payload_baseline(device.model, {}))
    earlier, _ = blobs.decode(one.raw, max_bytes=1 << 20)
    baseline = payload_baseline(device.model, earlier)
    two = encode_payload(device.payload(0.5), Codec.of("int8"), one.reference, baseline)
    rounds = [
        device.round(round_id, blob=sent.blob, coding=sent.coding, **asked)
        for round_id, sent in enumerate((one, two), 1)
    ]
    device.play(CONNECTED, rounds[0], device.delivered, rounds[1])
    assert device.answers() == ["done", "done"]
    offers = [sent.offer for sent in device.endpoint.sent]
    assert [(o.codec, o.reference) for o in offers] == [
        ("int8", one.reference),
        ("int8", two.reference),
    ]
    received, _ = blobs.decode(two.raw, max_bytes=1 << 20)
    known = update_baseline(device.model, received)
    update = decode_update(device.endpoint.sent[1].blob, offers[1].coding, known, max_bytes=1 << 20)
    assert update.record.round_id == 2


def test_another_strategy_than_that_of_the_state_is_refused_and_the_device_stays(device):
    other = device.round(2, strategy="fedper")[0]
    device.play(CONNECTED, device.round(), device.delivered, other, device.round(3))
    assert device.answers() == ["done", "strategy", "done"]
    assert "its state is of strategy 'fedavg'" in device.endpoint.receipts[1].reason
    assert device.sent() == [1, 3]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InputError("expected boxes, got none"), "expected boxes, got none"),
        (IndexError("index 9"), "training failed: IndexError: index 9"),
    ],
)
def test_what_shows_only_in_training_is_told_and_the_device_stays(device, error, reason):
    """Such as boxes that its data have not: the round does not wait for it."""

    class Unable(Learner):
        def train(self, strategy, state, payload, *, seed, work):
            if payload.round_id == 1:
                raise error
            return super().train(strategy, state, payload, seed=seed, work=work)

    device.play(CONNECTED, device.round(), device.round(2), kind=Unable)
    assert device.answers() == ["done", "strategy", "done"]
    assert device.endpoint.receipts[1].reason == reason
    assert device.dropped() == [(1, reason)]
    assert (device.journal.stage, device.sent()) == ("outbox", [2])


def test_a_store_moves_only_when_the_federation_is_known_to_run_the_bundle(device):
    """Given by mistake, a bundle costs nothing: not even the update in the outbox."""
    device.play(CONNECTED, device.round(), device.delivered, device.round(2))
    before = device.journal
    old = device.announced
    retained, live = old(retained=True), old()
    over = old(phase="finished", retained=True)
    device.other_bundle()
    device.play(CONNECTED, retained, over, live, told=False)
    assert device.journal == before
    assert (device.sent(), device.endpoint.remembered) == ([], [])
    assert "moved" not in device.names()
    fitting = device.announced(phase="waiting", retained=True)
    device.play(CONNECTED, over, fitting, device.round(), told=False)
    assert device.journal.binding.bundle == device.bundle.digest
    assert device.journal.former.binding == before.binding
    assert device.names()[-5:] == ["joined", "moved", "task", "trained", "left"]


def _last_round(device, **changes):
    return device.announced(round_id=9, rounds=9, **changes)


def test_at_the_finish_a_device_leaves_and_keeps_its_state(device):
    device.play(CONNECTED, device.round(), device.delivered, _last_round(device), _FINISH)
    assert device.left
    assert device.said("left")[0]["finished"]
    assert device.endpoint.published[-2].phase == "leave"
    assert device.journal.state.round_id == 1


def _finished_with(device, *transfers, retained=True):
    """The announcement of a run that has ended, and has taken these updates."""
    receipts = tuple(transfer[:12] for transfer in transfers)
    return _last_round(device, phase="finished", retained=retained, receipts=receipts)


def test_a_round_whose_receipt_only_the_announced_end_tells_counts(device):
    """Killed before its receipt; the coordinator has gone home meanwhile."""
    device.play(CONNECTED, device.round())
    update = device.endpoint.sent[-1].offer.transfer_id
    trained = device.journal.pending.state
    endpoint = device.play(CONNECTED, _finished_with(device, "ab" * 16, update), told=False)
    assert device.left
    assert (device.journal.stage, device.journal.state) == ("idle", trained)
    assert device.said("delivered")[0]["transfer_id"] == update
    assert update in endpoint.cancelled
    assert ("idle", 1) in [(h.phase, h.round_id) for h in endpoint.published[1:-1]]


def test_an_announced_end_without_its_receipt_drops_the_round(device):
    device.play(CONNECTED, device.round())
    device.play(CONNECTED, _finished_with(device, "ab" * 16), QUIET, told=False)
    assert device.left
    assert (device.journal.stage, device.journal.state) == ("idle", None)
    assert device.dropped() == [(1, "no receipt within 10 s of the next task")]


def test_a_device_that_stays_offers_no_update_of_which_the_end_has_told(device):
    device.play(CONNECTED, device.round())
    update = device.endpoint.sent[-1].offer.transfer_id
    on = device.announced(round_id=2, rounds=20)
    device.play(
        CONNECTED, _finished_with(device, update), on, device.round(2), told=False, stays=True
    )
    assert (device.names().count("delivered"), device.sent()) == (1, [1, 2])


def test_a_finish_while_training_gives_the_round_up(device):
    begun = device.round()[:2]
    device.play(CONNECTED, begun, _last_round(device), _FINISH, UNTIL_WOKEN, kind=_HeldLearner)
    assert device.left
    assert device.names() == ["joined", "task", "dropped", "left"]
    assert device.journal.stage == "idle"


def test_a_restart_with_an_update_in_the_outbox_offers_it_again(device):
    """Also before there is a connection, and the state counts when it is delivered."""
    device.play(CONNECTED, device.round())
    offered = device.endpoint.sent[0]
    endpoint = device.play(lambda: None, CONNECTED, device.delivered)
    assert endpoint.sent == [offered]
    assert (device.journal.stage, device.journal.state.round_id) == ("idle", 1)


def test_a_restart_with_a_payload_trains_without_fetching_it_again(device):
    """Killed in its training; the same task gives the same bits as if nothing had happened."""
    steps = device.round()
    device.play(CONNECTED, steps[:2], kind=_HeldLearner)
    assert device.journal.stage == "received"
    endpoint = device.play(CONNECTED, steps[0], UNTIL_WOKEN, device.delivered)
    assert (device.fetched(), device.answers(), device.sent()) == ([], ["done"], [1])
    assert endpoint.remembered == [steps[1].offer.transfer_id]
    payload = open_payload(steps[1].blob, RoundConfig(round_id=1, seed=7), device.strategy.payload)
    payload = payload.payload
    state, _ = device.learner().train(device.strategy, None, payload, seed=7)
    assert _bits(device.memory.state) == _bits(state)


def test_a_live_announcement_of_another_bundle_is_told_at_once_and_the_device_waits(device, caplog):
    endpoint = device.play(CONNECTED, device.announced(bundle="other"), told=False)
    assert "its bundle is 'other', this device has" in caplog.text
    assert endpoint.published[-1].status == "left"
    assert device.said("left")[0]["refused"] == {"bundle": 1}
    told = _waited(device, CONNECTED, device.announced(bundle="other"), told=False)
    assert told[0]["waited_s"] < 3  # the others on the broker are asked for meanwhile
    assert "another coordinator: federation" in told[0]["awaited"]
    assert "join with the federation's own bundle" in told[0]["awaited"]


def test_an_announcement_of_another_bundle_may_be_of_an_older_run(device):
    other, ours = device.announced(bundle="other", retained=True), device.announced()
    device.play(CONNECTED, other, ours, device.round(), told=False)
    assert device.sent() == [1]


def test_a_federation_that_finished_while_a_device_was_away_lets_it_leave(device):
    """One that never took part waits: the announcement may be of an older run."""
    finished = _last_round(device, phase="finished", retained=True, epoch=7)
    device.play(CONNECTED, finished, device.round(epoch=7), device.delivered, told=False)
    assert (device.left, device.sent()) == (None, [1])
    device.play(CONNECTED, finished, told=False)
    assert device.left


def test_a_device_that_stays_waits_for_another_run_when_the_federation_has_finished(device):
    """Also where it finds that at its start; a run that goes on has its tasks."""
    finished = _last_round(device, phase="finished", retained=True)
    device.play(CONNECTED, device.round(), device.delivered, finished, _FINISH, stays=True)
    assert (device.left, device.said("finished")) == (None, [{"round_id": 9}])
    on = device.announced(round_id=2, rounds=20)
    device.play(CONNECTED, finished, on, device.round(2), told=False, stays=True)
    assert (device.left, device.sent()) == (None, [2])
    told = _waited(device, CONNECTED, finished, told=False, stays=True)
    assert "a new run of federation" in told[-1]["awaited"]


def test_a_round_s_examples_are_registered_and_not_before_the_update_of_another_is_gone(device):
    """What counts for an update in the outbox are the data of its own round."""
    later = device.announced(round_id=5, rounds=9)
    device.play(CONNECTED, device.round(), later)
    assert device.online() == [40]
    device.play(CONNECTED, later, device.delivered, device.round(5))
    assert device.online() == [40, 25]
    assert [figures["num_examples"] for figures in device.said("trained")] == [40, 25]


def test_a_final_fit_is_trained_as_one(device):
    seen = []

    class Spy(Learner):
        def train(self, strategy, state, payload, *, seed, work):
            seen.append((payload.final, seed))
            return super().train(strategy, state, payload, seed=seed, work=work)

    ends = device.announced(round_id=1, rounds=1)
    device.play(CONNECTED, ends, device.round(2, final=True), kind=Spy)
    assert seen == [(True, 7)]


def test_a_strategy_that_asks_for_class_counts_is_told_them(device):
    endpoint = device.play(CONNECTED, device.announced(strategy="fedproto"), told=False)
    registered = [one.class_counts for one in endpoint.published if hasattr(one, "class_counts")]
    assert registered == [(), (14, 13, 13), ()]


def test_a_heartbeat_is_due_every_minute(device):
    endpoint = device.play(CONNECTED, *_quiet(180.0, device))
    beats = [one for one in endpoint.published if hasattr(one, "phase")]
    assert [one.phase for one in beats] == [*["idle"] * 3, "leave"]


def _quiet(seconds, device):
    """Steps in which nothing comes for so long; further ones do not end the process."""

    def step():
        device.clock.advance(min(1.0, device.agent._wait_s()))

    return [step] * int(seconds + 20)


def _waited(device, *steps, others=(), **options):
    """What the device tells of its waiting in ten minutes after ``steps``."""

    def hear():
        device.endpoint.others = {name: device.announced().message for name in others}

    before = len(device.said("waiting"))
    device.play(hear, *steps, *_quiet(620.0, device), **options)
    return device.said("waiting")[before:]


def test_a_device_that_nobody_coordinates_says_what_it_waits_for_at_growing_intervals(device):
    told = _waited(device, CONNECTED, others=["lab-2"], told=False)
    assert [round(one["waited_s"]) for one in told] == [12, 34, 76, 158, 320]
    assert told[0]["awaited"] == (
        f"a coordinator of federation '{FEDERATION}'; none has announced itself"
    )
    assert told[0]["federations"] == {"lab-2": "training"}
    assert to_text("waiting", told[0]).endswith(
        "on this broker there is 'lab-2' (training): is --federation right?"
    )


def test_a_payload_that_does_not_come_is_told_of_at_growing_intervals(device):
    told = _waited(device, CONNECTED, device.round()[0])
    assert [round(one["waited_s"]) for one in told] == [30, 90, 210, 450]
    assert told[0]["awaited"].startswith("the payload of round 1 (")
    assert "; 0 bytes have passed this device's link since" in told[0]["awaited"]
    assert "protofleet doctor --broker" in to_text("waiting", told[0])


def test_a_receipt_that_does_not_come_is_told_of_and_forgotten_when_it_has(device):
    told = _waited(device, CONNECTED, *device.round())
    assert told[0]["awaited"].startswith("the receipt for the update of round 1; ")
    assert [round(one["waited_s"]) for one in told] == [30, 90, 210, 450]
    told = _waited(device, CONNECTED, device.delivered)
    assert all("the next task" in one["awaited"] for one in told)


def test_a_device_without_keys_tells_at_once_that_its_federation_has_some(device):
    """Believed no longer than until an announcement can be read."""
    signed = Ignored("", "keys", "announcement: signed with keys")
    told = _waited(device, CONNECTED, signed, told=False)
    assert told[0]["waited_s"] < 1
    assert "protofleet device enroll INVITATION --store " in told[0]["awaited"]
    told = _waited(device, CONNECTED, signed, device.announced())
    assert "the next task: round 1 of 2" in told[-1]["awaited"]


@pytest.mark.parametrize(
    ("changes", "awaited"),
    [
        ({}, "the next task: round 1 of 2 runs, this device has nothing to do"),
        (
            {"retained": True, "phase": "waiting"},
            "the next task: round 1 of 2 waits for devices; the broker remembers this",
        ),
        ({"retained": True, "bundle": "other"}, "another coordinator: federation"),
        ({"phase": "finished", "round_id": 2}, "a new run of federation"),
    ],
)
def test_a_device_that_waits_tells_where_its_federation_stands(device, changes, awaited):
    told = _waited(device, CONNECTED, device.announced(**changes))
    assert awaited in told[-1]["awaited"]


def test_a_device_does_not_wait_while_it_trains_and_waits_anew_after_a_round(device):
    told = _waited(device, CONNECTED, device.round(), device.delivered)
    assert [round(one["waited_s"]) for one in told][:5] == [10, 30, 70, 150, 310]


def test_a_lost_broker_is_waited_for_and_one_that_refuses_ends_the_device(device, caplog):
    ignored = Ignored(_NAME, "chunk-index", "too large")
    with pytest.raises(UnavailableError, match=r"not authorised; .* it alone, .*new invitation"):
        device.play(
            CONNECTED,
            Disconnected("gone"),
            CONNECTED,
            Hindered("it takes no more"),
            ignored,
            Disconnected("not authorised", final=True),
        )
    assert device.names() == ["joined", "left"]
    assert device.endpoint.closed
    assert "the broker hinders: it takes no more" in caplog.messages


def test_a_device_that_is_stopped_keeps_the_payload_that_it_was_training_on(device):

    def stop():
        device.agent.stop()
        cancelled = device.agent._training._running.exception(20)
        assert isinstance(cancelled, TrainingCancelledError)

    device.play(CONNECTED, device.round()[:2], stop, kind=_HeldLearner)
    assert device.left is False
    assert device.journal.stage == "received"
