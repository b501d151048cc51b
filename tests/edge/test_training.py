"""Local training and evaluation with real programs, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from protofleet.datasets import DeviceData
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData, TrainingCancelledError
from protofleet.errors import InputError
from protofleet.federation.outcomes.gate import FOLDS, ComparedExamples, folds_of
from protofleet.federation.randomness import client_rng
from protofleet.runtime import open_programs
from protofleet.strategies.types import Payload
from protofleet.tensors import Network, TensorMap

CLASSES = ("class0", "class1", "class2")
SETTINGS = {"epochs": 2, "batch_size": 16}


def _data(**changes) -> LocalData:
    # The logits are x @ w, so with w = identity the largest of the first three features decides.
    test = np.eye(4, dtype=np.float32)[[0, 1, 2, 2, 0]]
    pooled = changes.pop("pooled", None)
    parts = {
        "x_train": np.eye(4, dtype=np.float32)[[0, 1, 2]].repeat(20, axis=0),
        "y_train": np.arange(3).repeat(20),
        "x_test": test,
        "y_test": np.array([0, 1, 2, 1, 0]),
        "classes": CLASSES,
    }
    return LocalData(own=DeviceData(**{**parts, **changes}), pooled=pooled)


def _learner(world, data: LocalData, device_id: str = "anna") -> Learner:
    return Learner(world.bundle, open_programs(world.bundle), data, Meter(), device_id)


def _identity(learner: Learner) -> TensorMap:
    params = TensorMap.zeros(learner.model.params.layout)
    params["w"][...] = np.eye(4, 3)
    return Network(params=params, buffers=learner.model.buffers)


def test_evaluation_counts_true_rows_and_predicted_columns(world):
    x = np.eye(4, dtype=np.float32)[[1, 1]]
    learner = _learner(world, _data(pooled=(x, np.array([1, 2]))))
    found = learner.evaluate(_identity(learner))
    assert found.own.tolist() == [[2, 0, 0], [0, 1, 1], [0, 0, 1]]
    assert found.pooled.tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_a_device_without_test_part_is_not_scored(world):
    empty = {"x_test": np.zeros((0, 4), np.float32), "y_test": np.zeros(0, np.int64)}
    learner = _learner(world, _data(**empty))
    found = learner.evaluate(_identity(learner))
    assert (found.own, found.pooled) == (None, None)


def test_evaluation_runs_in_batches_of_32_in_order(world):
    data, calls = _data(), []

    def predict(_network, x, *, batch_size):
        calls.append((x, batch_size))
        return np.zeros((len(x), 3), np.float32)

    spy = SimpleNamespace(grad_fns={}, predict=predict)
    learner = Learner(world.bundle, spy, data, Meter(), "anna")
    learner.evaluate(_identity(learner))
    ((seen, batch_size),) = calls
    assert batch_size == 32
    np.testing.assert_array_equal(seen, data.own.x_test)


def _round(learner: Learner, seed: int = 7):
    strategy = learner.strategy("fedavg", SETTINGS)
    payload = strategy.downlink(
        strategy.server_init(learner.model, np.random.default_rng(0)), "anna"
    )
    return learner.train(strategy, None, payload, seed=seed)


def test_a_rerun_of_a_round_gives_the_same_bits_and_another_seed_others(world):
    results = [_round(_learner(world, _data()), seed)[1] for seed in (7, 7, 8)]
    tensors = [b"".join(t.tobytes() for t in update.tensors.values()) for update in results]
    assert tensors[0] == tensors[1] != tensors[2]
    assert results[0].num_examples == 60


def _held_out(learner, fold, *, seed=7, settings=SETTINGS):
    strategy = learner.strategy("fedavg", settings)
    server = strategy.server_init(learner.model, np.random.default_rng(0))
    return learner.hold_out(strategy, strategy.downlink(server, "anna"), fold=fold, seed=seed)


def test_a_fold_is_compared_by_a_model_that_has_not_seen_it(world):
    """Each class has 20 alike examples: a model of the others is right on those held out, too."""
    settings = {**SETTINGS, "optimiser": {"kind": "sgd", "lr": 1.0}}
    learner = _learner(world, _data())
    for fold in range(FOLDS):
        found = _held_out(learner, fold, settings=settings)
        assert (found.examples, found.now) == (60 / FOLDS, 60 / FOLDS)
        assert found.gain == found.now - found.before
    folds = folds_of(_data().own.y_train, FOLDS)
    x = _data().own.x_train.copy()
    x[folds == 1] = [0, 0, 0, 1000]  # what no other example has
    unlike = _learner(world, _data(x_train=x))
    assert _held_out(unlike, 1, settings=settings).squares == 0
    assert _held_out(unlike, 0, settings=settings).squares > 0


def test_holding_out_changes_nothing_of_a_round_and_its_time_has_a_phase_of_its_own(world):
    learner, other = _learner(world, _data()), _learner(world, _data())
    assert _held_out(learner, 0) == _held_out(learner, 0) == _held_out(other, 0)
    spent = learner.meter.take()
    assert spent.phases_s["gate"] > 0
    assert spent.train_step_ms == ()
    assert spent.phases_s.get("train", 0) == 0
    rounds = [_round(one)[1].tensors for one in (learner, _learner(world, _data()))]
    for name, value in rounds[0].items():
        np.testing.assert_array_equal(value, rounds[1][name])


@pytest.mark.parametrize(("count", "fold"), [(1, 0), (2, 2), (0, 0)])
def test_a_fold_without_examples_or_others_shows_nothing(world, count, fold):
    few = _data(x_train=np.eye(4, dtype=np.float32)[:count], y_train=np.arange(count))
    assert _held_out(_learner(world, few), fold) == ComparedExamples()


def test_a_fold_whose_training_diverges_shows_nothing(world):
    settings = {**SETTINGS, "optimiser": {"kind": "sgd", "lr": 1e6}}
    far = _data(x_train=_data().own.x_train * np.float32(1e36))
    assert _held_out(_learner(world, far), 0, settings=settings) == ComparedExamples()


def test_an_owner_with_one_class_keeps_the_bundle_s_model(world):
    many, one = _learner(world, _data()), _learner(world, _data(y_train=np.zeros(60, np.int64)))
    same = {"x_test": np.eye(4, dtype=np.float32)[[0, 0]], "y_test": np.zeros(2, np.int64)}
    alike = _learner(world, _data(y_train=np.zeros(60, np.int64), **same))
    for learner, expected in ((many, False), (one, False), (alike, True)):
        strategy = learner.strategy("fedavg", SETTINGS)
        evidence = learner.compare(strategy, _round(learner)[0])
        assert evidence.one_class == expected


def test_randomness_depends_on_seed_round_and_device():
    draws = {
        client_rng(*key).integers(1 << 62)
        for key in [(1, 1, "a"), (2, 1, "a"), (1, 2, "a"), (1, 1, "b"), (1, 1, "a")]
    }
    assert len(draws) == 4


def test_a_cancelled_round_ends_at_its_next_step(world):
    learner = _learner(world, _data())
    strategy = learner.strategy("fedavg", SETTINGS)
    learner.cancelled.set()
    payload = strategy.downlink(
        strategy.server_init(learner.model, np.random.default_rng(0)), "anna"
    )
    with pytest.raises(TrainingCancelledError):
        learner.train(strategy, None, payload, seed=1)


def test_a_round_is_measured_step_by_step(world):
    learner = _learner(world, _data())
    learner.warm_up()
    state, _ = _round(learner)
    model = learner.strategy("fedavg", SETTINGS).client_model(state)
    learner.measure_inference(learner.window_scores(model))
    costs = learner.meter.take()
    assert len(costs.train_step_ms) == 2 * 4
    assert len(costs.infer_ms) == 30
    assert all(ms > 0 for ms in (*costs.train_step_ms, *costs.infer_ms))
    assert {"train", "evaluate", "infer"} <= costs.phases_s.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("a", "b", "c")}, "expected the bundle's classes"),
        (
            {"classes": (), "targets": ("a",)}
            | {"y_train": np.zeros((60, 1), np.float32), "y_test": np.zeros((5, 1), np.float32)},
            r"expected the bundle's classes .* \(task classification\), got {'targets': \['a'\]}",
        ),
        ({"pooled": (np.zeros((2, 4), np.float32), np.array([0, 3]))}, "pooled y_test: .* 0…2"),
        ({"x_train": np.zeros((60, 5), np.float32)}, r"expected x_train \(n, 4\)"),
        ({"pooled": (np.zeros((2, 3), np.float32), np.zeros(2))}, "expected pooled x_test"),
    ],
)
def test_data_that_do_not_fit_the_bundle_are_refused(world, changes, message):
    with pytest.raises(InputError, match=message):
        _learner(world, _data(**changes))


def _stage(*labels):
    """Training and test examples of these classes."""
    y = np.array(labels)
    x = np.eye(4, dtype=np.float32)[y]
    return DeviceData(x_train=x, y_train=y, x_test=x, y_test=y, classes=CLASSES)


def test_each_round_has_its_own_data(world):
    """Training, scores and class counts change with the round; the pooled part does not."""
    pooled = (np.eye(4, dtype=np.float32)[[0, 1]], np.array([0, 1]))
    later = ((2, _stage(0, 0, 1)), (5, _stage(2)))
    learner = _learner(world, LocalData(own=_stage(0), pooled=pooled, later=later))
    found = {r: learner.class_counts(r) for r in (1, 2, 4, 5, 9)}
    assert found == {1: (1, 0, 0), 2: (2, 1, 0), 4: (2, 1, 0), 5: (0, 0, 1), 9: (0, 0, 1)}
    strategy = learner.strategy("fedavg", SETTINGS)
    server = strategy.server_init(learner.model, np.random.default_rng(0))
    for round_id, (own, examples) in {
        1: ([1, 0, 0], 1),
        3: ([2, 1, 0], 3),
        6: ([0, 0, 1], 1),
    }.items():
        payload = Payload(round_id=round_id, tensors=server.tensors)
        _, update = learner.train(strategy, None, payload, seed=1)
        assert update.num_examples == examples
        assert update.evaluation.own.sum(axis=1).tolist() == own
        assert update.evaluation.pooled.sum(axis=1).tolist() == [1, 1, 0]


@pytest.mark.parametrize("rounds", [(1,), (3, 3), (5, 4)])
def test_later_data_begin_in_rounds_that_ascend_from_the_second(rounds):
    with pytest.raises(InputError, match="ascend from 2"):
        LocalData(own=_stage(0), later=tuple((r, _stage(1)) for r in rounds))


def test_later_data_must_fit_the_bundle_too(world):
    x = np.zeros((1, 7), np.float32)
    wrong = replace(_stage(0), x_train=x, y_train=np.zeros(1, np.int64))
    with pytest.raises(InputError, match="x_train from round 9"):
        _learner(world, LocalData(own=_stage(0), later=((9, wrong),)))


def test_a_rule_on_features_is_scored_and_timed_in_the_place_of_the_head(world):
    """Features are tanh of the logits, so the rule below predicts what the head likes least."""
    learner = _learner(world, _data())
    network, calls = _identity(learner), []

    def least(features):
        calls.append(len(features))
        return -features

    assert learner.evaluate(network, score=least).own.trace() == 0
    learner.measure_inference(learner.window_scores(network, score=least))
    assert calls == [5, *[1] * 33]
    assert len(learner.meter.take().infer_ms) == 30


def test_an_unfitting_payload_is_an_error_and_not_a_result(world):
    learner = _learner(world, _data())
    strategy = learner.strategy("fedavg", SETTINGS)
    payload = Payload(round_id=1, tensors={"params/w": np.zeros((2, 2), np.float32)})
    with pytest.raises(InputError, match="tensor"):
        learner.train(strategy, None, payload, seed=1)
