"""FedProto by arithmetic: features are x + w, and every step of rate 1/2 goes half the way."""

import numpy as np
import pytest
from toy_model import SGD, array, changed, frozen_map, new_rng, server_tools
from toy_prototypes import prototype_model, registered, with_programs

from protofleet.strategies import DESCRIPTIONS, build
from protofleet.strategies.types import ServerState, Update
from protofleet.tensors import Model, blobs

_EXAMPLES = ((2, 4), (4, 0), (6, 2))
_CLASSES = (0, 1, 0)


def fedproto(model=None, **settings):
    return build("fedproto", {**SGD, **settings}, prototype_model() if model is None else model)


def server_of(prototypes, present, round_id=1):
    tensors = {"prototypes": array(prototypes), "present": np.array(present, np.uint8)}
    return ServerState(round_id=round_id, tensors=tensors)


def update_of(client_id, prototypes, counts):
    return Update(
        client_id=client_id,
        round_id=1,
        num_examples=sum(counts),
        tensors={"prototypes": array(prototypes)},
        class_counts=np.array(counts),
    )


@pytest.fixture
def run(make_tools):
    """One client's round; returns its new state, its update and what its program saw."""

    def run_round(strategy, server, *, state=None, y=_CLASSES):
        tools, seen = make_tools("a", _EXAMPLES)
        tools = with_programs(tools, seen, y)
        scores = []

        def evaluate(network, *, score=None):
            scores.append(score)
            return tools.evaluate(network, score=score)

        seen.scores = scores
        state = strategy.client_init(prototype_model()) if state is None else state
        scored = changed(tools, evaluate=evaluate)
        state, update = strategy.client_update(state, strategy.downlink(server, "a"), scored)
        return state, registered(update, tools), seen

    return run_round


def test_no_parameter_travels(run):
    strategy = fedproto()
    server = strategy.server_init(prototype_model(), new_rng())
    payload = strategy.downlink(server, "a").tensors
    assert {name: value.shape for name, value in payload.items()} == {
        "prototypes": (2, 2),
        "present": (2,),
    }
    _, update, _ = run(strategy, server)
    assert {name: value.shape for name, value in update.tensors.items()} == {"prototypes": (2, 2)}


def test_512_features_of_10_classes_cost_their_20_480_bytes_and_2_percent_at_most():
    """What a frame adds: the header of the blob, and one byte per class that says it is present."""
    params = frozen_map({"head.weight": np.zeros((10, 512))})
    model = Model(
        params=params, buffers=frozen_map({}), num_classes=10, input_shape=(2,), features=512
    )
    strategy = fedproto(model)
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    assert 20_480 < len(blobs.encode(payload.tensors)) < 20_480 * 1.02


def test_prototypes_are_means_of_the_final_model_s_features(run):
    """w goes half the way from 0 to the mean (4, 2): features are x + (2, 1)."""
    strategy = fedproto()
    _, update, seen = run(strategy, strategy.server_init(prototype_model(), new_rng()))
    np.testing.assert_array_equal(seen.batches[0]["present"], [0, 0])
    np.testing.assert_array_equal(update.tensors["prototypes"], [[6, 4], [6, 1]])


def test_a_class_that_the_client_lacks_is_a_row_of_zeros_without_weight(run):
    strategy = fedproto()
    server = server_of([[1, 1], [8, 9]], [1, 1])
    _, update, _ = run(strategy, server, y=(0, 0, 0))
    np.testing.assert_array_equal(update.tensors["prototypes"][1], [0, 0])
    after = strategy.aggregate(server, [update], server_tools())
    np.testing.assert_array_equal(after.tensors["prototypes"][1], [8, 9])


