"""Learning tasks: what a model's outputs are, and what follows for losses and scores.

| task | ``y`` | losses | scores |
|---|---|---|---|
| ``classification`` | ``(n,) int64`` class | cross_entropy | macro-F1, accuracy |
| ``segmentation`` | ``(n, S) int64`` class of each step | step_cross_entropy | macro-F1, accuracy |
| ``regression`` | ``(n, T) float32`` | mse, huber | RMSE, MAE, R² |
| ``multilabel`` | ``(n, L) float32``, 0 or 1 | bce | macro-F1, micro-F1 |

RMSE, MAE and R² are plain means over the targets, as scikit-learn's; macro-F1 is one over the
classes or labels that occur among the true or the predicted ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies import scores
from protofleet.strategies.scores import MetricName, MetricValues, Statistics
from protofleet.strategies.types import TASK_LOSS, Description
from protofleet.tensors import TaskName, kind_of


@dataclass(frozen=True, slots=True)
class Metric:
    """How a score is read.

    Attributes:
        label: what people call it.
        is_share: a number from 0 to 1, which people read in per cent.
        lower_is_better: as of an error.
    """

    label: str
    is_share: bool = False
    lower_is_better: bool = False

    def text(self, value: float) -> str:
        """The number in a line: four decimals of a share, else four digits."""
        return f"{value:.4f}" if self.is_share else f"{value:.4g}"

    @property
    def title(self) -> str:
        """The label with the unit of ``scaled``."""
        return f"{self.label} (%)" if self.is_share else self.label

    def scaled(self, value: float) -> float:
        """A share in per cent, any other number as it is."""
        return 100 * value if self.is_share else value

    def page_text(self, value: float) -> str:
        """``scaled`` on a page: one decimal of per cents, else four digits."""
        return f"{100 * value:.1f}" if self.is_share else f"{value:.4g}"


_OVER_ALL = " over all samples"
METRICS: dict[MetricName, Metric] = {
    "macro_f1": Metric("macro-F1", is_share=True),
    "accuracy": Metric("accuracy", is_share=True),
    "balanced_accuracy": Metric("balanced accuracy", is_share=True),
    "sample_accuracy": Metric(f"accuracy{_OVER_ALL}", is_share=True),
    "rmse": Metric("RMSE", lower_is_better=True),
    "mae": Metric("MAE", lower_is_better=True),
    "r2": Metric("R²"),
    "sample_rmse": Metric(f"RMSE{_OVER_ALL}", lower_is_better=True),
    "sample_mae": Metric(f"MAE{_OVER_ALL}", lower_is_better=True),
    "sample_r2": Metric(f"R²{_OVER_ALL}"),
    "micro_f1": Metric("micro-F1", is_share=True),
    "sample_macro_f1": Metric(f"macro-F1{_OVER_ALL}", is_share=True),
    "sample_micro_f1": Metric(f"micro-F1{_OVER_ALL}", is_share=True),
    "f1": Metric("F1", is_share=True),
    "precision": Metric("precision", is_share=True),
    "recall": Metric("recall", is_share=True),
}
"""All scores."""

Loss = Callable[[NDArray[np.float32], NDArray[Any]], float]
"""Mean loss of outputs ``(n, …)`` and true values; NaN without examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningTask:
    """One kind of task.

    Attributes:
        name: as a bundle has it.
        losses: by the objective's name, the default first.
        metrics: of one model on one test part; the first is the one that a line has room for.
        selects: the one by which a run's best round is chosen.
        over_samples: what those are called that are also taken over all devices' test samples
            alike.
        each: those of a single target or label; empty where the task has none.
        statistics: of outputs ``(n, outputs) float32``, with an axis of steps before the last in a
            segmentation, true values and the number of outputs.
        check_labels: raises InputError for true values that are none of this task; takes what to
            call them, and the number of outputs.
        check: raises RefusedError for statistics that cannot be; takes what to call them, and the
            number of outputs.
        size: the number of examples that statistics are of.
        score: the metrics from statistics; NaN where one is not defined.
        score_each: records of ``each``, one for every target or label.
        owners: the one that tells an owner how well a model serves them: right answers, each class
            that they have counting alike, or an error in the unit of what is predicted.
        owner_chance: what that one is for a model that knows nothing; NaN where it cannot be told.
        owner_score: that one, from statistics of their own test part; NaN where it is not defined.
        worths: of each example, what outputs ``(n, outputs)`` are worth where ``y`` is true; larger
            is better.
        worth: the mean of those, from statistics.
        worth_text: that, for people.
        relative: whether a difference of worths means something as a share of what there was.
    """

    name: TaskName
    losses: Mapping[str, Loss]
    metrics: tuple[MetricName, ...]
    selects: MetricName
    over_samples: Mapping[MetricName, MetricName]
    each: tuple[MetricName, ...]
    statistics: Callable[[NDArray[np.float32], NDArray[Any], int], Statistics]
    check_labels: Callable[[str, NDArray[Any], int], None]
    check: Callable[[str, Statistics, int], None]
    size: Callable[[Statistics], float]
    score: Callable[[Statistics], MetricValues]
    score_each: Callable[[Statistics], list[MetricValues]]
    owners: MetricName
    owner_score: Callable[[Statistics], float]
    worths: Callable[[NDArray[np.float32], NDArray[Any]], NDArray[np.float64]]
    worth: Callable[[Statistics], float]
    worth_text: Callable[[float], str] = lambda worth: f"{worth:.2f}"
    relative: bool = False
    owner_chance: Callable[[Statistics], float] = lambda _: math.nan

    @property
    def kind(self) -> Literal["classes", "targets"]:
        """What its outputs are called one by one; a manifest and data have their names so."""
        return kind_of(self.name)

    @property
    def headline(self) -> MetricName:
        """The score that a line has room for."""
        return self.metrics[0]

    def quality(self, statistics: Statistics) -> float:
        """The selecting score as a number that is larger for better models."""
        value = self.score(statistics)[self.selects]
        return -value if METRICS[self.selects].lower_is_better else value

    def chosen_loss(self, loss: str | None) -> str:
        """The loss itself, or the default in the place of None.

        Raises:
            InputError: the task has no such loss.
        """
        if loss is not None and loss not in self.losses:
            raise InputError(
                f"loss: expected {' or '.join(self.losses)} for task {self.name}, got '{loss}'"
            )
        return loss or next(iter(self.losses))

    def loss_of(self, objectives: Iterable[str]) -> str:
        """Which of a bundle's objectives is its task's own loss; without one the default."""
        return next((name for name in objectives if name in self.losses), next(iter(self.losses)))


