"""Messages that break a rule: refused by its name, counted, and the device stays."""

from __future__ import annotations

import numpy as np
import pytest
from fake_endpoint import CONNECTED
from msgspec.structs import replace
from scripted_coordinator import FEDERATION

from protofleet.edge.refusals import Refusals
from protofleet.errors import RefusedError
from protofleet.tensors import blobs
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Task
from protofleet.wire.transfers.transfer import describe

_NAME = "anna"
_FAR = 2**53 - 1
_SETTINGS = {"epochs": 1, "batch_size": 16}
_OTHER_ROUND = describe(b"payload", kind="payload", device_id=_NAME, round_id=2)
_UPDATE = describe(b"payload", kind="update", device_id=_NAME, round_id=1)


def _sgd(lr):
    return {**_SETTINGS, "optimiser": {"kind": "sgd", "lr": lr}}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"federation": "other"}, "federation"),
        ({"strategy": "fedfancy"}, "strategy"),
        ({"strategy": "fedali", "settings": {}}, "strategy"),
        ({"settings": {"epohcs": 1}}, "strategy"),
        ({"settings": {"epochs": "many"}}, "strategy"),
        ({"settings": {**_SETTINGS, "epochs": 10**9}}, "strategy"),
        ({"settings": {**_SETTINGS, "epochs": 10**400}}, "strategy"),
        ({"settings": {**_SETTINGS, "batch_size": 0}}, "strategy"),
        ({"settings": {**_SETTINGS, "batch_size": 2**70}}, "strategy"),
        ({"settings": {**_SETTINGS, "clip_norm": -1.0}}, "strategy"),
        ({"settings": _sgd(1e38)}, "strategy"),
        ({"settings": _sgd(-1.0)}, "strategy"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"final": True}, "round"),
        ({"payload": _OTHER_ROUND}, "round"),
        ({"payload": _UPDATE}, "kind"),
    ],
)
def test_a_task_that_breaks_a_rule_is_rejected_by_its_name_and_the_device_stays(
    device, changes, rule
):
    """The round's own task is trained as if nothing had come before."""
    bad = device.round(blob=blobs.encode(device.payload(0.7)), **changes)[0]
    device.play(CONNECTED, bad, device.round(), device.delivered)
    assert device.answers() == [rule, "done"]
    assert (device.fetched(), device.sent()) == ([1], [1])
    assert device.journal.state.round_id == 1


@pytest.mark.parametrize("round_id", [-1, 0, 11, _FAR, 2**63, 10**300])
def test_a_round_that_was_not_announced_is_refused(device, round_id):
    """A device that took one in would be past every later round of its federation."""
    bad = device.round(round_id, blob=blobs.encode(device.payload(0.7)))[0]
    device.play(CONNECTED, bad, device.round(5), device.delivered)
    assert device.answers() == ["round", "done"]
    assert len(device.endpoint.receipts[0].reason) < 200
    assert device.journal.state.round_id == 5


@pytest.mark.parametrize("round_id", [6, 10])
def test_a_round_whose_announcement_was_lost_is_left_open_and_the_broker_is_asked(device, round_id):
    """As is the one before it; a rejection would cost the device the round."""
    early = device.round(round_id, blob=blobs.encode(device.payload(0.7)))[0]
    asked = device.play(CONNECTED, early, early, device.round(5), device.delivered).asked
    assert asked == 1
    assert device.answers() == ["done"]
    assert device.journal.state.round_id == 5


@pytest.mark.parametrize("field", ["total_bytes", "raw_bytes"])
def test_more_bytes_than_the_strategy_sends_are_not_even_fetched(device, field):
    steps = device.round()
    offer = steps[0].message.payload
    huge = {"total_bytes": offer.total_bytes, "raw_bytes": 0, field: 10**7}
    bad = device.round(blob=blobs.encode(device.payload(0.7)))[0].message
    bad = replace(bad, payload=replace(bad.payload, **huge))
    device.play(CONNECTED, PeerMessage(_NAME, bad), steps, device.delivered)
    rules = {"total_bytes": "blob-size", "raw_bytes": "raw-bytes"}
    assert device.answers() == [rules[field], "done"]
    assert device.fetched() == [1]


@pytest.mark.parametrize(
    "tensors",
    [
        {"params/w": np.zeros((2, 2), np.float32), "params/b": np.zeros(3, np.float32)},
        {"params/w": np.zeros((4, 3)), "params/b": np.zeros(3)},
        {"params/x": np.zeros(3, np.float32)},
        {},
    ],
)
def test_a_payload_of_other_tensors_is_rejected_before_it_is_trained_on(device, tensors):
    bad = device.round(blob=blobs.encode(tensors))[:2]
    device.play(CONNECTED, bad, device.round(), device.delivered)
    assert device.answers() == ["layout", "done"]
    assert device.sent() == [1]