def test_training_is_pulled_to_the_present_prototypes_only(run):
    """Gaps of class 0 to (0, 0) from w = 0: (2, 4), (6, 2), class 1 none: mean (8, 6)/3, times 1/2.

    Half the gradient (-4, -2) + (8, 6)/6 makes w = (4/3, 1/2).
    """
    strategy = fedproto(prototype_weight=0.5)
    state, _, seen = run(strategy, server_of([[0, 0], [50, 50]], [1, 0]))
    (batch,) = seen.batches
    assert batch["present"].dtype == np.float32
    assert batch["weight"] == np.float32(0.5)
    np.testing.assert_allclose(state.tensors["params/w"], [4 / 3, 1 / 2], rtol=1e-6)


def test_weight_1_is_the_default():
    assert fedproto().settings.prototype_weight == 1.0


def test_the_model_stays_on_the_device(run):
    """Half the way to the mean (4, 2), and from there half the rest, without any pull."""
    strategy = fedproto(prototype_weight=0)
    server = server_of([[0, 0], [0, 0]], [1, 1])
    state, _, _ = run(strategy, server)
    state, _, _ = run(strategy, server, state=state)
    np.testing.assert_array_equal(state.tensors["params/w"], [3, 1.5])


def test_the_head_predicts_until_there_are_prototypes_and_then_the_nearest(run):
    strategy = fedproto()
    state, _, seen = run(strategy, strategy.server_init(prototype_model(), new_rng()))
    assert seen.scores == [None]
    assert strategy.client_score(state) is None
    assert strategy.client_score(strategy.client_init(prototype_model())) is None
    state, _, seen = run(strategy, server_of([[0, 0], [3, 4]], [1, 1]), state=state)
    for score in (*seen.scores, strategy.client_score(state)):
        np.testing.assert_array_equal(score(array([[0, 1], [3, 3]])), [[-1, -18], [-18, -1]])


def test_a_class_without_a_prototype_is_never_predicted(run):
    strategy = fedproto()
    state, _, _ = run(strategy, server_of([[0, 0], [3, 4]], [1, 0]))
    scores = strategy.client_score(state)(array([[3, 4]]))
    np.testing.assert_array_equal(scores, [[-25, -np.inf]])


def test_prototypes_are_averaged_by_the_class_s_examples():
    """Class 0: (3·1 + 1·5)/4 = 2; class 1: only the second has it."""
    strategy = fedproto()
    updates = [
        update_of("a", [[1, 1], [0, 0]], [3, 0]),
        update_of("b", [[5, 5], [6, 6]], [1, 30]),
    ]
    server = strategy.server_init(prototype_model(), new_rng())
    after = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_array_equal(after.tensors["prototypes"], [[2, 2], [6, 6]])
    np.testing.assert_array_equal(after.tensors["present"], [1, 1])
    assert after.tensors["present"].dtype == np.uint8


def test_a_class_that_nobody_has_stays_absent_and_one_that_was_there_stays_present():
    strategy = fedproto()
    only = [update_of("a", [[1, 2], [0, 0]], [3, 0])]
    server = strategy.server_init(prototype_model(), new_rng())
    after = strategy.aggregate(server, only, server_tools())
    np.testing.assert_array_equal(after.tensors["present"], [1, 0])
    before = server_of([[0, 0], [8, 9]], [0, 1])
    after = strategy.aggregate(before, only, server_tools())
    np.testing.assert_array_equal(after.tensors["prototypes"], [[1, 2], [8, 9]])
    np.testing.assert_array_equal(after.tensors["present"], [1, 1])


def test_one_client_gets_its_own_prototypes_back(run):
    strategy = fedproto()
    server = strategy.server_init(prototype_model(), new_rng())
    _, update, _ = run(strategy, server)
    after = strategy.aggregate(server, [update], server_tools())
    np.testing.assert_array_equal(after.tensors["prototypes"], update.tensors["prototypes"])


def test_the_last_prototypes_reach_every_client():
    assert DESCRIPTIONS["fedproto"].final_fit
    assert DESCRIPTIONS["fedproto"].class_counts


