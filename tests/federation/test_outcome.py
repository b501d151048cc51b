"""What a run has done for owners: their score before and now, who gained, who lost."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, mean_absolute_error

from protofleet.federation.outcomes.outcome import (
    OwnerOutcome,
    beside_alone,
    followed,
    outcome_of,
    owner_outcome,
)
from protofleet.strategies.scores import balanced_accuracy, confusion
from protofleet.strategies.tasks import TASKS
from protofleet.strategies.types import Evaluation


def _owner(name, start, end, **more):
    return OwnerOutcome(id=name, examples=20, start=start, end=end, gain=end - start, **more)


def test_balanced_accuracy_is_over_the_classes_that_the_owner_has():
    rng = np.random.default_rng(0)
    truth, said = rng.integers(0, 4, 60), rng.integers(0, 6, 60)
    found = balanced_accuracy(confusion(truth, said, 6))
    assert found == pytest.approx(
        np.mean([np.mean(said[truth == one] == one) for one in range(4)]), abs=1e-12
    )
    same = rng.integers(0, 6, 60)
    expected = balanced_accuracy_score(same, said)
    assert balanced_accuracy(confusion(same, said, 6)) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(balanced_accuracy(np.zeros((3, 3), np.int64)))


def test_of_numbers_an_owner_is_told_the_error_in_their_unit():
    rng = np.random.default_rng(1)
    y = rng.normal(70, 9, (40, 2)).astype(np.float32)
    outputs = (y + rng.normal(0, 3, y.shape)).astype(np.float32)
    task = TASKS["regression"]
    start, end = task.statistics(outputs + 5, y, 2), task.statistics(outputs, y, 2)
    found = outcome_of("regression", [owner_outcome("a", "regression", start, end)])
    assert found.metric == "mae"
    assert found.owners[0].end == pytest.approx(mean_absolute_error(y, outputs), abs=1e-4)
    assert found.since_start.helped == 1
    assert found.since_start.gain > 0


def test_owners_are_counted_beyond_a_margin_and_the_mean_has_a_paired_interval():
    gains = [0.10, 0.021, 0.02, -0.02, -0.021, 0.0]
    owners = [_owner(f"o{n}", 0.5, 0.5 + gain) for n, gain in enumerate(gains)]
    change = outcome_of("classification", owners).since_start
    assert (change.helped, change.unchanged, change.harmed) == (2, 3, 1)
    assert change.gain == pytest.approx(np.mean(gains), abs=1e-6)
    # Student's t of five degrees of freedom, from a table.
    half = 2.5706 * np.std(gains, ddof=1) / np.sqrt(len(gains))
    assert change.low == pytest.approx(np.mean(gains) - half, abs=1e-5)
    assert change.high == pytest.approx(np.mean(gains) + half, abs=1e-5)


def test_an_error_is_better_when_it_is_less_and_its_margin_is_a_share_of_it():
    task, y = TASKS["regression"], np.zeros((4, 1), np.float32)

    def one(name, before, now):
        errors = (task.statistics(np.full_like(y, error), y, 1) for error in (before, now))
        return owner_outcome(name, "regression", *errors)

    found = outcome_of("regression", [one("a", 10, 9.7), one("b", 10, 10.3), one("c", 10, 9.9)])
    assert [found.gain_text(one.gain) for one in found.owners] == ["+0.3", "-0.3", "+0.1"]
    assert [found.verdict(one) for one in found.owners] == ["helped", "harmed", "unchanged"]


def test_one_owner_has_no_interval_and_nobody_no_outcome():
    found = outcome_of("classification", [_owner("a", 0.5, 0.75), None])
    assert (found.since_start.low, found.since_start.high) == (None, None)
    assert str(found).splitlines() == [
        "1 owner: balanced accuracy 50.0 % at the start, 75.0 % now",
        "1 better than at the start, 0 worse, 0 alike",
    ]
    assert outcome_of("classification", [None]) is None


def test_training_alone_is_compared_where_it_was_tried():
    owners = [_owner("a", 0.5, 0.8, alone=0.6), _owner("b", 0.5, 0.6, alone=0.7), _owner("c", 0, 1)]
    found = outcome_of("classification", owners)
    assert (found.beside_alone.helped, found.beside_alone.harmed) == (1, 1)
    assert "than alone (65.0 %)" in found.lines()[2]
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def test_who_has_not_trained_alone_is_not_counted_beside_it():
    found = outcome_of("classification", [_owner("a", 0.5, 0.8), _owner("b", 0.5, 0.6)])
    alone = outcome_of("classification", [_owner("b", 0.5, 0.7), _owner("c", 0.5, 0.9)])
    both = beside_alone(found, alone)
    assert [one.alone for one in both.owners] == [None, 0.7]
    assert (both.beside_alone.harmed, both.alone, both.since_start) == (1, 0.7, found.since_start)


def test_what_is_not_defined_or_was_not_told_leaves_an_owner_out():
    right = np.diag([3, 4]).astype(np.int64)
    assert owner_outcome("a", "classification", None, right) is None
    assert owner_outcome("a", "classification", right, 0 * right) is None


def test_an_outcome_follows_round_by_round_and_begins_again_with_other_test_examples():
    right, wrong = np.diag([3, 4]).astype(np.int64), np.array([[0, 3], [4, 0]])
    told = [
        Evaluation(own=wrong),
        Evaluation(own=wrong, start=wrong),
        Evaluation(own=right),
        Evaluation(),
        Evaluation(own=wrong, start=right),
    ]
    found, one = [], None
    for evaluation in told:
        one = followed(one, "a", "classification", evaluation)
        found.append(one and (one.start, one.end))
    assert found == [None, (0.0, 0.0), (0.0, 1.0), (0.0, 1.0), (1.0, 0.0)]


@pytest.mark.parametrize("name", ["after_fit", "personalised"])
def test_an_owner_has_the_model_that_the_device_keeps_and_not_the_one_that_a_paper_scores(name):
    right, wrong = np.diag([3, 4]).astype(np.int64), np.array([[0, 3], [4, 0]])
    first = followed(
        None, "a", "classification", Evaluation(own=wrong, start=wrong, more={name: right})
    )
    assert (first.start, first.end, first.gain) == (0.0, 1.0, 1.0)
    later = followed(first, "a", "classification", Evaluation(own=right, more={name: wrong}))
    assert (later.start, later.end, later.gain) == (0.0, 0.0, 0.0)
