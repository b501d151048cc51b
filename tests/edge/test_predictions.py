"""Outputs as classes, labels and values, and how right they are."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.edge.predictions import Predictions, columns, score_predictions
from protofleet.errors import InputError

_NAN = np.float32("nan")


def _made(task, outputs, names=("a", "b")):
    return Predictions(task=task, names=names, outputs=np.array(outputs, np.float32))


def test_classes_are_those_of_the_largest_score():
    found = _made("classification", [[0, np.log(3)], [200, -np.inf]])
    np.testing.assert_allclose(found.probabilities, [[0.25, 0.75], [1, 0]], rtol=1e-6)
    assert (found.labels, found.indices.tolist(), len(found)) == (["b", "a"], [1, 0], 2)
    first, second = found.rows(np.array([0, -1]))
    assert first.cells == ("b", "0.7500", "a")
    assert (first.figures["class"], first.figures["label"]) == ("b", "a")
    assert "label" not in second.figures


def test_labels_hold_above_one_half():
    found = _made("multilabel", [[np.log(3), -1], [-900, 900], [-1, -1]])
    np.testing.assert_allclose(found.probabilities[:2], [[0.75, 0.268941], [0, 1]], rtol=1e-5)
    assert found.labels == [("a",), ("b",), ()]
    first, second, third = found.rows(np.array([[1, 1], [_NAN, _NAN], [0, 0]], np.float32))
    assert first.cells == ("a", "0.75 0.27", "a, b")
    assert (first.figures["labels"], first.figures["true"]) == (["a"], ["a", "b"])
    assert "true" not in second.figures
    assert third.cells[::2] == ("-", "-")
    with pytest.raises(InputError, match="task multilabel has no classes"):
        _ = found.indices


def test_a_regression_has_values():
    found = _made("regression", [[1.5, -2], [0, 1]])
    np.testing.assert_array_equal(found.values, [[1.5, -2], [0, 1]])
    first, second = found.rows(np.array([[1, -2], [_NAN, _NAN]], np.float32))
    assert first.cells == ("1.5", "-2", "1", "-2")
    assert second.cells == ("0", "1")
    assert first.figures == {"values": {"a": 1.5, "b": -2}, "true": {"a": 1, "b": -2}}
    assert columns("regression", ("a", "b")) == ("a", "b", "true a", "true b")
    with pytest.raises(InputError, match="not probabilities"):
        _ = found.probabilities


def test_only_examples_whose_truth_is_known_are_scored():
    classes = _made("classification", [[1, 0], [0, 1], [0, 1], [1, 0]])
    scores = score_predictions(classes, np.array([0, -1, 1, 1]))
    assert (scores.examples, scores.each) == (3, {})
    assert scores.scores == {"accuracy": pytest.approx(2 / 3), "macro_f1": pytest.approx(2 / 3)}
    assert score_predictions(classes, np.full(4, -1)).examples == 0
    values = _made("regression", [[1, 2], [3, 4], [9, 9]])
    truth = np.array([[1, 4], [3, 2], [_NAN, 0]], np.float32)
    scores = score_predictions(values, truth)
    assert (scores.examples, scores.scores["mae"]) == (2, 1.0)
    assert (scores.each["a"]["mae"], scores.each["b"]["rmse"]) == (0, 2)
