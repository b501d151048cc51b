from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from packed import pack_update

from protofleet.errors import InputError
from protofleet.federation.coding import update_baseline
from protofleet.federation.plan import make_plan
from protofleet.federation.records import Costs
from protofleet.federation.replay import Admission, replay
from protofleet.federation.schedules.schedule_settings import ScheduleSettings
from protofleet.federation.server import Server
from protofleet.federation.settings import (
    AggregationSettings,
    CohortSettings,
    PrivacySettings,
    RoundSettings,
    StrategySettings,
)
from protofleet.strategies import DESCRIPTIONS
from protofleet.strategies.types import Update
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding

_BUFFERED = ScheduleSettings(kind="buffered", buffer=2)


def _buffered(**changes):
    return ScheduleSettings(kind="buffered", buffer=2, **changes)


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        (_buffered(staleness="constant"), [1, 1, 1, 1]),
        (_BUFFERED, [1, 2**-0.5, 3**-0.5, 6**-0.5]),
        (_buffered(exponent=2.0), [1, 1 / 4, 1 / 9, 1 / 36]),
        (_buffered(staleness="hinge"), [1, 1, 1, 1 / 11]),
        (_buffered(staleness="hinge", tolerated=1, slope=1.0), [1, 1, 1 / 2, 1 / 5]),
    ],
)
def test_what_an_update_of_0_1_2_and_5_rounds_ago_counts(settings, weights):
    """FedBuff's 1/sqrt(1 + τ), and FedAsync's three functions with the numbers of its paper."""
    np.testing.assert_allclose([settings.weight(late) for late in (0, 1, 2, 5)], weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "buffered"}, "`buffer`: expected at least 1"),
        ({"kind": "buffered", "buffer": 0}, "`buffer`: expected at least 1"),
        ({"buffer": 3}, "`buffer`: expected kind"),
        ({"kind": "buffered", "buffer": 3, "late": "weighted"}, "`late`: expected kind"),
        ({"server_lr": 0.5}, "`server_lr`: expected kind = "),
        ({"late": "weighted", "concurrency": 3}, "`concurrency`: expected kind"),
        ({"late": "weighted", "max_staleness": 0}, "`max_staleness`: expected 1 to"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ScheduleSettings(**changes)


@pytest.mark.parametrize("schedule", [_BUFFERED, ScheduleSettings(late="weighted")])
@pytest.mark.parametrize("name", ["fedamp", "feddyn", "local", "scaffold"])
def test_strategies_that_need_rounds_say_so(tiny, schedule, name):
    """By what they say of themselves."""
    takers = ", ".join(sorted(one for one, its in DESCRIPTIONS.items() if its.takes_late))
    assert "fedavg" in takers
    change = {"schedule": schedule, "strategy": StrategySettings(name=name)}
    with pytest.raises(InputError, match=f"'{name}' needs rounds.*use one of {takers}"):
        make_plan(msgspec.structs.replace(tiny.plan.config, **change))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregation": AggregationSettings(kind="median")}, "aggregation 'median' compares"),
        ({"cohort": CohortSettings(size=2)}, r"cohort.size: a buffered schedule has no cohort"),
        ({"round": RoundSettings(every_s=60.0)}, r"round.every_s: a buffered schedule"),
        (
            {
                "privacy": PrivacySettings(noise_multiplier=1.0, devices=4, delta=1e-3),
            },
            "the noise of \\[privacy\\] is accounted by rounds",
        ),
    ],
)
def test_what_compares_or_counts_rounds_is_refused(tiny, changes, message):
    config = msgspec.structs.replace(tiny.plan.config, schedule=_BUFFERED, **changes)
    with pytest.raises(InputError, match=message):
        make_plan(config)


def _server(tiny, schedule):
    return Server.of(make_plan(msgspec.structs.replace(tiny.plan.config, schedule=schedule)))


class _Moving:
    """Clients that send what they got with 1, 2, 4 … added, by their place in the alphabet."""

    def __init__(self):
        self.asked = []

    def __call__(self, client_id, order, sent):
        self.asked.append((client_id, order.round_id))
        payload, _ = blobs.decode(sent.raw, max_bytes=len(sent.raw))
        step = np.float32(2 ** "abcd".index(client_id))
        update = Update(
            client_id=client_id,
            round_id=order.round_id,
            num_examples=10,
            tensors={name: value + step for name, value in payload.items()},
        )
        return pack_update(update, Costs()), Coding()


