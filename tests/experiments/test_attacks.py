"""Attacks, by hand: what liars send, and what a plain mean makes of it."""

import msgspec
import numpy as np
import pytest

from protofleet.experiments.attacks import (
    Hostile,
    Sent,
    alie,
    flipped_labels,
    largest_shift,
    liars_among,
    lied,
    scaling,
    sign_flip,
)
from protofleet.tensors import blobs

HONEST = np.array([[1.0, 2.0], [3.0, 2.0], [2.0, 5.0]])


def test_sign_flip_is_minus_the_honest_mean():
    np.testing.assert_array_equal(sign_flip(HONEST, 1), [-2, -3])


@pytest.mark.parametrize("liars", [1, 2])
def test_scaling_takes_the_mean_of_all_to_minus_the_honest_mean(liars):
    everybody = np.concatenate([HONEST, np.tile(scaling(HONEST, liars), (liars, 1))])
    np.testing.assert_allclose(everybody.mean(axis=0), [-2, -3])


def test_alie_shifts_every_number_by_so_many_deviations():
    shifted = alie(HONEST, 1, deviations=1.5)
    np.testing.assert_allclose(shifted, HONEST.mean(axis=0) - 1.5 * HONEST.std(axis=0))


def test_without_a_number_alie_shifts_by_as_much_as_its_paper_allows():
    """50 workers of which 24 are corrupted need 2 more: 24 of 26 are nearer, 1.43 deviations."""
    assert largest_shift(26, 24) == pytest.approx(1.426, abs=1e-3)
    assert largest_shift(24, 6) == pytest.approx(0.2104, abs=1e-4)
    assert largest_shift(2, 1) == largest_shift(1, 1) == 0
    many = np.random.default_rng(0).normal(size=(24, 5))
    shift = largest_shift(24, 6) * many.std(axis=0)
    np.testing.assert_allclose(alie(many, 6), many.mean(axis=0) - shift)


def test_deviations_of_another_attack_are_refused():
    with pytest.raises(msgspec.ValidationError, match="`deviations`: expected attack alie"):
        msgspec.convert({"attack": "scaling", "deviations": 1.5}, Hostile)


def test_labels_are_mirrored():
    np.testing.assert_array_equal(flipped_labels(np.array([0, 1, 5]), 6), [5, 4, 0])


def test_a_fifth_of_thirty_are_six_and_the_seed_draws_them():
    clients, hostile = tuple(f"p{n}" for n in range(30)), Hostile(attack="alie")
    drawn = [liars_among(hostile, clients, seed) for seed in (1, 1, 2)]
    assert [len(some) for some in drawn] == [6, 6, 6]
    assert drawn[0] == drawn[1] != drawn[2]


def _sent(*values):
    tensors = {"params/w": np.array(values, np.float32), "labels": np.array([3])}
    return Sent(blobs.encode(tensors, {"update": "its"}), {"params/w": np.array([10.0, 10.0])})


def test_liars_send_the_lie_beside_what_they_started_from_and_all_else_as_it_was():
    sent = {"a": _sent(11, 12), "b": _sent(13, 12), "c": _sent(12, 15), "z": _sent(10, 10)}
    lies = lied(Hostile(attack="sign_flip"), frozenset({"z", "absent"}), sent)
    assert list(lies) == ["z"]
    tensors, metadata = blobs.decode(lies["z"], max_bytes=10**6)
    np.testing.assert_array_equal(tensors["params/w"], [8, 7])
    assert (tensors["labels"].tolist(), metadata["update"]) == ([3], "its")


def test_label_flip_changes_no_blob():
    sent = {"a": _sent(11, 12), "z": _sent(1, 1)}
    assert lied(Hostile(attack="label_flip"), frozenset({"z"}), sent) == {}


def test_an_experiment_with_everybody_hostile_is_refused():
    with pytest.raises(msgspec.ValidationError, match=r"between 0 and 1, got 1\.0"):
        msgspec.convert({"attack": "alie", "share": 1.0}, Hostile)