@pytest.mark.parametrize(
    "finish",
    [
        {"round_id": 0},
        {"round_id": 4},
        {"round_id": 9},
        {"round_id": _FAR},
        {"round_id": 9, "federation": "other"},
    ],
)
def test_a_finish_that_nobody_announced_ends_no_device(device, finish):
    """Round 4 of 9 was the last that it heard of."""
    message = Task(**{"task": "finish", "federation": FEDERATION, **finish})
    device.play(CONNECTED, PeerMessage(_NAME, message), device.round())
    assert (device.left, device.sent()) == (None, [1])


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"federation": "other"}, "federation"),
        ({"bundle": "f" * 64}, "bundle"),
        ({"layout_hash": "f" * 64}, "layout"),
        ({"phase": "finished", "bundle": "f" * 64, "round_id": 9}, "bundle"),
        ({"phase": "finished", "round_id": 3}, "finish"),
        ({"round_id": _FAR}, "round"),
        ({"round_id": 2**31 + 1}, "round"),
        ({"round_id": 1, "rounds": 2**31}, "round"),
        ({"round_id": _FAR, "rounds": _FAR}, "round"),
        ({"round_id": -1}, "round"),
        ({"rounds": 0}, "round"),
    ],
)
def test_an_announcement_that_cannot_be_ours_changes_nothing(device, changes, rule):
    device.play(CONNECTED, device.round(), device.delivered)
    bad = device.announced(**{"rounds": 9, **changes})
    device.play(CONNECTED, bad, device.round(2), device.delivered)
    assert (device.left, device.sent(), device.journal.state.round_id) == (None, [2], 2)
    assert device.said("left")[-1]["refused"] == {rule: 1}


def test_an_operator_may_lower_the_number_of_rounds_below_the_present_one(device):
    """The round in progress is the last then, and the device leaves behind it."""
    lowered = device.announced(round_id=5, rounds=3)
    finish = Task(task="finish", round_id=5, federation=FEDERATION)
    steps = device.round(5), device.delivered, PeerMessage(_NAME, finish)
    device.play(CONNECTED, lowered, *steps, told=False)
    assert (device.left, device.journal.state.round_id) == (True, 5)


def test_a_task_that_comes_before_any_announcement_is_left_for_later(device):
    """It is not rejected, because its sender repeats it until it is answered."""
    steps = device.round()
    device.play(CONNECTED, steps[0], device.announced(), steps, device.delivered, told=False)
    assert device.answers() == ["done"]
    assert device.journal.state.round_id == 1


def test_what_breaks_a_rule_leaves_the_round_in_progress_alone(device):
    """Under its very transfer, too."""
    steps = device.round()
    task = steps[0].message
    larger = replace(task.payload, total_bytes=task.payload.total_bytes + 1)
    hostile = [
        PeerMessage(_NAME, replace(task, settings={"epochs": 10**9})),
        PeerMessage(_NAME, replace(task, seed=-1)),
        PeerMessage(_NAME, replace(task, payload=larger)),
        device.round(2, strategy="fedfancy")[0],
    ]
    endpoint = device.play(CONNECTED, steps[0], hostile, steps[1:], device.delivered)
    assert device.answers() == ["strategy", "done"]
    assert device.fetched() == [1]
    assert endpoint.cancelled == []


def test_what_breaks_a_rule_leaves_the_task_that_waits_for_its_turn_alone(device):
    """It waits for the fate of the update in the outbox."""
    second = device.round(2)
    forged = PeerMessage(_NAME, replace(second[0].message, seed=-1))
    device.play(CONNECTED, device.round(), second[0], forged, device.delivered, second[1:])
    assert device.answers() == ["done", "done"]
    assert device.sent() == [1, 1, 2]


def test_a_payload_that_never_comes_keeps_no_announced_round_away(device):
    """Offered for the round behind the announced one, by nobody who has it."""
    never = device.round(5)[0]
    device.play(CONNECTED, never, device.round(4), device.delivered)
    assert device.sent() == [4]


def test_refusals_are_counted_by_rule_and_long_ones_are_cut():
    told = []
    refusals = Refusals(lambda text, *values: told.append(text % values))
    for _ in range(3):
        refusals.note("refused a task", RefusedError("seed", "x" * 10_000))
    refusals.note("ignored a message", RefusedError("seal", "a reason\x1b[2J"))
    assert refusals.by_rule == {"seed": 3, "seal": 1}
    assert told[0].startswith("refused a task: seed: xxx")
    assert all(len(line) < 500 and line.isprintable() for line in told)


def test_of_a_coordinator_that_was_replaced_nothing_is_taken_or_answered(device):
    """What it offers may be what its successor does: a reject would reach that one, too."""
    newer, older = device.announced(epoch=7), device.announced(epoch=6, round_id=2)
    device.play(
        CONNECTED,
        newer,
        older,
        device.round(epoch=6)[0],
        device.round(epoch=7),
        device.delivered,
    )
    assert device.answers() == ["done"]
    assert device.fetched() == [1]
