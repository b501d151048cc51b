"""The agent: what a device does with what comes, what it keeps, and what it sends and reports."""

from __future__ import annotations

import contextlib

import msgspec
import numpy as np
import pytest
from fake_endpoint import (
    CONNECTED,
    QUIET,
    UNTIL_WOKEN,
    Arrival,
    Clock,
    FakeDeviceEndpoint,
    ScriptEndError,
)
from scripted_coordinator import FEDERATION
from tiny_bundle import tiny_data

from protofleet.datasets import DeviceData
from protofleet.edge import agent as agent_module
from protofleet.edge.agent import SETTLE_S, Agent
from protofleet.edge.identity import Identity
from protofleet.edge.journal import Binding
from protofleet.edge.meter import Meter
from protofleet.edge.store import Store
from protofleet.edge.training import Learner, LocalData
from protofleet.errors import InputError, ProvisionError, UnavailableError
from protofleet.federation.client import RoundOrder, open_payload
from protofleet.federation.coding import (
    decode_update,
    encode_payload,
    payload_baseline,
    update_baseline,
)
from protofleet.runtime import open_programs
from protofleet.strategies import build
from protofleet.tensors import blobs
from protofleet.wire.codecs import Codec, Coding
from protofleet.wire.endpoint import Ignored, PeerMessage
from protofleet.wire.link import Disconnected
from protofleet.wire.messages import Announcement, Task
from protofleet.wire.transfer import Delivered, Rejected, describe

_SETTINGS = {"epochs": 2, "batch_size": 16}
_NAME = "anna"
_FINISH = PeerMessage(_NAME, Task(task="finish", round_id=1, federation=FEDERATION))


class _HeldLearner(Learner):
    """Its first round takes until somebody cancels it."""

    held = False

    def train(self, strategy, state, payload, *, seed):
        if not self.held:
            self.held = True
            assert self.cancelled.wait(20)
        return super().train(strategy, state, payload, seed=seed)


class _DeafLearner(_HeldLearner):
    """Its first round is cancelled too late: after its last step."""

    def train(self, strategy, state, payload, *, seed):
        if not self.held:
            self.held = True
            assert self.cancelled.wait(20)
            self.cancelled.clear()
        return super().train(strategy, state, payload, seed=seed)


