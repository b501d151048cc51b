"""As good as the best: within the noise of seeds, or of clients; worked out by hand."""

from __future__ import annotations

from protofleet.experiments.standings import as_good, ranked
from protofleet.federation.records import Spread


def spreads(*means, std=10.0, n=9):
    return {seed: Spread(mean=mean, std=std, n=n) for seed, mean in enumerate(means)}


def test_from_three_seeds_on_noise_is_that_of_the_differences():
    """Differences 1, 1 and 1.3: 1.1 ± 0.43, though the seeds are 10 points apart."""
    best = spreads(80, 90, 85.3)
    assert as_good(best, spreads(79, 89, 84)) is False
    assert as_good(best, spreads(81, 86, 85)) is True


def test_with_fewer_seeds_noise_is_that_of_the_clients():
    """Nine clients of standard deviation 10 have 95 % intervals of ± 8.15; together ± 11.5."""
    assert as_good(spreads(80), spreads(69)) is True
    assert as_good(spreads(80), spreads(68)) is False
    assert as_good(spreads(80, 90), spreads(79.9, 89.9)) is True
    assert as_good(spreads(80, n=1), spreads(79, n=1)) is None
    assert as_good(spreads(80), spreads(79, n=1)) is None
    assert as_good(spreads(80, n=1), spreads(80, n=1)) is True


def test_equals_are_in_the_order_of_their_labels():
    assert list(ranked({"b": spreads(5), "a": spreads(5), "c": spreads(6)})) == ["c", "a", "b"]
    assert ranked({}) == {}
