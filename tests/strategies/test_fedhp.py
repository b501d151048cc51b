"""FedHP by arithmetic: every step of rate 1/2 goes half the way."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import prototypes as oracle
from toy_model import SGD, array, frozen_map, new_rng, server_tools
from toy_prototypes import HEAD, prototype_model, with_programs

from protofleet.errors import InputError
from protofleet.strategies import DESCRIPTIONS, build
from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.optimisers import Adam, Sgd
from protofleet.strategies.types import ServerState, Update
from protofleet.tensors import Model, blobs

_KEY = "params/" + HEAD
_HALF = {"kind": "sgd", "lr": 0.5}
_OLD = [[1, 0], [0, 1]]


def fedhp(model=None, **settings):
    chosen = {**SGD, "prototype_optimiser": _HALF, "sphere_steps": 0, **settings}
    return build("fedhp", chosen, prototype_model() if model is None else model)


def started(strategy, prototypes=None):
    """The server before round 1, with given prototypes in the place of the spread ones."""
    server = strategy.server_init(prototype_model(), new_rng())
    if prototypes is None:
        return server
    given_ones = {_KEY: array(prototypes), "anchors": array(prototypes)}
    return dataclasses.replace(server, tensors={**server.tensors, **given_ones})


def update_of(client_id, prototypes, counts, num_examples=None):
    return Update(
        client_id=client_id,
        round_id=1,
        num_examples=sum(counts) if num_examples is None else num_examples,
        tensors={} if prototypes is None else {_KEY: array(prototypes)},
        class_counts=np.array(counts),
    )


@pytest.fixture
def run(make_tools):
    """One client's round; returns its new state, its update and what its program saw."""

    def run_round(strategy, server, client_id="a", *, state=None, examples=((2, 4),), y=(0,)):
        tools, seen = make_tools(client_id, examples)
        tools = with_programs(tools, seen, y)
        state = strategy.client_init(prototype_model()) if state is None else state
        payload = strategy.downlink(server, client_id)
        return *strategy.client_update(state, payload, tools), seen

    return run_round


def test_defaults_but_the_batch_size_are_those_of_the_published_code():
    settings = build("fedhp", {}, prototype_model()).settings
    assert settings.optimiser == Sgd(lr=0.01, momentum=0.9, weight_decay=1e-4)
    assert settings.prototype_optimiser == Adam(lr=0.005, eps=1e-8, eps_form="torch")
    assert (settings.epochs, settings.batch_size, settings.clip_norm) == (5, 16, None)
    assert (settings.anchor_weight, settings.regulariser) == (0.1, "mean")
    assert settings.prototype_sum == "normalised"


_TEN = {"num_classes": 10, "input_shape": (2,), "head": (HEAD,)}


def test_the_server_starts_from_anchors_spread_over_the_sphere():
    """Ten unit vectors: no two nearer than a right angle, where the start is all in one corner."""
    params = frozen_map({"w": [0, 0], HEAD: np.zeros((10, 32))})
    model = Model(params=params, buffers=frozen_map({}), **_TEN)
    server = fedhp(model, sphere_steps=1000).server_init(model, new_rng())
    prototypes = server.tensors[_KEY]
    np.testing.assert_array_equal(prototypes, server.tensors["anchors"])
    cosines = prototypes @ prototypes.T
    np.testing.assert_allclose(np.diag(cosines), 1, rtol=1e-5)
    assert (cosines - 2 * np.eye(10)).max() < 0
    start = fedhp(model).server_init(model, new_rng()).tensors[_KEY]
    drawn = new_rng().random((10, 32), dtype=np.float32)
    np.testing.assert_allclose(start, drawn / np.linalg.norm(drawn, axis=1)[:, None], rtol=1e-6)


