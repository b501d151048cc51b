"""FedAli by arithmetic; the training program adds 0.1 to every local prototype."""

from dataclasses import replace

import numpy as np
import pytest
from toy_model import GLOBAL, LOCAL, SGD, frozen_map, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.aggregation import MEAN, clipped
from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.types import Payload, ServerState, Update

_LOCAL, _GLOBAL = "state/" + LOCAL, "state/" + GLOBAL


def fedali(model, **settings):
    return build("fedali", {**SGD, **settings}, model)


def run_round(strategy, model, server, tools, state=None):
    payload = strategy.downlink(server, tools.client_id)
    return strategy.client_update(state or strategy.client_init(model), payload, tools)


def update_of(client_id, local, num_examples=1):
    tensors = {"params/w": np.zeros(2, np.float32), _LOCAL: np.array(local, np.float32)}
    return Update(client_id=client_id, round_id=1, num_examples=num_examples, tensors=tensors)


def test_parameters_and_one_prototype_set_travel_each_way(model, make_tools):
    strategy = fedali(model)
    server = strategy.server_init(model, new_rng())
    assert set(strategy.downlink(server, "a").tensors) == {"params/w", _GLOBAL}
    _, update = run_round(strategy, model, server, make_tools("a", [[2, 4]])[0])
    assert set(update.tensors) == {"params/w", _LOCAL}


def test_beta_is_zero_in_round_1_with_its_evaluation_and_the_setting_after(model, make_tools):
    strategy = fedali(model)
    tools, seen = make_tools("a", [[2, 4]])
    server = strategy.server_init(model, new_rng())
    state, update = run_round(strategy, model, server, tools)
    server = strategy.aggregate(server, [update], server_tools())
    state, _ = run_round(strategy, model, server, tools, state)
    assert seen.betas == pytest.approx([0.0, 0.2])
    assert [float(one.buffers["beta"]) for one in seen.evaluated] == pytest.approx([0.0, 0.2])
    assert float(strategy.client_model(state).buffers["beta"]) == pytest.approx(0.2)
    assert float(strategy.server_model(server).buffers["beta"]) == pytest.approx(0.2)


def test_local_prototypes_start_from_the_bundle_s_and_then_from_the_global_ones(model, make_tools):
    strategy = fedali(model)
    tools, seen = make_tools("a", [[2, 4]])
    server = strategy.server_init(model, new_rng())
    state, _ = run_round(strategy, model, server, tools)
    np.testing.assert_allclose(seen.evaluated[0].buffers[LOCAL], [[0.1, 0.1], [10.1, 10.1]])
    np.testing.assert_allclose(seen.evaluated[0].buffers[GLOBAL], [[1, 1], [11, 11]])
    clustered = np.array([[3, 3], [7, 7]], np.float32)
    server = ServerState(round_id=1, tensors={**server.tensors, _GLOBAL: clustered})
    run_round(strategy, model, server, tools, state)
    np.testing.assert_allclose(seen.evaluated[1].buffers[LOCAL], clustered + np.float32(0.1))
    np.testing.assert_array_equal(seen.evaluated[1].buffers[GLOBAL], clustered)


def test_kept_local_prototypes_persist_and_a_newcomer_starts_from_the_global_ones(
    model, make_tools
):
    strategy = fedali(model, keep_local_prototypes=True)
    tools, seen = make_tools("a", [[2, 4]])
    server = strategy.server_init(model, new_rng())
    state, _ = run_round(strategy, model, server, tools)
    clustered = np.array([[3, 3], [7, 7]], np.float32)
    server = ServerState(round_id=1, tensors={**server.tensors, _GLOBAL: clustered})
    run_round(strategy, model, server, tools, state)
    np.testing.assert_allclose(
        seen.evaluated[1].buffers[LOCAL], [[0.2, 0.2], [10.2, 10.2]], rtol=1e-6
    )
    np.testing.assert_array_equal(seen.evaluated[1].buffers[GLOBAL], clustered)
    newcomer, seen = make_tools("b", [[2, 4]])
    run_round(strategy, model, server, newcomer)
    np.testing.assert_allclose(seen.evaluated[0].buffers[LOCAL], clustered + np.float32(0.1))


def test_prototypes_are_clustered_from_their_mean_weighted_by_examples(model):
    """The means lie at 1 and 9.73 on the diagonal, so 6 belongs to the second cluster.

    From the unweighted means, 3 and 9.2, it would belong to the first one, and stay there.
    """
    strategy = fedali(model)
    server = strategy.server_init(model, new_rng())
    updates = [update_of("a", [[0, 0], [10, 10]], 5), update_of("b", [[6, 6], [8.4, 8.4]], 1)]
    expected = np.array([0, (10 + 6 + 8.4) / 3])[:, None] * np.ones(2)
    after = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_allclose(after.tensors[_GLOBAL], expected, rtol=1e-6)


def test_a_cluster_without_points_keeps_the_mean_it_started_from(model):
    """Means [[1, 1], [1, 1]]: equal centres share the lowest label, so the second is empty."""
    strategy = fedali(model)
    updates = [update_of("a", [[0, 0], [2, 2]]), update_of("b", [[2, 2], [0, 0]])]
    after = strategy.aggregate(strategy.server_init(model, new_rng()), updates, server_tools())
    np.testing.assert_allclose(after.tensors[_GLOBAL], [[1, 1], [1, 1]])


