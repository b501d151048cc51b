"""What is wrong with results, caused by real runs and by every case of its rules."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.federation.outcomes.calibration import choose
from protofleet.federation.outcomes.outcome import OwnerOutcome, outcome_of, owner_outcome
from protofleet.federation.outcomes.trouble import LossWatch, of_calibration, troubles
from protofleet.federation.records import RoundRecord, Scores, Spread
from protofleet.strategies.scores import confusion


def _rounds(*losses):
    return tuple(
        RoundRecord(
            round_id=number,
            seconds=1.0,
            participants=2,
            bytes_up=0,
            bytes_down=0,
            scores=Scores(own_loss=Spread(mean=loss, std=0.0)),
        )
        for number, loss in enumerate(losses, 1)
    )


def _outcome(*pairs, **more):
    return outcome_of(
        "classification",
        [
            OwnerOutcome(id=str(n), examples=30, start=start, end=end, gain=end - start, **more)
            for n, (start, end) in enumerate(pairs)
        ],
    )


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ((2.3, 2.31, 2.3), "does not fall: 2.3 after the first round, 2.3 after the last"),
        ((2.3, 2.0, 1.5), None),
        ((2.3, 2.4), None),
        ((2.0, 1.0, 1.1, 1.3), "rises: 1, 1.1, 1.3; it was 1 at best"),
        ((2.0, 1.0, 1.05, 1.09), None),
        ((0.0, 0.0, 0.0), None),
    ],
)
def test_a_loss_that_does_not_fall_or_rises(losses, told):
    found = [one.what for one in troubles(_rounds(*losses), None)]
    assert len(found) == (told is not None)
    assert all(told in what for what in found)


def test_a_loss_is_watched_and_each_trouble_told_once():
    """Again only after it was away; one that goes on after a restart is not told anew."""
    losses = [2.0, 2.1, 2.0, 2.2, 1.0, 1.1, 1.3, 1.5, 0.9, 1.0, 1.2]
    watch, told = LossWatch(), []
    for number, loss in enumerate(losses, 1):
        found = watch.add(loss)
        if found is not None:
            told.append((number, found.what.split()[7]))
    assert told == [(3, "does"), (7, "rises:"), (11, "rises:")]
    assert LossWatch(losses[:7]).add(1.5) is None


def test_owners_that_are_worse_off():
    """Two thirds of them by much: the interval of the mean is below zero; else they are counted."""
    (clear,) = troubles((), _outcome((0.9, 0.7), (0.9, 0.72), (0.9, 0.69)))
    assert clear.what.startswith("owners are worse off than with the bundle's own model: balanced")
    assert clear.what.endswith("90.0 % before, 70.3 % now; 3 of 3 have lost")
    (counted,) = troubles((), _outcome((0.9, 0.7), (0.9, 0.99), (0.9, 0.8)))
    assert counted.what.startswith("2 of 3 owners have a worse model than the bundle's own, 1 a")
    assert troubles((), _outcome((0.9, 0.95), (0.9, 0.85))) == ()
    assert "outcome.owners" in str(counted)


def test_models_that_always_name_one_class():
    """Whichever class that is, and however many examples of it an owner has."""
    rng = np.random.default_rng(0)
    rounds = _rounds(2.0, 1.5, 1.4)

    def owner(name, said):
        truth = rng.choice(5, 60, p=[0.6, 0.1, 0.1, 0.1, 0.1])
        start, end = confusion(truth, np.zeros(60, int), 5), confusion(truth, said(truth), 5)
        return owner_outcome(name, "classification", start, end)

    lazy = outcome_of(
        "classification", [owner(name, lambda t: np.full_like(t, 2)) for name in "ab"]
    )
    assert lazy.chance == pytest.approx(0.2)
    (told,) = troubles(rounds, lazy)
    assert told.what.startswith("the owners' models are no better than always naming one class")
    assert troubles(rounds[:2], lazy) == ()
    clever = outcome_of("classification", [owner(n, lambda t: t) for n in "ab"])
    assert troubles(rounds, clever) == ()


@pytest.mark.parametrize(
    ("ratios", "told"),
    [
        ((0.9, 0.5, 0.4), "0.1, is the largest that was tried"),
        ((0.9, 1.5, 1.4), "0.001, is the smallest that was tried"),
        ((0.9, 0.5, 0.8), None),
    ],
)
def test_a_rate_at_the_end_of_its_ladder(ratios, told):
    found = of_calibration(choose("adam", (0.001, 0.01, 0.1), [np.array(ratios)], otherwise=0.01))
    assert (found is None) == (told is None)
    if found is not None:
        assert found.what == f"the learning rate that was chosen, {told}"
