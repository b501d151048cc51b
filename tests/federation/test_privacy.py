"""``[privacy]`` in a plan: what it goes with, what it tells devices, what a round spends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from altered import altered
from packed import pack_update

from protofleet.errors import InputError
from protofleet.federation.accounting import epsilon_of, sampled_epsilon
from protofleet.federation.noise import repeated_seed
from protofleet.federation.plan import make_plan
from protofleet.federation.records import Costs, EvaluationRecord, Sends, UpdateRecord
from protofleet.federation.schedules.schedule import (
    CloseRound,
    DeviceAppeared,
    OpenRound,
    RoundState,
    Tick,
)
from protofleet.federation.server import Server
from protofleet.federation.settings import (
    AdaptiveClip,
    AggregationSettings,
    CohortSettings,
    PrivacySettings,
    StrategySettings,
)
from protofleet.strategies.types import Evaluation, Update
from protofleet.wire.codecs import Coding

_NOISY = {"noise_multiplier": 2.0, "devices": 10, "delta": 1e-3}


def _plan(
    tiny, *, strategy="fedavg", size="all", cohort=None, rounds=2, aggregation="mean", **privacy
):
    config = msgspec.structs.replace(
        tiny.plan.config,
        rounds=rounds,
        strategy=StrategySettings(name=strategy),
        cohort=CohortSettings(size=size, **(cohort or {})),
        aggregation=AggregationSettings(kind=aggregation),
        privacy=PrivacySettings(**privacy),
    )
    return make_plan(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "scaffold"}, "strategy 'scaffold' .* use one of .*fedavg, .*fedprox"),
        ({"strategy": "local"}, "strategy 'local' .* more of each update than a sum"),
        ({"aggregation": "median"}, "aggregation 'median' .* the noise of .* that of a mean"),
        ({"devices": None}, "privacy.devices: expected how many .* cohort.size is 'all'"),
        ({"delta": 0.1}, "privacy.delta: expected less than one device's share of all, 0.1"),
        (
            {"size": 5, "cohort": {"over_selection": 1.3}},
            "cohort.over_selection: with the noise .* must not depend on others, got 1.3",
        ),
        (
            {"size": 0.5, "sampling": "secret", "cohort": {"selection": "least_recent"}},
            "cohort.selection: with the noise .* must not depend on others, got 'least_recent'",
        ),
        ({"sampling": "secret"}, "sampling = 'secret': expected cohort.size as a fraction"),
        (
            {"rounds": 100, "epsilon_budget": 8.0},
            r"100 rounds spend ε = 27\.2 .* at most 17 rounds or noise_multiplier 4\.81",
        ),
    ],
)
def test_what_noise_cannot_go_with_is_refused_before_any_device_comes(tiny, changes, message):
    with pytest.raises(InputError, match=message):
        _plan(tiny, **{**_NOISY, **changes})


def test_counts_that_a_strategy_needs_cannot_be_switched_off(tiny):
    strategy = altered(
        tiny.plan.strategy,
        description=replace(tiny.plan.strategy.description, class_counts=True),
    )
    from protofleet.federation.privacy import sends_of  # noqa: PLC0415 - beside its test

    for counts, expected in ((None, True), (True, True)):
        privacy = PrivacySettings(counts=counts, **_NOISY)
        config = msgspec.structs.replace(tiny.plan.config, privacy=privacy)
        assert sends_of(config, strategy).counts is expected
    config = msgspec.structs.replace(tiny.plan.config, privacy=PrivacySettings(counts=False))
    with pytest.raises(InputError, match=r"privacy\.counts: strategy 'fedavg' needs"):
        sends_of(config, strategy)


def test_with_noise_devices_tell_no_more_than_they_must(tiny):
    assert _plan(tiny).sends == Sends()
    assert _plan(tiny, **_NOISY).sends == Sends(scores=False, counts=False)
    assert _plan(tiny, scores=True, **_NOISY).sends == Sends(scores=True, counts=False)
    assert _plan(tiny, scores=False).sends.switched_off == "scores, losses and costs"
    assert _plan(tiny, **_NOISY).sends.switched_off.endswith(" and numbers of examples")


def test_a_count_of_the_cohort_is_the_denominator(tiny):
    """And the noise is part of the run: the budget is not, so that it may be raised."""
    plan = _plan(tiny, size=20, **{**_NOISY, "devices": None}, epsilon_budget=50.0)
    assert plan.privacy.mechanism.devices == 20
    raised = _plan(tiny, size=20, **{**_NOISY, "devices": None}, epsilon_budget=60.0)
    assert plan.identity == raised.identity
    assert plan.identity["privacy"] != tiny.plan.identity["privacy"]


def test_a_round_tells_what_all_before_it_have_spent(tiny):
    plan = _plan(tiny, **_NOISY, clip=AdaptiveClip(initial=0.5), noise_seed=3)
    before = replace(plan.server_init(), round_id=4)
    record = plan.privacy.record(before, 3)
    assert (record.clip, record.delta, record.participations) == (0.5, 1e-3, 3)
    assert record.epsilon == epsilon_of(2.0, 3, 1e-3)
    assert record.noise == pytest.approx(2.0 * 0.5 / 10 / np.sqrt(0.95))
    assert record.repeatable
    assert plan.privacy.seed_of(7, lambda _: b"") == repeated_seed(3, 7)
    assert not _plan(tiny, **_NOISY).privacy.record(before, 1).repeatable


def _updates(tiny):
    return [
        Update(client_id=c, round_id=1, num_examples=n, tensors=tiny.tensors())
        for c, n in (("a", 3), ("b", 1000))
    ]


def _admitted(lengths):
    """What the coordinator has noted: of ``c`` the longest way, which is left out without noise."""
    return [
        SimpleNamespace(
            record=UpdateRecord(client_id=client_id, round_id=1, num_examples=3),
            norms={"params": length},
        )
        for client_id, length in lengths.items()
    ]


def test_no_device_decides_what_another_counts_for(tiny):
    """With noise nobody is left out, no bound is learned, and a spoilt state is not committed."""
    server = Server.of(_plan(tiny, **_NOISY, noise_seed=1))
    start, updates = server.plan.server_init(), _updates(tiny)
    noted = _admitted({"a": 1.0, "b": 1e9})
    outcome = server.aggregate(start, 1, updates, noted, final=False)
    other = server.aggregate(start, 1, updates, _admitted({"a": 1e9, "b": 0.0}), final=False)
    assert (outcome.left_out, outcome.limited, outcome.dropped) == ((), (), False)
    for name, value in outcome.state.tensors.items():
        np.testing.assert_array_equal(value, other.state.tensors[name])
    assert server.update_norms(noted) == {}
    assert Server.of(tiny.plan).update_norms(noted) != {}
    loud = Server.of(_plan(tiny, **{**_NOISY, "noise_multiplier": 1e6}, clip=1e6))
    spoilt = loud.aggregate(start, 1, updates, noted, final=False)
    assert (spoilt.dropped, spoilt.state.round_id) == (True, 1)
    assert spoilt.state.tensors is start.tensors


def test_the_seed_of_a_round_decides_its_bits(tiny):
    """The whole path of the server: other seeds, other noise."""
    server = Server.of(_plan(tiny, **_NOISY))
    start, updates = server.plan.server_init(), _updates(tiny)
    noted = _admitted({"a": 1.0, "b": 1.0})

    def bits(seed):
        outcome = server.aggregate(
            start, 1, updates, noted, final=False, noise_seed=lambda _: seed * 32
        )
        return {name: value.tobytes() for name, value in outcome.state.tensors.items()}

    assert bits(b"x") == bits(b"x") != bits(b"y")
    final = server.aggregate(start, 1, updates, noted, final=True, noise_seed=None)
    assert final.state.tensors is start.tensors


def test_what_a_device_says_all_the_same_is_dropped(tiny):
    """From the update, its record, and the blob that is spooled."""
    server = Server.of(_plan(tiny, **_NOISY))
    told = replace(
        _updates(tiny)[1], evaluation=Evaluation(own=np.eye(3, dtype=np.int64)), loss=0.5
    )
    decoded = server.admit(
        pack_update(told, Costs(infer_ms=(1.0,))),
        Coding(),
        baseline={},
        client_id="b",
        round_id=1,
        class_counts=None,
        num_examples=None,
        bounds={},
    )
    assert decoded.record == UpdateRecord(client_id="b", round_id=1, num_examples=1)
    assert decoded.record.evaluation == EvaluationRecord()
    assert (decoded.update.num_examples, decoded.update.evaluation.own) == (1, None)
    assert b'infer_ms\\":[1' not in decoded.to_raw(max_bytes=10_000)
    assert not decoded.is_whole


def test_secretly_drawn_cohorts_may_be_empty_and_nobody_is_substituted(tiny):
    """Each device by itself; the round closes at its deadline whoever has answered."""
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    plan = _plan(tiny, size=0.25, sampling="secret", **_NOISY)
    record = plan.privacy.record(plan.server_init(), 1)
    assert record.epsilon == pytest.approx(sampled_epsilon(2.0, 0.25, 1, 1e-3))
    tosses = iter([False, True, False, False])
    schedule = replace(plan.schedule(plan.server_init), is_drawn=lambda: next(tosses), minimum=3)
    state = RoundState()
    for name in "abc":
        state, actions = schedule.step(state, DeviceAppeared(name), 0.0)
    assert actions == (OpenRound(1, ("b",), 1, False),)  # noqa: FBT003 - the action's own order
    assert schedule.step(state, Tick(), 1.0)[1] == ()
    closed, actions = schedule.step(state, Tick(), schedule.deadline_s)
    assert actions == (CloseRound(1, (), False),)  # noqa: FBT003 - as above
    assert closed.attempt == 0
    nobody = replace(schedule, is_drawn=lambda: False)
    state = RoundState()
    for name in "abc":
        state, actions = nobody.step(state, DeviceAppeared(name), 0.0)
    assert actions == (OpenRound(1, (), 0, False),)  # noqa: FBT003 - as above
    assert nobody.step(state, Tick(), 0.1)[1] == (CloseRound(1, (), False),)  # noqa: FBT003


def test_the_draw_is_of_its_rate_and_not_of_the_federation_s_seed(tiny):
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    plan = _plan(tiny, size=0.25, sampling="secret", **_NOISY)
    draws = [plan.privacy.draw() for _ in range(4000)]
    assert abs(np.mean(draws) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000)
    assert draws != [plan.privacy.draw() for _ in range(4000)]
    assert _plan(tiny, size=0.25, **_NOISY).privacy.draw is None