class Device:
    """A device's store, its processes one after another, and what the coordinator sends it.

    Attributes:
        endpoint, journal, memory, left: of the latest process and as it left the store; ``left``
            is what ``run`` returned, None if it was killed.
        reports: of all processes.
    """

    def __init__(self, world, clock):
        self.world, self.clock = world, clock
        self.bundle = world.bundle
        self.model = self.bundle.model()
        self.strategy = build("fedavg", _SETTINGS, self.model)
        self.programs = open_programs(self.bundle)
        self.reports = []

    def play(self, *steps, kind=Learner):
        """A process of the device, killed when the script is through."""
        folder = self.world.root / _NAME
        flat = [one for step in steps for one in (step if isinstance(step, list) else [step])]
        self.endpoint = FakeDeviceEndpoint(folder / "incoming", self.clock, flat, _NAME)
        self.left = None
        with Store.open(folder, device_id=_NAME) as store, contextlib.suppress(ScriptEndError):
            try:
                self.left = self._agent(store, kind).run()
                # A thread may have been done before its end was waited for.
                assert all(step is UNTIL_WOKEN for step in self.endpoint.steps)
            finally:
                self.journal, self.memory = store.journal, store.load_memory()
        return self.endpoint

    def _agent(self, store, kind):
        binding = Binding(
            federation=FEDERATION,
            bundle=self.bundle.digest,
            layout_hash=self.bundle.manifest.layout_hash,
        )
        store.bind(binding)
        for transfer_id in store.journal.transfers:
            self.endpoint.remember(transfer_id)
        learner = kind(self.bundle, self.programs, LocalData(own=_data()), Meter(), _NAME)
        who = Identity(device_id=_NAME, boot_id="1", binding=binding, num_examples=40)
        self.agent = Agent(
            self.endpoint, store, learner, lambda *report: self.reports.append(report), who
        )
        return self.agent

    def payload(self, shift=0.0):
        """What the server sends: the bundle's parameters, a little moved."""
        start = self.strategy.server_init(self.model, np.random.default_rng(0))
        sent = self.strategy.downlink(start, _NAME).tensors
        return {name: value + np.float32(shift) for name, value in sent.items()}

    def round(self, round_id=1, *, blob=None, coding=None, **changes):
        """The steps up to a trained round: the task and its payload."""
        blob = blobs.encode(self.payload(round_id / 10)) if blob is None else blob
        offer = describe(blob, kind="payload", device_id=_NAME, round_id=round_id, coding=coding)
        task = Task(
            task="train",
            round_id=round_id,
            federation=FEDERATION,
            strategy="fedavg",
            settings=_SETTINGS,
            seed=7,
            deadline_s=60.0,
            payload=offer,
        )
        task = msgspec.structs.replace(task, **changes)
        return [PeerMessage(_NAME, task), Arrival(_NAME, offer, blob), UNTIL_WOKEN]

    def delivered(self):
        return Delivered(_NAME, self.endpoint.sent[-1].offer)

    def rejected(self):
        return Rejected(_NAME, self.endpoint.sent[-1].offer, "cohort", "too late")

    def announced(self, *, retained=False, **changes):
        announcement = Announcement(
            federation=FEDERATION,
            boot_id="1",
            phase="training",
            round_id=1,
            rounds=2,
            strategy="fedavg",
            bundle=self.bundle.digest,
            layout_hash=self.bundle.manifest.layout_hash,
        )
        return PeerMessage("", msgspec.structs.replace(announcement, **changes), retained)

    def names(self):
        return [name for name, _ in self.reports]

    def said(self, name):
        return [figures for found, figures in self.reports if found == name]

    def answers(self):
        return [receipt.rule or receipt.status for receipt in self.endpoint.receipts]

    def fetched(self):
        return [offer.round_id for offer in self.endpoint.expected]

    def sent(self):
        return [sent.offer.round_id for sent in self.endpoint.sent]


def _data():
    (x_train, y_train), (x_test, y_test) = tiny_data(1), tiny_data(2, 20)
    classes = ("class0", "class1", "class2")
    return DeviceData(
        x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=classes
    )


