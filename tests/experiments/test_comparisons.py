"""Paired statistics against SciPy and by hand, verdicts at their borders, what each measure is."""

import math

import numpy as np
import pytest
import scipy.stats
from paired_runs import a_run

from protofleet.errors import InputError
from protofleet.experiments.claim_registry import Comparison
from protofleet.experiments.claim_text import verdict_text
from protofleet.experiments.comparisons import (
    Estimate,
    compare,
    geometric_mean,
    mean_of,
    median_of_bounded,
    verdict_of,
)
from protofleet.experiments.config import Dynamic, ScoreSettings

SETTINGS = ScoreSettings(metric="accuracy", sections=("personalisation",))
RNG = np.random.default_rng(5)


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_a_difference_has_the_interval_of_the_paired_t_test(n):
    one, other = RNG.normal(70, 3, n), RNG.normal(69, 3, n)
    found = mean_of(one - other)
    expected = scipy.stats.ttest_rel(one, other).confidence_interval(0.95)
    assert found.value == pytest.approx(np.mean(one) - np.mean(other))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("n", [2, 5, 12])
def test_a_ratio_has_the_interval_of_its_logarithm(n):
    one, other = RNG.integers(3, 20, n).astype(float), RNG.integers(3, 20, n).astype(float)
    found = geometric_mean(one / other)
    expected = scipy.stats.ttest_1samp(np.log(one / other), 0).confidence_interval(0.95)
    assert found.value == pytest.approx(scipy.stats.gmean(one / other))
    assert (found.low, found.high) == pytest.approx(
        (math.exp(expected.low), math.exp(expected.high))
    )


def test_a_ratio_of_swapped_methods_is_the_inverse():
    ratios = np.array([0.5, 0.8, 1.25])
    there, back = geometric_mean(ratios), geometric_mean(1 / ratios)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))


@pytest.mark.parametrize(("n", "place"), [(6, 0), (8, 0), (9, 1), (15, 3), (30, 9)])
def test_order_statistics_enclose_a_median_at_95_per_cent_and_no_wider(n, place):
    """With the probability that a binomial of one half stays between both ends."""
    values = [float(value) for value in range(1, n + 1)]
    found = median_of_bounded(values, [(value, value) for value in values])
    assert (found.low, found.high) == (values[place], values[n - 1 - place])
    outside = [2 * scipy.stats.binom.cdf(k, n, 0.5) for k in (place, place + 1)]
    assert found.confidence == pytest.approx(1 - outside[0])
    assert outside[0] <= 0.05 < outside[1]


def test_five_values_do_not_reach_95_per_cent():
    assert median_of_bounded([1.0] * 5, [(1.0, 1.0)] * 5).confidence == 0.9375


def an_estimate(low, high, confidence=0.95):
    return Estimate(value=1.0, low=low, high=high, kind="t", confidence=confidence)


