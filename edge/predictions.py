"""What a model says of examples, by the task of its bundle.

| task | ``values`` | an example in words |
|---|---|---|
| ``classification`` | probabilities: the softmax of the scores | the most probable class |
| ``segmentation`` | the same for each step | how many steps each class has, most first |
| ``multilabel`` | probabilities: the logistic function of each logit | the labels above one half |
| ``regression`` | the outputs | each target's value |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies.scores import MetricValues
from protofleet.strategies.tasks import TASKS, defined
from protofleet.tensors import TaskName, kind_of

NO_LABEL = -1
"""A class that is not known; a target that is not known is NaN."""

Scores = NDArray[np.float32]
"""``(n, outputs)``, or ``(n, S, outputs)``, what a program or a strategy's rule gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What a model says of examples.

    Attributes:
        task: of the bundle.
        names: of the columns: classes, labels or targets.
        outputs: ``(n, outputs) float32``, as the model or the strategy's rule gives them.
    """

    task: TaskName
    names: tuple[str, ...]
    outputs: Scores

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def values(self) -> NDArray[np.float32]:
        """``(n, outputs) float32``: probabilities, or a regression's values."""
        return _OUTPUTS[self.task].values(self.outputs)

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """``(n, outputs) float32`` of classes or labels.

        Raises:
            InputError: a regression has none.
        """
        if self.task == "regression":
            raise InputError("predictions: a regression has values, not probabilities")
        return self.values

    @property
    def indices(self) -> NDArray[np.int64]:
        """``(n,) int64``, the most probable class of each example as its number.

        ``(n, S)`` of steps.

        Raises:
            InputError: the task has no classes.
        """
        if kind_of(self.task) != "classes":
            raise InputError(f"predictions: task {self.task} has no classes; see values")
        found: NDArray[np.int64] = self.outputs.argmax(axis=-1).astype(np.int64)
        return found

    @property
    def labels(self) -> list[str] | list[tuple[str, ...]]:
        """The class of each example by name, or, of several labels, those that hold.

        Of a segmentation: those of its steps, one after the other.

        Raises:
            InputError: a regression has none.
        """
        if self.task == "multilabel":
            return [tuple(np.array(self.names)[row].tolist()) for row in self.outputs > 0]
        if self.task == "segmentation":
            return [tuple(np.array(self.names)[row].tolist()) for row in self.indices]
        return [self.names[index] for index in self.indices]

    def rows(self, y: NDArray[Any]) -> list[PredictionRow]:
        """One row for each example, with what ``y`` says is true; as in ``Examples``."""
        return _OUTPUTS[self.task].rows(self, y)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRow:
    """One example's prediction for a person and for programs.

    Attributes:
        cells: texts, in the order of ``columns``.
        figures: what JSON can hold.
    """

    cells: tuple[str, ...]
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionScores:
    """How right predictions are.

    Attributes:
        examples: how many of them have true values.
        scores: of the task, those that are defined.
        each: of each target or label by name; empty where the task has classes.
    """

    examples: int
    scores: MetricValues
    each: Mapping[str, MetricValues]


def columns(task: TaskName, names: tuple[str, ...]) -> tuple[str, ...]:
    """Headings of the cells of rows."""
    return _OUTPUTS[task].columns(names)


def known_rows(y: NDArray[Any]) -> NDArray[np.bool_]:
    """``(n,)``, which true values are known."""
    known: NDArray[np.bool_] = y != NO_LABEL if y.dtype == np.int64 else np.isfinite(y)
    return known if known.ndim == 1 else np.asarray(known.all(axis=1))


def score_predictions(predicted: Predictions, y: NDArray[Any]) -> PredictionScores:
    """Compare predictions with true values; examples without one do not count.

    Args:
        predicted: ``n`` of them.
        y: ``(n,)`` or ``(n, S) int64`` classes, -1 where unknown, or ``(n, outputs) float32``, NaN
            where unknown.
    """
    known = known_rows(y)
    if not known.any():
        return PredictionScores(examples=0, scores={}, each={})
    task = TASKS[predicted.task]
    statistics = task.statistics(predicted.outputs[known], y[known], len(predicted.names))
    each = task.score_each(statistics)
    return PredictionScores(
        examples=int(known.sum()),
        scores=defined(task.score(statistics)),
        each=dict(zip(predicted.names, map(defined, each), strict=False)) if each else {},
    )


