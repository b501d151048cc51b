"""What all rules bear: liars far away or many, blocks, and how many clients there are."""

import numpy as np
import pytest
from toy_model import array, zeros

from protofleet.errors import InputError
from protofleet.strategies.aggregation import build, robust

_NAMES = (
    "centred_clipping",
    "geometric_median",
    "krum",
    "median",
    "multi_krum",
    "trimmed_mean",
)
_RULES = [(name, mixing) for name in _NAMES for mixing in (False, True)]


def _terms(rng, honest, liars, size=40, far=1e5):
    vectors = rng.normal(size=(honest + liars, size)).astype(np.float32)
    vectors[honest:] += far
    return [(vector, 1.0) for vector in vectors]


@pytest.mark.parametrize(("name", "mixing"), _RULES)
def test_a_fifth_of_the_clients_far_away_moves_the_outcome_no_farther_than_honest_ones_are(
    name, mixing
):
    rng = np.random.default_rng(5)
    terms = _terms(rng, honest=24, liars=6)
    combined = build(name, {"mixing": mixing}).combine(zeros(40), terms)
    honest = np.stack([vector for vector, _ in terms[:24]])
    farthest = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    assert np.linalg.norm(combined - honest.mean(axis=0)) <= farthest


@pytest.mark.parametrize(("name", "mixing"), _RULES)
def test_blocks_of_coordinates_change_no_outcome(name, mixing, monkeypatch):
    rule, rng = build(name, {"mixing": mixing}), np.random.default_rng(1)
    terms, old = _terms(rng, 7, 2, far=3.0), rng.normal(size=40).astype(np.float32)
    whole = rule.combine(old, terms)
    monkeypatch.setattr(robust, "_BLOCK_BYTES", 9 * 24 * 7)
    np.testing.assert_allclose(rule.combine(old, terms), whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "mixing"), _RULES)
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_few_clients_are_no_error(name, mixing, clients):
    terms = [(array([1, 2]), 3.0)] * clients
    combined = build(name, {"mixing": mixing, "liars": 5}).combine(array([1, 2]), terms)
    np.testing.assert_allclose(combined, [1, 2])


@pytest.mark.parametrize(("name", "mixing"), _RULES)
def test_clients_without_examples_have_no_effect_and_nobody_gives_nothing(name, mixing):
    rule, rng = build(name, {"mixing": mixing}), np.random.default_rng(2)
    terms = _terms(rng, 5, 1)
    with_others = [(array([7]), 0.0), *terms[:3], (array([7]), 0.0), *terms[3:]]
    np.testing.assert_array_equal(
        rule.combine(zeros(40), with_others), rule.combine(zeros(40), terms)
    )
    assert rule.combine(zeros(2), [(array([1, 2]), 0.0)]) is None


@pytest.mark.parametrize(
    ("liars", "clients", "expected"),
    [(0.2, 30, 6), (0.2, 5, 1), (0.2, 1, 0), (0.25, 30, 8), (3, 30, 3), (3, 5, 2), (0, 9, 0)],
)
def test_liars_are_a_share_rounded_up_or_a_count_below_half(liars, clients, expected):
    assert robust.RobustSettings(liars=liars).count(clients) == expected


@pytest.mark.parametrize("liars", [0.5, -1, -0.1])
def test_half_of_the_clients_are_too_many(liars):
    with pytest.raises(InputError, match="'krum': setting 'liars': expected a count from 0 or a"):
        build("krum", {"liars": liars})


def test_mixed_clients_cannot_be_weighted():
    with pytest.raises(InputError, match="'weighted': mixed clients count alike"):
        build("median", {"weighted": True, "mixing": True})