@pytest.mark.parametrize(
    ("start", "trained", "own"),
    [
        ("auto", False, False),
        ("auto", True, True),
        ("bundle", False, True),
        ("spread", True, False),
    ],
)
def test_trained_prototypes_are_where_a_bundle_begins(start, trained, own):
    values = np.arange(320, dtype=np.float32).reshape(10, 32)
    params = frozen_map({"w": [0, 0], HEAD: values})
    model = Model(params=params, buffers=frozen_map({}), **{**_TEN, "trained_prototypes": trained})
    server = fedhp(model, start=start).server_init(model, new_rng())
    assert np.array_equal(server.tensors[_KEY], values) == own
    np.testing.assert_array_equal(server.tensors[_KEY], server.tensors["anchors"])


def test_only_prototypes_travel_each_way(run):
    strategy = fedhp()
    server = started(strategy)
    assert set(strategy.downlink(server, "a").tensors) == {_KEY}
    _, update, _ = run(strategy, server)
    assert set(update.tensors) == {_KEY}


def test_ten_prototypes_of_1024_numbers_cost_their_40_960_bytes_and_2_percent_at_most():
    """What a frame adds is the header of the blob: names, shapes, offsets."""
    params = frozen_map({"w": [0, 0], HEAD: np.zeros((10, 1024))})
    model = Model(params=params, buffers=frozen_map({}), **_TEN)
    strategy = fedhp(model)
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    size = len(blobs.encode(payload.tensors))
    assert 40_960 < size < 40_960 * 1.02


def test_a_round_by_hand(run):
    """Anchors a = the received prototypes p: their pull is 0, so p stays; w goes half way to x."""
    strategy = fedhp()
    state, update, seen = run(strategy, started(strategy, [[3, 0], [0, 5]]))
    np.testing.assert_array_equal(update.tensors[_KEY], [[3, 0], [0, 5]])
    np.testing.assert_array_equal(state.tensors["params/w"], [1, 2])
    np.testing.assert_array_equal(state.tensors["anchors"], [[3, 0], [0, 5]])
    assert seen.evaluated[0].params["w"].tolist() == [1, 2]
    assert update.loss == pytest.approx((2**2 + 4**2) / 2)


@pytest.mark.parametrize(("regulariser", "weight"), [("mean", 0.4), ("sum", 0.8)])
def test_the_mean_over_two_classes_is_half_as_strong_as_the_sum(run, regulariser, weight):
    """Round 2: from p = 1 towards the anchor 3 by 1/2 · weight of the gap."""
    strategy = fedhp(anchor_weight=0.8, regulariser=regulariser)
    server = started(strategy, [[3, 0], [0, 3]])
    state, update, _ = run(strategy, server)
    server = strategy.aggregate(
        server, [dataclasses.replace(update, class_counts=np.array([1, 0]))], server_tools()
    )
    moved = {**server.tensors, _KEY: array([[1, 0], [0, 1]])}
    server = ServerState(round_id=1, tensors=moved)
    _, update, seen = run(strategy, server, state=state)
    assert seen.batches[0]["weight"] == np.float32(weight)
    assert seen.batches[0]["weight"].dtype == np.float32
    np.testing.assert_array_equal(seen.batches[0][HEAD], [[1, 0], [0, 1]])
    np.testing.assert_array_equal(seen.batches[0]["anchors"], [[3, 0], [0, 3]])
    expected = 1 + weight * (3 - 1) / 2
    np.testing.assert_allclose(update.tensors[_KEY], np.eye(2) * expected, rtol=1e-6)


def test_backbone_and_both_optimisers_go_on_where_they_were(run):
    """Rate 1/2 and momentum 1/2 towards x = (2, 4), for w[0]: v = -2, w = 1; v = -1 - 1, w = 2."""
    half = {**_HALF, "momentum": 0.5}
    strategy = fedhp(optimiser=half, prototype_optimiser=half, anchor_weight=2.0)
    server = started(strategy, [[4, 0], [0, 4]])
    server = dataclasses.replace(server, round_id=1)
    moved = {**server.tensors, _KEY: array([[0, 0], [0, 0]])}
    server = dataclasses.replace(server, tensors=moved)
    state, update, _ = run(strategy, server)
    np.testing.assert_array_equal(state.tensors["params/w"], [1, 2])
    np.testing.assert_array_equal(update.tensors[_KEY], [[2, 0], [0, 2]])
    # The received prototypes replace the client's own, their velocity stays: v = -2 - 4, p = 3.
    state, update, _ = run(strategy, server, state=state)
    np.testing.assert_array_equal(state.tensors["params/w"], [2, 4])
    np.testing.assert_array_equal(update.tensors[_KEY], [[3, 0], [0, 3]])


