"""The gate: what speaks for a personal model, and what a fleet's owners tell of it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from protofleet.federation.outcomes.gate import (
    ENOUGH,
    FOLD_EVERY,
    FOLDS,
    ComparedExamples,
    compare,
    fleet_gain,
    folds_of,
    gain_of,
    is_one_class,
    owner_gain,
    pooled,
)
from protofleet.federation.records import HeldOutGain
from protofleet.strategies.tasks import TASKS
from protofleet.wire.messages import FleetGain

_CLASSES = TASKS["classification"]
_GAINS = FleetGain(owners=20, mean=0.15, sd=0.08)
_HARM = FleetGain(owners=20, mean=-0.08, sd=0.05)


def _outputs(right, y):
    """Of a model that is right where it is said."""
    wrong = (y + 1) % 3
    return np.eye(3, dtype=np.float32)[np.where(right, y, wrong)]


def _compared(before, now):
    y = np.arange(len(before)) % 3
    return compare(_CLASSES, _outputs(np.array(before), y), _outputs(np.array(now), y), y)


def _evidence(before, now, fleet=None):
    return msgspec.structs.replace(pooled(_CLASSES.name, _compared(before, now)), fleet=fleet)


def _weighed(task, before, now, y):
    return pooled(task.name, compare(task, before, now, y))


def test_examples_are_compared_one_by_one():
    found = _evidence([1, 1, 1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1, 1, 0])
    assert (found.examples, found.before, found.now) == (8, 0.5, 0.875)
    assert found.gain == 0.375
    # Five of eight differ; two more examples, one better and one worse, count as well.
    assert found.variance == pytest.approx(((5 + 2) / 10 - 0.3**2) / 8)


def test_a_few_examples_that_are_all_alike_are_no_proof():
    found = _evidence([0, 0], [1, 1])
    assert found.variance > 0
    assert not found.helps
    many = _evidence([0] * 30, [1] * 30)
    assert many.helps
    assert not _evidence([1] * 30, [0] * 30).helps
    assert not _evidence([0, 1] * 30, [0, 1] * 30).helps


def test_the_fleet_speaks_where_an_owner_has_few_examples():
    alike = [1, 0, 1]
    assert not _evidence(alike, alike).helps
    assert _evidence(alike, alike, _GAINS).helps
    assert not _evidence(alike, alike, _HARM).helps
    better = [0, 0, 1, 0], [1, 1, 1, 0]
    assert not _evidence(*better, _HARM).helps
    worse = [1] * 40, [0] * 20 + [1] * 20
    assert not _evidence(*worse, _GAINS).helps


def test_without_test_examples_the_bundle_stays_in_use():
    nothing = np.zeros((0, 3), np.float32)
    found = _weighed(_CLASSES, nothing, nothing, np.zeros(0))
    assert (found.examples, found.helps) == (0, False)
    assert found.text == ("the bundle's model: there are no examples to compare it with another on")


def test_it_says_which_model_is_in_use_and_why():
    found = _evidence([0] * 10 + [1] * 10, [1] * 20, _GAINS)
    assert found.text == (
        "personal: the personal one has 1.00 against 0.50 on 20 examples that it has not seen; "
        "by these and 20 owners' gains it is better with probability 0.99"
    )
    assert _evidence([1] * 4, [1] * 4).text == (
        "the bundle's model: the personal one has 1.00 against 1.00 on 4 examples that it has not "
        "seen; by these it is better with probability 0.50"
    )


def test_an_error_counts_as_a_share_of_what_it_was():
    task, y = TASKS["regression"], np.full((50, 1), 100.0, np.float32)
    rng = np.random.default_rng(0)
    errors = rng.normal(0, 10, (50, 1)).astype(np.float32)
    found = _weighed(task, y + errors, y + errors / 2, y)
    assert found.gain == pytest.approx(0.5, abs=0.05)  # of few errors more than the mean is gained
    assert found.helps
    assert "an error of" in found.text
    far = _weighed(task, y + errors, y + errors * 1000, y)
    assert -1 <= far.gain < -0.7
    assert not far.helps
    exact = _weighed(task, y, y, y)
    assert (exact.gain, exact.helps) == (0.0, False)


def test_labels_count_each():
    task, y = TASKS["multilabel"], np.zeros((40, 4), np.float32)
    right, half = np.full((40, 4), -1, np.float32), np.full((40, 4), -1, np.float32)
    half[:, :2] = 1
    found = _weighed(task, half, right, y)
    assert (found.before, found.now, found.helps) == (0.5, 1.0, True)


@pytest.mark.parametrize("name", TASKS)
def test_statistics_tell_the_same_gain_as_examples(name):
    task, rng = TASKS[name], np.random.default_rng(1)
    shape = (10, 6, 3) if name == "segmentation" else (60, 3)
    before, now = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    y = {
        "classification": rng.integers(0, 3, 60),
        "segmentation": rng.integers(0, 3, (10, 6)),
        "regression": now + rng.normal(0, 0.1, shape).astype(np.float32),
        "multilabel": (now > 0).astype(np.float32),
    }[name]
    told = gain_of(task, task.statistics(before, y, 3), task.statistics(now, y, 3))
    found = _weighed(task, before, now, y)
    assert task.worth(task.statistics(now, y, 3)) == pytest.approx(found.now)
    assert told == (pytest.approx(found.gain, abs=0.15 if task.relative else 1e-9), 60)
    assert gain_of(task, None, task.statistics(now, y, 3)) is None
    empty = task.statistics(now[:0], y[:0], 3)
    assert gain_of(task, empty, empty) is None


def test_a_fleet_of_alike_owners_has_no_spread_of_its_own():
    """What differs is what so few examples make of the same gain."""
    rng = np.random.default_rng(2)
    told = [((rng.binomial(20, 0.3)) / 20, 20) for _ in range(40)]
    found = fleet_gain(told)
    assert (found.owners, found.mean) == (40, pytest.approx(0.3, abs=0.05))
    assert found.sd < 0.08
    mixed = fleet_gain([(0.4, 100), (-0.4, 100), (0.3, 100), (-0.35, 100)])
    assert mixed.sd > 0.3


def test_two_owners_are_no_fleet_and_one_liar_of_ten_opens_no_gate():
    assert fleet_gain([(0.5, 10), (0.4, 10)]) is None
    assert fleet_gain([]) is None
    assert fleet_gain([(0.5, 10), (0.4, 10), (0.3, 0)]) is None
    harm = [(-0.06, 40)] * 9
    fleet = fleet_gain([*harm, (1.0, 10**9)])
    alike = _evidence([1, 0, 1], [1, 0, 1], fleet)
    assert alike.probability < ENOUGH
    honest = fleet_gain([*[(0.2, 40)] * 9, (-1.0, 10**9)])
    assert np.isfinite([honest.mean, honest.sd]).all()


def test_owners_who_are_served_are_harmed_as_seldom_as_is_said():
    """Of a thousand fleets' owners whose true gains the fleet's law draws: one in five at most."""
    rng, served, harmed = np.random.default_rng(3), 0, 0
    for _ in range(60):
        mean, sd = rng.normal(0, 0.08), abs(rng.normal(0, 0.08))
        true = np.clip(rng.normal(mean, sd, 20), -0.4, 0.4)
        base, owners = 0.6, []
        for gain in true:
            before = rng.random(12) < base
            flips = rng.random(12)
            now = np.where(before, flips > max(-gain, 0) / base, flips < max(gain, 0) / (1 - base))
            owners.append((before, now))
        fleet = fleet_gain([((now.mean() - before.mean()), 12) for before, now in owners])
        for gain, (before, now) in zip(true, owners, strict=True):
            helps = _evidence(before, now, fleet).helps
            served += helps
            harmed += helps and gain < 0
    assert served > 100
    assert harmed <= (1 - ENOUGH) * served


def test_folds_are_pooled_with_the_test_part_and_carried_from_round_to_round():
    first = _evidence([1, 0], [1, 1])
    assert (first.next_fold, first.held_out_gain) == (0, None)
    fold = _compared([0, 0, 1, 1], [1, 1, 1, 1])
    held = first.with_fold(fold)
    together = _evidence([1, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1])
    for name in ("examples", "before", "now", "gain", "variance"):
        assert getattr(held, name) == pytest.approx(getattr(together, name)), name
    assert (held.next_fold, held.held_out_gain) == (None, HeldOutGain(examples=4, gain=0.5))
    second = _evidence([1, 1], [1, 0], _GAINS).following(held)
    assert (second.examples, second.gain, second.fleet) == (6, pytest.approx(1 / 6), _GAINS)
    assert second.tests == _compared([1, 1], [1, 0])


def test_every_third_round_holds_a_fold_out_and_the_newest_of_each_counts():
    evidence, asked = None, []
    for round_id in range(1, 3 * FOLD_EVERY * FOLDS + 1):
        evidence = _evidence([1], [1]).following(evidence)
        if evidence.next_fold is not None:
            asked.append((round_id, evidence.next_fold))
            evidence = evidence.with_fold(_compared([0] * round_id, [1] * round_id))
    assert asked == [(1 + FOLD_EVERY * n, n % FOLDS) for n in range(3 * FOLDS)]
    last = [rounds for rounds, _ in asked[-FOLDS:]]
    assert [fold.examples for fold in evidence.folds] == last
    assert evidence.examples == 1 + sum(last)


def test_a_fold_that_could_not_be_held_out_takes_its_turn():
    evidence = _evidence([1], [1]).with_fold(ComparedExamples())
    assert (evidence.examples, evidence.held_out, evidence.held_out_gain) == (1, 1, None)


def test_an_owner_without_test_examples_is_judged_by_folds():
    nothing = _evidence([], [])
    assert not nothing.helps
    better = nothing.with_fold(_compared([0] * 20, [1] * 20))
    assert (better.examples, better.helps) == (20, True)
    assert "on 20 examples that it has not seen" in better.text


def test_examples_of_one_class_prove_nothing():
    """Whatever names that class always is right on them."""
    alike = msgspec.structs.replace(_evidence([0] * 40, [1] * 40, _GAINS), one_class=True)
    assert (alike.helps, alike.served, alike.next_fold) == (False, "bundle", None)
    assert alike.text == (
        "the bundle's model: all examples are of one class, so another cannot be judged"
    )
    assert alike.following(_evidence([0], [1])).one_class
    assert not _evidence([0], [1]).following(alike).one_class
    assert is_one_class(np.array([], np.int64), np.array([2, 2]))
    assert not is_one_class(np.array([1]), np.array([2]))
    assert not is_one_class(np.array([], np.int64), np.array([], np.int64))
    assert not is_one_class(np.ones((4, 1)), np.ones((0, 1)))


@pytest.mark.parametrize("count", [2, 3, 10])
def test_every_fold_has_of_each_class_and_neighbours_share_one(count):
    y = np.tile(np.repeat(np.arange(3), 4), 20)
    folds = folds_of(y, count)
    for label in range(3):
        own = folds[y == label]
        sizes = np.bincount(own, minlength=count)
        assert sizes.max() - sizes.min() <= 1, label
        assert np.count_nonzero(np.diff(own)) == count - 1, label  # each is one block


def test_rare_classes_do_not_share_a_fold():
    assert sorted(folds_of(np.array([0, 1, 2]), 3)) == [0, 1, 2]
    assert sorted(folds_of(np.array([0, 0, 1]), 3)) == [0, 1, 2]
    assert folds_of(np.zeros(0, np.int64), 3).size == 0
    targets = folds_of(np.zeros((7, 2), np.float32), 3)
    assert list(targets) == sorted(targets)
    assert set(targets) == {0, 1, 2}


def test_an_owner_s_gain_is_that_of_test_and_held_out_examples():
    assert owner_gain(None, None) is None
    assert owner_gain((0.5, 10), None) == (0.5, 10)
    assert owner_gain(None, HeldOutGain(examples=4, gain=0.25)) == (0.25, 4)
    gain, examples = owner_gain((0.5, 10), HeldOutGain(examples=30, gain=0.1))
    assert (gain, examples) == (pytest.approx(0.2), 40)