def _check_classes(what: str, y: NDArray[Any], classes: int) -> None:
    if y.ndim != 1 or y.dtype != np.int64:
        raise InputError(f"{what}: expected (n,) int64 class numbers, got {y.shape} {y.dtype}")
    if y.size and not 0 <= y.min() <= y.max() < classes:
        raise InputError(
            f"{what}: expected classes 0…{classes - 1}, got {y.min()}…{y.max()}; number them in "
            "the order of the bundle's classes"
        )


def _check_steps(what: str, y: NDArray[Any], classes: int) -> None:
    if y.ndim != 2 or y.dtype != np.int64:
        raise InputError(
            f"{what}: expected (n, steps) int64, a class number for each step, got {y.shape} "
            f"{y.dtype}"
        )
    _check_classes(what, y.reshape(-1), classes)


def _check_numbers(what: str, y: NDArray[Any], targets: int) -> None:
    _check_rows(what, y, targets)
    largest = scores.LARGEST_ERROR
    if not (np.abs(y) <= largest).all():
        raise InputError(
            f"{what}: expected numbers of at most {largest:g}, got NaN, infinite or larger ones; "
            "leave those examples out"
        )


def _check_flags(what: str, y: NDArray[Any], labels: int) -> None:
    _check_rows(what, y, labels)
    others = y[(y != 0) & (y != 1)]
    if others.size:
        raise InputError(f"{what}: expected 0 and 1 for each of {labels} labels, got {others[0]}")


def _check_rows(what: str, y: NDArray[Any], columns: int) -> None:
    if y.ndim != 2 or y.shape[1] != columns or y.dtype != np.float32:
        raise InputError(
            f"{what}: expected (n, {columns}) float32, a column for each target, got {y.shape} "
            f"{y.dtype}"
        )


def _confusion(outputs: NDArray[np.float32], y: NDArray[Any], classes: int) -> Statistics:
    return scores.confusion(y, outputs.argmax(axis=1), classes)


