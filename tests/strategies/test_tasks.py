"""What follows from a bundle's task: losses, scores, which true values and strategies fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from protofleet.errors import InputError
from protofleet.strategies import DESCRIPTIONS, build, check_task
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS, TASKS, defined, objectives_of
from protofleet.tensors import Model, TaskName, TensorMap


def test_every_task_and_every_score_has_its_entry():
    assert set(TASKS) == set(get_args(TaskName))
    assert set(METRICS) == set(get_args(MetricName))
    for task in TASKS.values():
        assert {task.selects, *task.over_samples} <= set(task.metrics)
        assert {*task.metrics, *task.over_samples.values(), *task.each} <= set(METRICS)


def test_a_tasks_statistics_pass_its_own_check_and_give_its_scores():
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(20, 3)).astype(np.float32)
    labels = {
        "classification": rng.integers(0, 3, 20),
        "regression": outputs + 1,
        "multilabel": (outputs > 0.5).astype(np.float32),
    }
    for name, y in labels.items():
        task = TASKS[name]
        task.check_labels("y", y, 3)
        statistics = task.statistics(outputs, y, 3)
        task.check("claim", statistics, 3)
        assert tuple(task.score(statistics)) == task.metrics
        each = task.score_each(statistics)
        assert [set(one) for one in each] == ([set(task.each)] * 3 if task.each else [])
        for loss in task.losses.values():
            assert math.isfinite(loss(outputs, y))


def test_a_smaller_error_and_a_larger_share_are_of_better_quality():
    y = np.array([[0.0], [2.0]], np.float32)
    near, far = (TASKS["regression"].statistics(y + np.float32(off), y, 1) for off in (0.1, 1.0))
    assert TASKS["regression"].quality(near) > TASKS["regression"].quality(far)
    good, bad = np.diag([4, 4]), np.array([[4, 0], [4, 0]])
    assert TASKS["classification"].quality(good) > TASKS["classification"].quality(bad)


def test_scores_without_a_value_are_left_out():
    constant = np.ones((3, 1), np.float32)
    scores = TASKS["regression"].score(TASKS["regression"].statistics(constant, constant, 1))
    assert defined(scores) == {"rmse": 0.0, "mae": 0.0}


@pytest.mark.parametrize(
    ("task", "y", "message"),
    [
        ("classification", np.zeros((3, 2), np.float32), r"expected \(n,\) int64 class numbers"),
        ("classification", np.array([0, 2]), "expected classes 0…1, got 0…2"),
        ("regression", np.zeros(3, np.float32), r"expected \(n, 2\) float32, a column for each"),
        ("regression", np.zeros((3, 3), np.float32), r"got \(3, 3\)"),
        ("regression", np.zeros((3, 2)), "float64"),
        ("regression", np.full((1, 2), np.nan, np.float32), "NaN, infinite or larger"),
        ("regression", np.full((1, 2), 1e20, np.float32), "at most 1e"),
        ("multilabel", np.array([[0, 0.5]], np.float32), "expected 0 and 1 .* got 0.5"),
    ],
)
def test_true_values_of_another_task_are_refused(task, y, message):
    with pytest.raises(InputError, match=message):
        TASKS[task].check_labels("y", y, 2)


def test_no_examples_are_right_for_every_task():
    TASKS["classification"].check_labels("y", np.zeros(0, np.int64), 2)
    for task in ("regression", "multilabel"):
        TASKS[task].check_labels("y", np.zeros((0, 2), np.float32), 2)


@pytest.mark.parametrize(
    ("task", "objectives", "loss"),
    [
        ("classification", ["moon", "cross_entropy"], "cross_entropy"),
        ("classification", ["prototype_distance"], "cross_entropy"),
        ("regression", ["huber"], "huber"),
        ("regression", [], "mse"),
        ("multilabel", ["bce"], "bce"),
    ],
)
def test_the_tasks_loss_is_the_one_that_a_bundle_has_or_the_default(task, objectives, loss):
    assert TASKS[task].loss_of(objectives) == loss


def test_a_strategys_objectives_name_the_tasks_loss_once():
    assert objectives_of(DESCRIPTIONS["fedavg"], "huber") == ("huber",)
    assert objectives_of(DESCRIPTIONS["cdfl"], "cross_entropy") == ("cross_entropy", "cdfl")
    assert objectives_of(DESCRIPTIONS["moon"], "cross_entropy") == ("moon",)


_NEEDING_CLASSES = {
    "cdfl",
    "fedhkd",
    "fedhome",
    "fedhp",
    "fednh",
    "fedpac",
    "fedphp",
    "fedproto",
    "fedsub",
    "moon",
    "protohar",
}


@pytest.mark.parametrize("name", sorted(DESCRIPTIONS))
@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_a_strategy_that_looks_at_classes_is_refused_and_names_others(name, task):
    empty = TensorMap.pack({"head.w": np.zeros((1, 2), np.float32), "w": np.ones(1, np.float32)})
    model = Model(params=empty, buffers=TensorMap.pack({}), num_classes=0, input_shape=(2,))
    if name not in _NEEDING_CLASSES:
        check_task(DESCRIPTIONS[name], task)
        return
    expected = f"strategy '{name}': .* got {task}; use one of .*ditto, .*, scaffold"
    with pytest.raises(InputError, match=expected):
        build(name, {}, replace(model, task=task))