def test_adam_of_the_prototypes_counts_its_steps_across_rounds(run):
    strategy = fedhp(prototype_optimiser={"kind": "adam"})
    server = started(strategy)
    state, _, _ = run(strategy, server)
    state, _, _ = run(strategy, server, state=state)
    assert int(state.tensors["optimiser/1.steps"]) == 2


def test_anchors_go_down_until_the_server_has_used_an_update_of_the_client(run):
    """In round 1 the prototypes are the anchors; "late" trained, but its update came too late."""
    strategy = fedhp()
    server = started(strategy)
    late, _, _ = run(strategy, server, "late")
    _, update, _ = run(strategy, server, "a")
    update = dataclasses.replace(update, class_counts=np.array([1, 0]))
    server = strategy.aggregate(server, [update], server_tools())
    restored, _ = blobs.decode(blobs.encode(server.tensors), max_bytes=1 << 20)
    server = dataclasses.replace(server, tensors=restored)
    sent = {name: set(strategy.downlink(server, name).tensors) for name in ("a", "late", "new")}
    assert sent == {"a": {_KEY}, "late": {_KEY, "anchors"}, "new": {_KEY, "anchors"}}
    for before in (None, late):
        state, _, _ = run(strategy, server, "late", state=before)
        np.testing.assert_array_equal(state.tensors["anchors"], server.tensors["anchors"])


def test_a_client_that_lost_its_anchors_abstains_and_gets_them_again(run):
    strategy = fedhp()
    server = started(strategy)
    server = strategy.aggregate(server, [update_of("a", _OLD, [1, 1])], server_tools())
    fresh, update, seen = run(strategy, server, "a")
    assert update.tensors == {}
    strategy.uplink.check(update.tensors)
    assert np.isnan(update.loss)
    assert seen.batches == []
    assert fresh.round_id == 2
    after = strategy.aggregate(server, [update, update_of("b", _OLD, [1, 1])], server_tools())
    assert "anchors" in strategy.downlink(after, "a").tensors
    assert "anchors" not in strategy.downlink(after, "b").tensors
    state, update, _ = run(strategy, after, "a", state=fresh)
    assert set(update.tensors) == {_KEY}
    np.testing.assert_array_equal(state.tensors["anchors"], after.tensors["anchors"])


def test_a_round_of_abstentions_changes_no_prototype():
    strategy = fedhp(prototype_sum="printed")
    server = started(strategy)
    after = strategy.aggregate(server, [update_of("a", None, [1, 1])], server_tools())
    assert after.round_id == 1
    np.testing.assert_array_equal(after.tensors[_KEY], server.tensors[_KEY])


def test_prototypes_are_weighted_by_the_class_s_share_of_the_client_s_examples():
    """Shares of class 0: 3/4 and 1/4 (not 3 and 10): 3/4·1 + 1/4·5 = 2 of a sum of 1."""
    strategy = fedhp()
    updates = [
        update_of("a", [[1, 1], [2, 2]], [3, 1]),
        update_of("b", [[5, 5], [6, 6]], [10, 30]),
    ]
    after = strategy.aggregate(started(strategy), updates, server_tools())
    np.testing.assert_allclose(after.tensors[_KEY], [[2, 2], [5, 5]], rtol=1e-6)


