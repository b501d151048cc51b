"""FedAvg by arithmetic: a full-batch step goes half the way to the mean of the examples."""

import numpy as np
import pytest
from toy_model import LOCAL, SGD, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import DESCRIPTIONS, build
from protofleet.strategies.types import Payload


@pytest.fixture
def strategy(model):
    return build("fedavg", SGD, model)


def test_two_clients_meet_at_the_mean_weighted_by_examples(strategy, model, make_tools):
    state = strategy.server_init(model, new_rng())
    updates = []
    for name, examples in (("a", [[2, 4]]), ("b", [[6, 0], [6, 2], [6, 4]])):
        tools, _ = make_tools(name, examples)
        payload = strategy.downlink(state, name)
        updates.append(strategy.client_update(strategy.client_init(model), payload, tools)[1])
    np.testing.assert_allclose(updates[0].tensors["params/w"], [1, 2])
    np.testing.assert_allclose(updates[1].tensors["params/w"], [3, 1])
    assert [update.num_examples for update in updates] == [1, 3]
    assert updates[0].loss == pytest.approx(10)  # (2² + 4²) / 2
    after = strategy.aggregate(state, updates, server_tools())
    np.testing.assert_allclose(after.tensors["params/w"], [2.5, 1.25])
    assert after.round_id == 1
    assert strategy.downlink(after, "a").round_id == 2


def test_only_parameters_travel_and_buffers_stay(strategy, model, make_tools):
    tools, seen = make_tools("a", [[2, 4]])
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    state, update = strategy.client_update(strategy.client_init(model), payload, tools)
    assert set(payload.tensors) == set(update.tensors) == {"params/w"}
    np.testing.assert_allclose(state.tensors["state/" + LOCAL], [[0.1, 0.1], [10.1, 10.1]])
    _, again = strategy.client_update(state, payload, tools)
    np.testing.assert_allclose(
        seen.evaluated[1].buffers[LOCAL], [[0.2, 0.2], [10.2, 10.2]], rtol=1e-6
    )
    np.testing.assert_array_equal(again.tensors["params/w"], update.tensors["params/w"])


def test_the_evaluated_model_is_the_one_that_was_trained(strategy, model, make_tools):
    tools, seen = make_tools("a", [[2, 4]])
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    state, update = strategy.client_update(strategy.client_init(model), payload, tools)
    evaluated = seen.evaluated[0]
    np.testing.assert_array_equal(evaluated.params["w"], update.tensors["params/w"])
    kept = strategy.client_model(state)
    np.testing.assert_array_equal(kept.params.buffer, evaluated.params.buffer)
    np.testing.assert_array_equal(kept.buffers.buffer, evaluated.buffers.buffer)
    assert update.evaluation.own[0, 0] == 1


def test_the_server_s_model_has_the_mean_and_the_bundle_s_buffers(strategy, model):
    network = strategy.server_model(strategy.server_init(model, new_rng()))
    np.testing.assert_array_equal(network.params.buffer, model.params.buffer)
    np.testing.assert_array_equal(network.buffers.buffer, model.buffers.buffer)


def test_the_client_s_model_may_be_scored_as_it_was_received(model, make_tools):
    strategy = build("fedavg", {**SGD, "score_at": "start"}, model)
    tools, seen = make_tools("a", [[2, 4]])
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    _, update = strategy.client_update(strategy.client_init(model), payload, tools)
    (network,) = seen.evaluated
    np.testing.assert_array_equal(network.params["w"], [0, 0])
    np.testing.assert_array_equal(network.buffers.buffer, model.buffers.buffer)
    np.testing.assert_array_equal(update.tensors["params/w"], [1, 2])


def test_a_payload_without_a_tensor_is_refused(strategy, model, make_tools):
    tools, _ = make_tools("a", [[2, 4]])
    with pytest.raises(InputError, match="tensor 'params/w': expected"):
        strategy.client_update(strategy.client_init(model), Payload(round_id=1, tensors={}), tools)


@pytest.mark.parametrize("score_at", ["start", "end"])
def test_fedavg_c_is_fedavg_and_fine_tunes_the_final_model(model, make_tools, score_at):
    """From the received (3, 1) half the way to (2, 4): (2.5, 2.5), which is what is scored."""
    assert DESCRIPTIONS["fedavg_c"].final_fit
    assert not DESCRIPTIONS["fedavg"].final_fit
    settings = {**SGD, "score_at": score_at}
    strategies = [build(name, settings, model) for name in ("fedavg", "fedavg_c")]
    results = []
    for strategy in strategies:
        tools, seen = make_tools("a", [[2, 4]])
        payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
        state, update = strategy.client_update(strategy.client_init(model), payload, tools)
        results.append((update.tensors["params/w"], seen.evaluated[0].params["w"]))
    np.testing.assert_array_equal(*results)
    tools, seen = make_tools("a", [[2, 4]])
    final = Payload(round_id=9, tensors={"params/w": np.array([3, 1], np.float32)}, final=True)
    _, update = strategies[1].client_update(state, final, tools)
    (scored,) = seen.evaluated
    np.testing.assert_array_equal(scored.params["w"], [2.5, 2.5])