@pytest.mark.parametrize(
    ("low", "high", "greater", "less"),
    [
        (0.1, 2.0, "reproduced", "refuted"),
        (-2.0, -0.1, "refuted", "reproduced"),
        (-1.0, 2.0, "not decided", "not decided"),
        (0.0, 2.0, "not decided", "not decided"),
        (-2.0, 0.0, "not decided", "not decided"),
        (0.0, 0.0, "not decided", "not decided"),
        (0.1, None, "reproduced", "refuted"),
        (-0.1, None, "not decided", "not decided"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(low, high, greater, less):
    assert verdict_of(an_estimate(low, high), "greater", 0.0) == greater
    assert verdict_of(an_estimate(low, high), "less", 0.0) == less


def test_a_verdict_is_about_the_threshold_and_needs_95_per_cent():
    assert verdict_of(an_estimate(1.0, 2.0), "greater", 3.0) == "refuted"
    assert verdict_of(an_estimate(1.0, 2.0, 0.9375), "greater", 0.0) == "not decided"


def test_the_ends_of_an_interval_belong_to_it():
    found = an_estimate(1.0, 2.0)
    assert [found.holds(value) for value in (0.99, 1.0, 2.0, 2.01)] == [False, True, True, False]
    assert an_estimate(1.0, None).holds(1e9)


def test_too_few_values_have_no_interval():
    with pytest.raises(InputError, match="at least two values, got 1"):
        mean_of([1.0])


def compared(*runs, asked=3, settings=SETTINGS, dynamic=None, **fields):
    by_label = {label: [run for run in runs if run.label == label] for label in "AB"}
    fields.setdefault("sections", ("personalisation",))
    comparison = Comparison(method="A", against="B", **fields)
    return list(compare(comparison, by_label, settings, asked, dynamic))


def test_only_seeds_that_both_have_are_paired():
    """Seed 2 is A's alone, seed 3 B's; 1 and 4 give 10 and 20."""
    (found,) = compared(
        a_run("A", 1, [0.5, 0.6]),
        a_run("A", 2, [0.5, 0.9]),
        a_run("A", 4, [0.5, 0.8]),
        a_run("B", 4, [0.5, 0.6]),
        a_run("B", 3, [0.5, 0.1]),
        a_run("B", 1, [0.9, 0.5]),
        paper=12.0,
    )
    assert [(pair.seed, pair.value, pair.other) for pair in found.pairs] == [
        (1, pytest.approx(60), pytest.approx(50)),
        (4, pytest.approx(80), pytest.approx(60)),
    ]
    assert found.estimate.value == pytest.approx(15)
    assert found.averages == (pytest.approx(70), pytest.approx(55))
    assert (found.verdict, found.paper_inside) == ("not decided", True)


def test_without_two_seeds_there_is_no_verdict():
    (found,) = compared(a_run("A", 1, [0.5]), a_run("B", 1, [0.4]), paper=1.0)
    assert (found.verdict, found.estimate, found.paper_inside) == ("too few seeds", None, None)
    (found,) = compared(a_run("A", 1, [0.5]))
    assert (found.verdict, found.pairs, found.averages) == ("not measured", (), (None, None))


def test_last_and_best_are_rows_of_their_own():
    runs = [
        a_run(label, seed, s)
        for seed in (1, 2)
        for label, s in (("A", [0.9, 0.6]), ("B", [0.5, 0.7]))
    ]
    last, best = compared(*runs, measures=("last", "best"))
    assert (last.measure, last.estimate.value) == ("last", pytest.approx(-10))
    assert (best.measure, best.estimate.value) == ("best", pytest.approx(20))
    assert (last.verdict, best.verdict) == ("refuted", "reproduced")


def test_a_final_fit_is_the_last_score():
    (found,) = compared(a_run("A", 1, [0.5, 0.6], final=0.8), a_run("B", 1, [0.5, 0.6]))
    assert found.pairs[0].value == pytest.approx(80)


def test_recovery_is_the_mean_from_the_first_return_on_without_the_final_fit():
    """With a class back every two rounds, from round 3 on."""
    (found,) = compared(
        a_run("A", 1, [0.1, 0.9, 0.5, 0.7], final=1.0),
        a_run("B", 1, [0.9, 0.1, 0.4, 0.6]),
        measures=("recovery",),
        dynamic=Dynamic(every=2),
    )
    (pair,) = found.pairs
    assert (pair.value, pair.other) == (pytest.approx(60), pytest.approx(50))
    (found,) = compared(
        a_run("A", 1, [0.1]),
        a_run("B", 1, [0.9]),
        measures=("recovery",),
        dynamic=Dynamic(every=2),
    )
    assert found.verdict == "not measured"


def test_equal_bytes_stop_the_dearer_method_where_the_cheaper_ends():
    """A moves 1 kB a round and client for 3 rounds, B 1.5 kB: two rounds of B fit into 3 kB."""
    (found,) = compared(
        a_run("A", 1, [0.5, 0.6, 0.7], final=0.75),
        a_run("B", 1, [0.2, 0.3, 0.9], up=1500, down=1500, final=0.95),
        measures=("equal_bytes",),
    )
    (pair,) = found.pairs
    assert pair.rounds == (3, 2)
    assert (pair.value, pair.other) == (pytest.approx(75), pytest.approx(30))


def test_some_bytes_more_in_a_rounds_record_cost_no_round():
    (found,) = compared(
        a_run("A", 1, [0.5, 0.6], up=100_000, down=100_000),
        a_run("B", 1, [0.5, 0.6], up=100_040, down=100_000),
        measures=("equal_bytes",),
    )
    assert found.pairs[0].rounds == (2, 2)


def test_where_no_round_fits_equal_bytes_there_is_no_figure():
    runs = [a_run("A", seed, [0.5]) for seed in (1, 2)]
    runs += [a_run("B", seed, [0.9], up=9000) for seed in (1, 2)]
    (found,) = compared(*runs, measures=("equal_bytes",), asked=2)
    assert (found.verdict, found.estimate) == ("not measured", None)
    assert found.averages == (pytest.approx(50), None)
    assert verdict_text(found) == (
        "not measured: not even one round of B is within the other's bytes"
    )


def test_one_seed_without_a_round_within_equal_bytes_is_not_measured():
    (found,) = compared(
        a_run("A", 1, [0.5]), a_run("B", 1, [0.9], up=9000), measures=("equal_bytes",)
    )
    assert found.verdict == "not measured"


def test_a_seed_without_a_round_within_equal_bytes_leaves_no_average_of_the_others():
    runs = [a_run("A", seed, [0.5, 0.5]) for seed in (1, 2)]
    runs += [a_run("B", 1, [0.9]), a_run("B", 2, [0.9], up=9000)]
    (found,) = compared(*runs, measures=("equal_bytes",))
    assert (found.averages, found.estimate) == ((pytest.approx(50), None), None)


def test_a_target_of_the_comparison_is_taken_before_the_experiments():
    settings = ScoreSettings(metric="accuracy", sections=("personalisation",), target=0.9)
    runs = [a_run(label, 1, [0.5, 0.7, 0.9]) for label in "AB"]
    for target, rounds in ((0.7, 2), (None, 3)):
        (found,) = compared(*runs, measures=("rounds_to",), settings=settings, target=target)
        assert (found.pairs[0].value, found.target) == (rounds, target or 0.9)


def test_rounds_to_a_target_are_divided_and_averaged_as_medians():
    """2 and 1 rounds of A, 3 and 2 of B: the root of 2/3 · 1/2."""
    (found,) = compared(
        a_run("A", 1, [0.5, 0.8, 0.9]),
        a_run("B", 1, [0.5, 0.7, 0.8]),
        a_run("A", 2, [0.8, 0.1, 0.1]),
        a_run("B", 2, [0.5, 0.9, 0.1]),
        measures=("rounds_to",),
        expect="less",
        target=0.8,
    )
    assert found.estimate.value == pytest.approx(math.sqrt(1 / 3))
    assert (found.averages, found.threshold, found.estimate.kind) == ((1.5, 2.5), 1.0, "log t")


def test_a_target_that_is_never_reached_bounds_the_ratio():
    """B never gets there in 3 rounds: A's 1 round is at most a fourth of B's, perhaps less."""
    runs = [a_run("A", seed, [0.9, 0.9, 0.9]) for seed in range(1, 7)]
    runs += [a_run("B", seed, [0.5, 0.5, 0.5]) for seed in range(1, 7)]
    more = {"measures": ("rounds_to",), "expect": "less", "target": 0.8}
    (found,) = compared(*runs, **more)
    assert (found.estimate.low, found.estimate.high) == (0.0, 0.25)
    assert (found.estimate.kind, found.averages) == ("order", (1.0, None))
    assert found.verdict == "reproduced"
    (fewer,) = compared(*(run for run in runs if run.seed < 6), **more)
    assert fewer.verdict == "not decided"


def test_a_single_run_that_never_arrives_is_no_reason_to_leave_its_seed_out():
    """Ratios 1/4 or less, and six times 1/2: the smallest bound and the largest."""
    runs = [a_run("A", seed, [0.9, 0.9, 0.9]) for seed in range(1, 8)]
    runs += [a_run("B", seed, [0.5, 0.9, 0.9]) for seed in range(2, 8)]
    (found,) = compared(*runs, a_run("B", 1, [0.5, 0.5, 0.5]), measures=("rounds_to",), target=0.8)
    assert (found.estimate.kind, len(found.pairs)) == ("order", 7)
    assert (found.estimate.low, found.estimate.value, found.estimate.high) == (0.0, 0.5, 0.5)
    assert found.averages == (1.0, 2.0)


@pytest.mark.parametrize("expect", ["greater", "less"])
def test_where_neither_reaches_the_target_nothing_is_known(expect):
    runs = [a_run(label, seed, [0.5]) for seed in range(1, 8) for label in "AB"]
    (found,) = compared(*runs, measures=("rounds_to",), target=0.8, expect=expect)
    assert (found.estimate.low, found.estimate.high) == (0.0, None)
    assert (found.verdict, "excluded" in verdict_text(found)) == ("not decided", False)


def test_bytes_are_of_the_whole_run_per_client():
    """3 rounds of 1000 up and 1000 down over two clients; B's 3 are of 4000 up."""
    runs = [a_run("A", seed, [0.5] * 3) for seed in (1, 2)]
    runs += [a_run("B", seed, [0.5] * 3, up=4000) for seed in (1, 2)]
    up, both = compared(*runs, measures=("uplink", "bytes"), sections=(), expect="less", paper=0.5)
    assert (up.pairs[0].value, up.pairs[0].other) == (1500, 6000)
    assert (up.estimate.value, both.estimate.value) == (pytest.approx(0.25), pytest.approx(0.4))
    assert (up.verdict, up.paper_inside) == ("reproduced", False)


def test_bytes_of_a_method_that_moves_none_are_no_ratio():
    runs = [a_run("A", s, [0.5]) for s in (1, 2)]
    runs += [a_run("B", s, [0.5], up=0, down=0) for s in (1, 2)]
    (found,) = compared(*runs, measures=("bytes",), sections=())
    assert (found.pairs, found.verdict) == ((), "not measured")


def test_a_relative_difference_is_in_per_cent_of_the_other():
    """0.6 ÷ 0.5 and 0.7 ÷ 0.5: 20 and 40 per cent more."""
    runs = [a_run("A", 1, [0.6]), a_run("A", 2, [0.7])] + [a_run("B", s, [0.5]) for s in (1, 2)]
    (found,) = compared(*runs, relative=True, paper=30.0)
    assert found.estimate.value == pytest.approx(30)
    assert (found.is_ratio, found.threshold, found.paper_inside) == (False, 0.0, True)


def test_a_relative_difference_to_nothing_is_not_measured():
    runs = [a_run(label, s, [score]) for s in (1, 2) for label, score in (("A", 0.6), ("B", 0.0))]
    (found,) = compared(*runs, relative=True)
    assert (found.estimate, found.verdict) == (None, "not measured")


@pytest.mark.parametrize(
    ("behind", "verdict"),
    [([1.0, 1.1], "reproduced"), ([4.0, 4.1], "refuted"), ([1.0, 3.0], "not decided")],
)
def test_a_threshold_below_zero_is_the_margin_of_being_no_worse(behind, verdict):
    """A is so many points behind B, and is claimed to be less than two."""
    runs = [a_run("A", s, [0.8 - points / 100]) for s, points in zip((1, 2), behind, strict=True)]
    (found,) = compared(*runs, *(a_run("B", s, [0.8]) for s in (1, 2)), threshold=-2.0)
    assert found.verdict == verdict


def test_a_loss_is_compared_as_it_is():
    runs = [a_run("A", s, [0.5], loss=0.25) for s in (1, 2)]
    runs += [a_run("B", s, [0.5], loss=0.5) for s in (1, 2)]
    (found,) = compared(*runs, sections=("loss",), expect="less")
    assert (found.estimate.value, found.verdict) == (-0.25, "reproduced")