@pytest.mark.parametrize("prototype_sum", ["normalised", "printed"])
def test_a_class_that_nobody_has_keeps_its_prototype(prototype_sum):
    strategy = fedhp(prototype_sum=prototype_sum)
    updates = [update_of("a", [[1, 1], [2, 2]], [3, 0]), update_of("b", [[5, 5], [6, 6]], [1, 0])]
    after = strategy.aggregate(started(strategy, [[7, 7], [8, 9]]), updates, server_tools())
    np.testing.assert_allclose(after.tensors[_KEY], [[3, 3], [8, 9]], rtol=1e-6)


def test_the_printed_aggregation_shrinks_prototypes_by_the_number_of_classes():
    """Alike clients with C balanced classes: every w_ij is 1/C, so eq. 5 gives the mean over C."""
    strategy = fedhp(prototype_sum="printed")
    updates = [update_of(name, [[1, 2], [3, 4]], [5, 5]) for name in "abc"]
    after = strategy.aggregate(started(strategy), updates, server_tools())
    np.testing.assert_allclose(after.tensors[_KEY], [[0.5, 1], [1.5, 2]], rtol=1e-6)


def test_eq_5_as_printed_takes_no_rule_but_the_mean():
    """A federation that chooses another is told before it begins; whoever calls it, at the call."""
    strategy = fedhp(prototype_sum="printed")
    assert not strategy.description.takes_rule
    assert fedhp().description.takes_rule
    median = dataclasses.replace(server_tools(), aggregator=build_rule("median", {}))
    updates = [update_of("a", _OLD, [1, 1])]
    with pytest.raises(InputError, match=r"prototype_sum = 'printed' .* aggregation 'median'"):
        strategy.aggregate(started(strategy), updates, median)
    fedhp().aggregate(started(strategy), updates, median)


@given(
    data=st.data(),
    clients=st.integers(1, 4),
    prototype_sum=st.sampled_from(["normalised", "printed"]),
)
def test_aggregation_is_that_of_exact_arithmetic(data, clients, prototype_sum):
    floats = st.floats(-10, 10, width=32)
    counts = [
        data.draw(st.lists(st.integers(0, 50), min_size=2, max_size=2).filter(any))
        for _ in range(clients)
    ]
    prototypes = [
        np.array(data.draw(st.lists(floats, min_size=4, max_size=4))).reshape(2, 2)
        for _ in range(clients)
    ]
    updates = [
        update_of(f"client-{index}", prototype, count)
        for index, (prototype, count) in enumerate(zip(prototypes, counts, strict=True))
    ]
    strategy = fedhp(prototype_sum=prototype_sum)
    after = strategy.aggregate(started(strategy, _OLD), updates, server_tools())
    shares = [[Fraction(n, sum(count)) for n in count] for count in counts]
    divisor = clients if prototype_sum == "printed" else None
    expected = oracle.weighted_rows(prototypes, shares, _OLD, divisor)
    np.testing.assert_allclose(after.tensors[_KEY], expected, rtol=1e-6, atol=1e-6)


def test_counts_come_from_the_registration_and_must_be_there():
    strategy = fedhp()
    update = dataclasses.replace(update_of("a", _OLD, [1, 1]), class_counts=None)
    with pytest.raises(InputError, match="expected registered counts of 2 classes, got none"):
        strategy.aggregate(started(strategy), [update], server_tools())


def test_every_client_fits_once_more_after_the_last_round():
    assert DESCRIPTIONS["fedhp"].final_fit
    assert DESCRIPTIONS["fedhp"].class_counts


def test_a_model_without_learned_prototypes_is_refused_with_the_remedy(model):
    with pytest.raises(InputError, match=r"a parameter 'prototypes'.*--head-kind prototypes"):
        fedhp(model)
    params = frozen_map({"w": [0, 0], HEAD: np.zeros((3, 2))})
    with pytest.raises(InputError, match="of 2 rows"):
        fedhp(Model(params=params, buffers=frozen_map({}), **{**_TEN, "num_classes": 2}))


@pytest.mark.parametrize(
    "wrong",
    [{"anchor_weight": -1}, {"regulariser": "max"}, {"sphere_steps": -1}, {"sphere_momentum": 2}],
)
def test_settings_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        fedhp(**wrong)