def _moves(tiny, schedule, *order):
    """By how much each round moves the tensors."""
    server = _server(tiny, schedule)
    before = update_baseline(server.plan.model, {})
    moves = []
    for state in replay(server, [Admission(*one) for one in order], _Moving()):
        (name, *_) = state.tensors
        moves.append(float((state.tensors[name] - before[name]).mean()))
        before = state.tensors
    return moves


def test_a_late_difference_counts_in_part_on_top_of_the_present_state(tiny):
    """Round 2: b of this state moves by 2, a of the one before by 1 / sqrt(2); the mean of both."""
    moves = _moves(tiny, _BUFFERED, (1, "c", 1), (1, "d", 1), (2, "a", 1), (2, "b", 2))
    np.testing.assert_allclose(moves, [6, (2 + 2**-0.5) / 2], rtol=1e-4)


def test_the_server_s_rate_and_mixing_of_models(tiny):
    """FedAsync with α = 0.5: a late model pulls the state back to where it came from."""
    rate = _buffered(server_lr=0.5)
    np.testing.assert_allclose(_moves(tiny, rate, (1, "c", 1), (1, "d", 1)), [3], rtol=1e-4)
    models = ScheduleSettings(
        kind="buffered", buffer=1, mixing="model", server_lr=0.5, staleness="constant"
    )
    # After round 1 the state is 4 up; a's model is 1 up: half of the way from 4 to 1.
    moves = _moves(tiny, models, (1, "d", 1), (2, "a", 1))
    np.testing.assert_allclose(moves, [4, -1.5], rtol=1e-4)


def test_one_device_may_have_a_late_update_beside_its_other(tiny):
    order = [(1, "c", 1), (1, "d", 1), (2, "a", 1), (2, "a", 2)]
    np.testing.assert_allclose(_moves(tiny, _BUFFERED, *order), [6, (1 + 2**-0.5) / 2], rtol=1e-4)


def test_without_late_updates_it_is_a_synchronous_round_to_the_bit(tiny):
    order = [Admission(1, "a", 1), Admission(1, "c", 1), Admission(2, "a", 2), Admission(2, "c", 2)]
    states = [
        list(replay(_server(tiny, one), order, _Moving()))
        for one in (ScheduleSettings(), _BUFFERED)
    ]
    for one, two in zip(*states, strict=True):
        assert one.round_id == two.round_id
        assert [v.tobytes() for v in one.tensors.values()] == [
            v.tobytes() for v in two.tensors.values()
        ]


def test_clients_are_asked_in_the_order_of_admission(tiny):
    moving = _Moving()
    order = [Admission(1, "c", 1), Admission(1, "b", 1), Admission(2, "a", 1)]
    list(replay(_server(tiny, _BUFFERED), order, moving))
    assert moving.asked == [("c", 1), ("b", 1), ("a", 1)]


def test_a_late_update_that_is_too_long_is_told_apart_by_its_round(tiny):
    """Its device may have another one in the round, which is not clipped."""
    server = _server(tiny, _BUFFERED)
    states = list(replay(server, [Admission(1, "a", 1)], _Moving()))
    updates, admitted = [], []
    for client_id, round_id, scale in (("a", 2, 1), ("a", 1, 100), ("b", 2, 1), ("c", 2, 1)):
        tensors = {n: np.full_like(v, scale) for n, v in states[0].tensors.items()}
        kept = tensors if round_id == 1 else {n: states[0].tensors[n] + 1 for n in tensors}
        update = Update(client_id=client_id, round_id=round_id, num_examples=5, tensors=kept)
        blob = pack_update(replace(update, tensors=kept), Costs())
        decoded = server.admit(
            blob,
            Coding(),
            baseline={},
            client_id=client_id,
            round_id=round_id,
            class_counts=None,
            num_examples=None,
            bounds={},
        )
        updates.append(decoded.update)
        admitted.append(decoded)
    outcome = server.aggregate(states[0], 2, updates, admitted, final=False)
    assert [one.client_id for one in outcome.limited] == ["a#1"]