def test_an_emptied_cluster_goes_to_the_farthest_prototype_and_the_record_counts_it(model):
    """The same updates: the first 0 or 2 of equal distance leaves, the mean of the others stays."""
    strategy = fedali(model, kmeans_empty="relocate")
    updates = [update_of("a", [[0, 0], [2, 2]]), update_of("b", [[2, 2], [0, 0]])]
    after = strategy.aggregate(strategy.server_init(model, new_rng()), updates, server_tools())
    np.testing.assert_allclose(after.tensors[_GLOBAL], [[2, 2], [0, 0]])
    assert after.figures["block.relocated"] == 1
    assert after.figures["block.relabelled"] == 0.5


def test_the_record_tells_how_far_prototypes_moved_and_how_many_changed_places(model):
    """From [[1, 1], [11, 11]]; of b's two one changes its cluster."""
    strategy = fedali(model)
    updates = [update_of("a", [[0, 0], [10, 10]], 5), update_of("b", [[6, 6], [8.4, 8.4]], 1)]
    after = strategy.aggregate(strategy.server_init(model, new_rng()), updates, server_tools())
    last = (10 + 6 + 8.4) / 3
    moved = np.sqrt((1 + (11 - last) ** 2) / (1 + 121))
    assert after.figures == {
        "block.relocated": 0,
        "block.relabelled": 0.25,
        "block.moved": pytest.approx(moved),
    }


def test_the_server_s_model_takes_the_clustered_prototypes_as_local_ones(model):
    strategy = fedali(model)
    server = strategy.server_init(model, new_rng())
    before = strategy.server_model(server).buffers
    np.testing.assert_array_equal(before[LOCAL], model.buffers[LOCAL])
    after = strategy.aggregate(server, [update_of("a", [[1, 2], [3, 4]])], server_tools())
    buffers = strategy.server_model(after).buffers
    np.testing.assert_array_equal(buffers[LOCAL], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(buffers[GLOBAL], [[1, 2], [3, 4]])


def test_buffers_that_are_no_prototypes_stay_on_the_device(model, make_tools):
    strategy = fedali(model)
    tools, _ = make_tools("a", [[2, 4]])
    start = strategy.client_init(model)
    own = type(start)(
        round_id=3, tensors={**start.tensors, "state/norm.mean": np.full(1, 9, np.float32)}
    )
    server = strategy.server_init(model, new_rng())
    state, _ = strategy.client_update(own, Payload(round_id=4, tensors=server.tensors), tools)
    np.testing.assert_array_equal(state.tensors["state/norm.mean"], [9])


@pytest.mark.parametrize("missing", [LOCAL, GLOBAL, "beta"])
def test_a_model_without_prototypes_is_refused_with_the_remedy(model, missing):
    buffers = {name: value for name, value in model.buffers.items() if name != missing}
    other = replace(model, buffers=frozen_map(buffers))
    with pytest.raises(InputError, match=r"expected a model with ALP layers .* --strategy fedali"):
        fedali(other)


def test_a_model_that_sets_parameters_itself_is_not_mixed(model):
    buffers = frozen_map({**model.buffers, "w_rewritten": [0, 0]})
    rewriting = replace(model, buffers=buffers)
    fedali(rewriting)
    with pytest.raises(InputError, match=r"'fedali': .* got one that sets 'w'"):
        fedali(rewriting, local_init={"kind": "ala"})


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "geometric_median", "multi_krum"])
def test_a_liar_s_prototypes_capture_no_cluster_under_a_robust_rule(model, rule):
    """It stands beside the second cluster, and in its own: the mean follows it."""
    strategy = fedali(model)
    server = strategy.server_init(model, new_rng())
    honest = [update_of(name, [[0, 0], [10, 10]]) for name in "abcd"]
    updates = [*honest, update_of("z", [[400, 400], [400, 400]])]
    tools = replace(server_tools(), aggregator=build_rule(rule, {}))
    after = strategy.aggregate(server, updates, tools).tensors[_GLOBAL]
    np.testing.assert_allclose(after, [[0, 0], [10, 10]], atol=1e-4)
    spoilt = strategy.aggregate(server, updates, server_tools()).tensors[_GLOBAL]
    assert np.abs(spoilt).max() > 50


def test_clipped_prototypes_are_those_that_are_clustered(model):
    """Those of a and b move by the length of 2, z's by 1000 times that: it is shortened to 6."""
    strategy = fedali(model)
    server = strategy.server_init(model, new_rng())
    start = server.tensors[_GLOBAL]
    moves = {"a": [[2, 0], [0, 0]], "b": [[0, 2], [0, 0]], "z": [[0, 0], [2000, 0]]}
    updates = [update_of(name, start + np.array(by, np.float32)) for name, by in moves.items()]
    told = []
    tools = replace(server_tools(), aggregator=clipped(MEAN, 3.0, told.append))
    after = strategy.aggregate(server, updates, tools).tensors[_GLOBAL]
    assert np.abs(after - start).max() <= 6
    assert {(one.position, one.limit) for one in told} >= {(2, 6.0)}