@pytest.fixture
def device(world, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(agent_module, "time", clock)
    return Device(world, clock)


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


def test_until_it_is_delivered_a_round_does_not_count(device):
    device.play(CONNECTED, device.round())
    assert (device.journal.stage, device.journal.state) == ("outbox", None)
    assert device.memory.state is None


def test_a_rejected_update_is_dropped_with_its_state(device):
    endpoint = device.play(CONNECTED, device.round(), device.rejected, device.round(2)[0])
    assert device.said("dropped") == [{"round_id": 1, "reason": "too late"}]
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
    assert device.said("dropped") == [{"round_id": 1, "reason": "a newer task came"}]
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
    device.play(CONNECTED, first[0], first, first[0], device.delivered, first[0])
    assert device.fetched() == [1, 1]
    assert device.answers() == ["done"] * 3
    assert device.sent() == [1, 1]
    assert device.names() == ["joined", "task", "trained", "delivered", "left"]


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


def test_a_payload_that_was_not_asked_for_is_forgotten(device):
    first, second = device.round(), device.round(2)
    endpoint = device.play(CONNECTED, first[0], second[0], first[1], second[1:])
    assert endpoint.cancelled == [endpoint.expected[0].transfer_id] * 2
    assert device.sent() == [2]


def test_a_coded_payload_serves_as_the_reference_of_the_next(device):
    """And the update, made as the task asks, refers to the payload that it came from."""
    asked = {"update_codec": "int8"}
    tensors = device.payload()
    one = encode_payload(tensors, Codec(kind="int8"), "", payload_baseline(device.model, {}))
    earlier, _ = blobs.decode(one.raw, max_bytes=1 << 20)
    baseline = payload_baseline(device.model, earlier)
    two = encode_payload(device.payload(0.5), Codec(kind="int8"), one.reference, baseline)
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


def test_an_unknown_strategy_ends_the_device_with_its_name(device):
    with pytest.raises(InputError, match="strategy 'fedfancy': unknown"):
        device.play(CONNECTED, device.round(strategy="fedfancy")[0])
    assert device.endpoint.published[-1].status == "left"
    assert device.endpoint.closed


def test_another_strategy_than_that_of_the_state_ends_the_device(device):
    with pytest.raises(ProvisionError, match="its state is of strategy 'fedavg'"):
        device.play(
            CONNECTED, device.round(), device.delivered, device.round(2, strategy="fedper")[0]
        )


def test_a_task_of_another_federation_ends_the_device(device):
    with pytest.raises(ProvisionError, match="its federation is 'other'"):
        device.play(CONNECTED, device.round(federation="other")[0])


def test_at_the_finish_a_device_leaves_and_keeps_its_state(device):
    device.play(CONNECTED, device.round(), device.delivered, _FINISH)
    assert device.left
    assert device.said("left")[0]["finished"]
    assert device.endpoint.published[-2].phase == "leave"
    assert device.journal.state.round_id == 1


def test_a_finish_while_training_gives_the_round_up(device):
    device.play(CONNECTED, device.round()[:2], _FINISH, UNTIL_WOKEN, kind=_HeldLearner)
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
    learner = Learner(device.bundle, device.programs, LocalData(own=_data()), Meter(), _NAME)
    payload = open_payload(steps[1].blob, RoundOrder(round_id=1, seed=7)).payload
    state, _ = learner.train(device.strategy, None, payload, seed=7)
    assert _bits(device.memory.state) == _bits(state)


def test_a_live_announcement_of_another_bundle_ends_the_device(device):
    with pytest.raises(ProvisionError, match="its bundle is 'other'"):
        device.play(CONNECTED, device.announced(bundle="other"))


def test_a_retained_announcement_of_another_bundle_may_be_of_an_older_run(device):
    device.play(CONNECTED, device.announced(bundle="other", retained=True), device.round())
    assert device.sent() == [1]


def test_a_federation_that_finished_while_a_device_was_away_lets_it_leave(device):
    """One that never took part waits: the announcement may be of an older run."""
    finished = device.announced(phase="finished", retained=True)
    device.play(CONNECTED, finished, device.round(), device.delivered)
    assert (device.left, device.sent()) == (None, [1])
    device.play(CONNECTED, finished)
    assert device.left


def test_a_strategy_that_asks_for_class_counts_is_told_them(device):
    endpoint = device.play(CONNECTED, device.announced(strategy="fedproto"))
    registered = [one.class_counts for one in endpoint.published if hasattr(one, "class_counts")]
    assert registered == [(), (14, 13, 13), ()]


def test_a_heartbeat_is_due_every_minute(device):
    endpoint = device.play(CONNECTED, QUIET, QUIET, QUIET)
    beats = [one for one in endpoint.published if hasattr(one, "phase")]
    assert [one.phase for one in beats] == [*["idle"] * 3, "leave"]


def test_a_lost_broker_is_waited_for_and_one_that_refuses_ends_the_device(device):
    ignored = Ignored(_NAME, "chunk-index", "too large")
    with pytest.raises(UnavailableError, match="not authorised"):
        device.play(
            CONNECTED,
            Disconnected("gone"),
            CONNECTED,
            ignored,
            Disconnected("not authorised", final=True),
        )
    assert device.names() == ["joined", "left"]
    assert device.endpoint.closed


def test_a_device_that_is_stopped_keeps_the_payload_that_it_was_training_on(device):

    def stop():
        device.agent.stop()

    device.play(CONNECTED, device.round()[:2], stop, kind=_HeldLearner)
    assert device.left is False
    assert device.journal.stage == "received"
