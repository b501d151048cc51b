"""Scores against scikit-learn and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from protofleet.errors import InputError
from protofleet.strategies.scores import accuracy, confusion, macro_f1, summarise
from protofleet.strategies.types import Evaluation

classes = st.integers(0, 5)


def right_and_wrong(right, wrong):
    return np.array([[right, wrong], [0, 0]], np.int64)


@given(st.lists(st.tuples(classes, classes), min_size=1, max_size=50))
def test_scores_are_scikit_learn_s(pairs):
    """Classes that occur nowhere do not count."""
    y_true, y_pred = np.array(pairs).T
    counts = confusion(y_true, y_pred, 6)
    np.testing.assert_array_equal(counts, confusion_matrix(y_true, y_pred, labels=range(6)))
    assert accuracy(counts) == pytest.approx(accuracy_score(y_true, y_pred))
    assert macro_f1(counts) == pytest.approx(f1_score(y_true, y_pred, average="macro"))


def test_no_examples_have_no_score():
    empty = confusion(np.zeros(0, np.int64), np.zeros(0, np.int64), 3)
    assert empty.shape == (3, 3)
    assert math.isnan(accuracy(empty))
    assert math.isnan(macro_f1(empty))


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(InputError, match="expected predicted classes below 2, got 0 to 2"):
        confusion(np.array([0, 1]), np.array([0, 2]), 2)
    with pytest.raises(InputError, match="expected true classes below 2, got -1 to 0"):
        confusion(np.array([-1, 0]), np.array([0, 1]), 2)
    with pytest.raises(InputError, match="expected labels of one length"):
        confusion(np.array([1]), np.array([0, 1]), 2)


def test_spread_is_the_population_s():
    """Accuracies 1 and 1/2: mean 0.75, population deviation 0.25 (the sample's would be 0.354)."""
    evaluations = [
        Evaluation(own=right_and_wrong(4, 0), pooled=right_and_wrong(1, 3)),
        Evaluation(own=right_and_wrong(2, 2)),
        Evaluation(),
        Evaluation(own=right_and_wrong(0, 0)),
    ]
    summary = summarise(evaluations)
    assert summary["personalisation"]["accuracy"] == pytest.approx({"mean": 0.75, "std": 0.25})
    assert summary["personalisation"]["macro_f1"]["mean"] == pytest.approx((1 + 1 / 3) / 2)
    assert summary["generalisation"]["accuracy"] == pytest.approx({"mean": 0.25, "std": 0.0})


def test_losses_are_averaged_over_the_clients_that_have_one():
    summary = summarise([Evaluation(own_loss=1.0), Evaluation(own_loss=2.0), Evaluation()])
    assert summary == {"own_loss": {"mean": 1.5, "std": 0.5}}


def test_further_scores_are_sections_of_their_own():
    summary = summarise(
        [
            Evaluation(more={"before fit": right_and_wrong(4, 0)}),
            Evaluation(more={"before fit": right_and_wrong(2, 2), "empty": right_and_wrong(0, 0)}),
        ]
    )
    assert summary.keys() == {"more"}
    assert summary["more"].keys() == {"before fit"}
    accuracy_of_both = summary["more"]["before fit"]["accuracy"]
    assert accuracy_of_both == pytest.approx({"mean": 0.75, "std": 0.25})


def test_one_client_cannot_fill_a_summary_with_names_of_its_own():
    honest = [Evaluation(more={"z": right_and_wrong(1, 0)}) for _ in range(2)]
    inventors = [
        Evaluation(more={f"{who}{i}": right_and_wrong(1, 0) for i in range(8)}) for who in "ab"
    ]
    names = summarise([*inventors, *honest])["more"].keys()
    assert len(names) == 8
    assert "z" in names


def test_a_section_nobody_has_is_absent():
    assert summarise([Evaluation()]) == {}
    assert set(summarise([Evaluation(own=right_and_wrong(1, 0))])) == {"personalisation"}


def test_sample_accuracy_counts_every_sample_alike():
    """8 of 10 and 1 of 2: clients' mean 0.65, samples' 9 of 12."""
    clients = [Evaluation(own=right_and_wrong(8, 2)), Evaluation(own=right_and_wrong(1, 1))]
    section = summarise(clients)["personalisation"]
    assert section["accuracy"]["mean"] == pytest.approx(0.65)
    assert section["sample_accuracy"] == {"mean": 0.75, "std": 0.0}