def test_means_of_the_last_epoch_are_taken_before_each_step(run):
    """Three batches of one; the second epoch's features are x + w as w was then."""
    strategy = fedproto(means="last_epoch", epochs=2, batch_size=1, prototype_weight=0)
    _, update, seen = run(strategy, strategy.server_init(prototype_model(), new_rng()))
    w, found = np.zeros(2), {0: [], 1: []}
    for number, batch in enumerate(seen.batches):
        (x,), (y,) = batch["x"], batch["y"]
        if number >= 3:
            found[int(y)].append(x + w)
        w += (x - w) / 2
    expected = [np.mean(found[label], axis=0) for label in (0, 1)]
    np.testing.assert_allclose(update.tensors["prototypes"], expected, rtol=1e-6)


def test_a_class_that_the_last_epoch_left_out_has_the_trained_model_s_mean(run):
    """Of three examples the batch of two leaves out the one of class 1."""
    strategy = fedproto(means="last_epoch", batch_size=2, drop_last=True, prototype_weight=0)
    server = strategy.server_init(prototype_model(), new_rng())
    state, update, seen = run(strategy, server, y=(0, 0, 1))
    (batch,) = seen.batches
    assert batch["y"].tolist() == [0, 0]
    expected = [np.mean(_EXAMPLES[:2], axis=0), np.add(_EXAMPLES[2], state.tensors["params/w"])]
    np.testing.assert_allclose(update.tensors["prototypes"], expected, rtol=1e-6)


def test_first_prototypes_are_drawn_by_the_server_and_all_classes_have_one():
    model = prototype_model()
    drawn = fedproto(first_prototypes="normal").server_init(model, new_rng()).tensors
    again = fedproto(first_prototypes="normal").server_init(model, new_rng()).tensors
    np.testing.assert_array_equal(drawn["prototypes"], again["prototypes"])
    assert drawn["prototypes"].dtype == np.float32
    assert np.abs(drawn["prototypes"]).min() > 0
    np.testing.assert_array_equal(drawn["present"], [1, 1])


def test_a_calibration_s_second_round_has_the_client_s_own_prototypes(run):
    strategy, server = fedproto(), server_of([[1, 1], [8, 9]], [0, 0])
    payload = strategy.downlink(server, "a")
    _, update, _ = run(strategy, server, y=(1, 1, 1))
    second = strategy.next_alone(payload, update)
    own = update.tensors["prototypes"][1]
    assert second.round_id == payload.round_id + 1
    np.testing.assert_array_equal(second.tensors["prototypes"], [[1, 1], own])
    np.testing.assert_array_equal(second.tensors["present"], [0, 1])
    strategy.payload.check(second.tensors)


def test_the_head_predicts_if_it_is_asked_to(run):
    strategy = fedproto(predict="head")
    state, _, seen = run(strategy, server_of([[0, 0], [3, 4]], [1, 1]))
    assert seen.scores == [None]
    assert strategy.client_score(state) is None


def test_the_nearest_prototype_of_a_class_that_the_client_has(run):
    """Its examples are of class 1: a point at class 0's prototype is of class 1 all the same."""
    server, theirs = server_of([[0, 0], [3, 4]], [1, 1]), (1, 1, 1)
    state, _, seen = run(fedproto(predict="nearest_own"), server, y=theirs)
    for score in (*seen.scores, fedproto(predict="nearest_own").client_score(state)):
        np.testing.assert_array_equal(score(array([[0, 0]])), [[-np.inf, -25]])
    (batch,) = seen.batches
    np.testing.assert_array_equal(batch["present"], [1, 1])
    both, _, _ = run(fedproto(predict="nearest_own"), server, y=(0, 1, 0))
    scores = fedproto(predict="nearest_own").client_score(both)(array([[0, 0]]))
    np.testing.assert_array_equal(scores, [[0, -25]])


def test_the_head_predicts_where_none_of_the_client_s_classes_has_a_prototype(run):
    strategy = fedproto(predict="nearest_own")
    state, _, seen = run(strategy, server_of([[0, 0], [3, 4]], [1, 0]), y=(1, 1, 1))
    assert seen.scores == [None]
    assert strategy.client_score(state) is None