def _softmax(scores: Scores) -> NDArray[np.float32]:
    shifted = scores.astype(np.float64) - scores.max(axis=-1, keepdims=True)
    powers = np.exp(shifted)
    shares: NDArray[np.float32] = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    return shares


def _logistic(scores: Scores) -> NDArray[np.float32]:
    # As tanh it overflows for no logit.
    shares: NDArray[np.float32] = (0.5 + 0.5 * np.tanh(0.5 * scores.astype(np.float64))).astype(
        np.float32
    )
    return shares


def _class_rows(found: Predictions, y: NDArray[Any]) -> list[PredictionRow]:
    made = []
    for index, shares, label in zip(found.indices.tolist(), found.values, y.tolist(), strict=True):
        name, true = found.names[index], found.names[label] if label != NO_LABEL else None
        figures = {"class": name, "probability": float(shares[index])}
        figures |= {} if true is None else {"label": true}
        made.append(
            PredictionRow(
                cells=(name, f"{shares[index]:.4f}", true or ""),
                figures={**figures, "probabilities": shares.tolist()},
            )
        )
    return made


def _step_rows(found: Predictions, y: NDArray[Any]) -> list[PredictionRow]:
    made = []
    known = known_rows(y)
    for steps, shares, true, is_known in zip(found.indices, found.values, y, known, strict=True):
        named = [found.names[index] for index in steps.tolist()]
        surest = shares.max(axis=-1)
        figures = {"classes": named, "probabilities": surest.tolist()}
        figures |= {"labels": [found.names[index] for index in true.tolist()]} if is_known else {}
        right = f"{float((steps == true).mean()):.2f}" if is_known else ""
        counts = " ".join(f"{name} {count}" for name, count in Counter(named).most_common())
        made.append(
            PredictionRow(cells=(counts, f"{float(surest.mean()):.4f}", right), figures=figures)
        )
    return made


def _label_rows(found: Predictions, y: NDArray[Any]) -> list[PredictionRow]:
    made = []
    known = known_rows(y)
    for held, shares, true, is_known in zip(found.labels, found.values, y, known, strict=True):
        names = [name for name, flag in zip(found.names, true, strict=True) if flag > 0]
        figures = {"labels": list(held), "probabilities": shares.tolist()}
        made.append(
            PredictionRow(
                cells=(
                    ", ".join(held) or "-",
                    " ".join(f"{share:.2f}" for share in shares),
                    (", ".join(names) or "-") if is_known else "",
                ),
                figures={**figures, "true": names} if is_known else figures,
            )
        )
    return made


def _value_rows(found: Predictions, y: NDArray[Any]) -> list[PredictionRow]:
    made = []
    for values, true, known in zip(found.values, y, known_rows(y), strict=True):
        figures = {"values": dict(zip(found.names, values.tolist(), strict=True))}
        if known:
            figures["true"] = dict(zip(found.names, true.tolist(), strict=True))
        shown = tuple(f"{value:.4g}" for value in (*values, *(true if known else ())))
        made.append(PredictionRow(cells=shown, figures=figures))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """How the outputs of a task are read.

    Attributes:
        values: from outputs.
        columns: headings of a row's cells, from the outputs' names.
        rows: one for each example.
    """

    values: Callable[[Scores], NDArray[np.float32]]
    columns: Callable[[tuple[str, ...]], tuple[str, ...]]
    rows: Callable[[Predictions, NDArray[Any]], list[PredictionRow]]


_OUTPUTS: Mapping[TaskName, _Output] = {
    "classification": _Output(
        values=_softmax, columns=lambda _: ("class", "probability", "label"), rows=_class_rows
    ),
    "segmentation": _Output(
        values=_softmax,
        columns=lambda _: ("steps of each class", "probability", "right"),
        rows=_step_rows,
    ),
    "multilabel": _Output(
        values=_logistic, columns=lambda _: ("labels", "probabilities", "true"), rows=_label_rows
    ),
    "regression": _Output(
        values=lambda outputs: outputs,
        columns=lambda names: (*names, *(f"true {name}" for name in names)),
        rows=_value_rows,
    ),
}