def _right(outputs: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
    right: NDArray[np.bool_] = outputs.argmax(axis=1) == y
    return right.astype(np.float64)


def _by_step(outputs: NDArray[np.float32], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Every step of every example as a row: ``(n · S, C)`` and ``(n · S,)``."""
    if outputs.shape[:2] != y.shape:
        raise InputError(
            f"segmentation: expected a class for each of {outputs.shape[:2]} steps, got {y.shape}"
        )
    return outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1)


def _right_steps(outputs: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
    right: NDArray[np.float64] = _right(*_by_step(outputs, y)).reshape(y.shape).mean(axis=1)
    return right


def _near(outputs: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
    worth: NDArray[np.float64] = -scores.absolute_errors(outputs, y).mean(axis=1)
    return worth


def _right_labels(outputs: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = ((outputs > 0) == (y > 0)).mean(axis=1)
    return found


def _share_of_labels(counts: Statistics) -> float:
    total = float(counts.sum())
    return float(counts[:, (0, 3)].sum()) / total if total else math.nan


def _score_classes(counts: Statistics) -> MetricValues:
    return {"macro_f1": scores.macro_f1(counts), "accuracy": scores.accuracy(counts)}


def _score_targets(sums: Statistics) -> MetricValues:
    each = scores.regression_scores(sums)
    names: tuple[MetricName, ...] = ("rmse", "mae", "r2")
    return {name: _mean(one[name] for one in each) for name in names}


def _score_labels(counts: Statistics) -> MetricValues:
    each = scores.label_scores(counts)
    return {"macro_f1": _mean(one["f1"] for one in each), "micro_f1": scores.micro_f1(counts)}


def defined(values: MetricValues) -> MetricValues:
    """Those scores that are numbers."""
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _mean(values: Iterable[float]) -> float:
    """Of those that are defined."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


_CLASSIFICATION = LearningTask(
    name="classification",
    losses={"cross_entropy": scores.mean_cross_entropy},
    metrics=("macro_f1", "accuracy"),
    selects="accuracy",
    over_samples={"accuracy": "sample_accuracy"},
    each=(),
    statistics=_confusion,
    check_labels=_check_classes,
    check=scores.check_confusion,
    size=lambda counts: float(counts.sum()),
    score=_score_classes,
    score_each=lambda _: [],
    owners="balanced_accuracy",
    owner_score=scores.balanced_accuracy,
    worths=_right,
    worth=scores.accuracy,
    owner_chance=scores.one_class,
)
_SEGMENTATION = replace(
    _CLASSIFICATION,
    name="segmentation",
    losses={
        "step_cross_entropy": lambda outputs, y: scores.mean_cross_entropy(*_by_step(outputs, y))
    },
    statistics=lambda outputs, y, classes: _confusion(*_by_step(outputs, y), classes),
    check_labels=_check_steps,
    worths=_right_steps,
)
_REGRESSION = LearningTask(
    name="regression",
    losses={"mse": scores.mean_square, "huber": scores.mean_huber},
    metrics=("rmse", "mae", "r2"),
    selects="rmse",
    over_samples={"rmse": "sample_rmse", "mae": "sample_mae", "r2": "sample_r2"},
    each=("rmse", "mae", "r2"),
    statistics=lambda outputs, y, _: scores.error_sums(outputs, y),
    check_labels=_check_numbers,
    check=scores.check_error_sums,
    size=lambda sums: float(sums[0, 0]),
    score=_score_targets,
    score_each=scores.regression_scores,
    owners="mae",
    owner_score=lambda sums: _score_targets(sums)["mae"],
    worths=_near,
    worth=lambda sums: -_score_targets(sums)["mae"],
    worth_text=lambda worth: f"an error of {-worth:.4g}",
    relative=True,
)
_MULTILABEL = LearningTask(
    name="multilabel",
    losses={"bce": scores.mean_binary_cross_entropy},
    metrics=("macro_f1", "micro_f1"),
    selects="macro_f1",
    over_samples={"macro_f1": "sample_macro_f1", "micro_f1": "sample_micro_f1"},
    each=("f1", "precision", "recall"),
    statistics=lambda outputs, y, _: scores.label_counts(outputs, y),
    check_labels=_check_flags,
    check=scores.check_label_counts,
    size=lambda counts: float(counts[0].sum()),
    score=_score_labels,
    score_each=scores.label_scores,
    owners="macro_f1",
    owner_score=lambda counts: _score_labels(counts)["macro_f1"],
    worths=_right_labels,
    worth=_share_of_labels,
)

TASKS: dict[TaskName, LearningTask] = {
    task.name: task for task in (_CLASSIFICATION, _SEGMENTATION, _REGRESSION, _MULTILABEL)
}
"""Tasks by name; a new one is an entry here and its objectives in ``export/objectives.py``."""


def objectives_of(description: Description, loss: str) -> tuple[str, ...]:
    """The objectives of a bundle with which a strategy runs, devices' and the server's.

    Args:
        description: of the strategy.
        loss: the objective that is the task's own loss.
    """
    named = (*description.objectives, *description.server_objectives)
    return tuple(dict.fromkeys(loss if name == TASK_LOSS else name for name in named))
