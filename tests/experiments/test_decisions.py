"""Which method for which situation; worked out by hand."""

from __future__ import annotations

import msgspec
import pytest
from overview_runs import a_run, an_experiment, found, page_of

from protofleet.experiments.decisions import Situation, advise, groups, left_out


def _two(table_of):
    """Two data sets that are divided alike; each with its own best."""
    first, second = an_experiment("One"), an_experiment("Two")
    return [table_of(first, 0.9, 0.8), table_of(second, 0.7, 0.85)]


def test_advice_is_the_method_as_good_on_most_data_sets_within_the_limit():
    def table_of(experiment, dear, cheap):
        runs = []
        for seed in (1, 2, 3):
            runs += [
                a_run(experiment, "FedAvg", [0.6] * 4, seed=seed),
                a_run(experiment, "Dear", [dear] * 4, seed=seed, size=150),
                a_run(experiment, "Cheap", [cheap] * 4, seed=seed, size=50),
                a_run(experiment, "Alone", [0.5] * 4, seed=seed, size=0),
                a_run(experiment, "Central", [0.99] * 4, seed=seed),
            ]
        return found(experiment, *runs)

    both = _two(table_of)
    assert list(groups(both).values()) == [both]
    advice = advise(Situation(wish="free"), both)
    # Cheap is 10 behind on one and best on the other; Dear best on one and 15 behind.
    assert [(one.label, one.good_on) for one in advice.candidates] == [
        ("Cheap", 1), ("Dear", 1), ("FedAvg", 0), ("Alone", 0),
    ]  # fmt: skip
    assert advice.candidates[0].behind == pytest.approx(5)
    assert [one.label for one in advice.equals] == ["Cheap", "Dear"]
    assert advice.lightest.label == "Cheap"
    limited = advise(Situation(wish="slow link", cost="mb", most=0.2), both)
    assert [one.label for one in limited.candidates] == ["Alone"]
    assert limited.lightest is None  # it takes no federation
    assert advise(Situation(wish="memory", cost="peak_mb"), both).candidates == ()


def test_data_sets_of_another_division_or_model_are_another_group():
    one = found(an_experiment(), a_run(an_experiment(), "FedAvg", [0.5] * 4))
    others = [
        msgspec.structs.replace(one, model="cnn"),
        msgspec.structs.replace(one, partition="x"),
    ]
    assert list(groups([one, *others, one]).values()) == [[one, one], [others[0]], [others[1]]]


def test_advised_is_what_ran_on_every_data_set_and_unknown_noise_is_no_praise():
    """The server's model has no clients: with one seed nothing but the best is known to be good."""
    first, second = an_experiment("One"), an_experiment("Two")
    both = [
        found(first, *(a_run(first, label, [0.6] * 4) for label in ("FedAvg", "Dear"))),
        found(second, a_run(second, "FedAvg", [0.6] * 4)),
    ]
    assert [one.label for one in advise(Situation(wish="free"), both).candidates] == ["FedAvg"]
    runs = [a_run(first, "FedAvg", [0.6] * 4), a_run(first, "Dear", [0.601] * 4)]
    advice = advise(Situation(wish="one model", section="global"), [found(first, *runs)])
    assert [(one.label, one.good_on) for one in advice.candidates] == [("Dear", 1), ("FedAvg", 0)]


def test_the_best_on_a_data_set_counts_even_where_it_lacks_another():
    """Dear is 30 points ahead on one data set and not run on the other."""
    first, second = an_experiment("One"), an_experiment("Two")
    both = [
        found(first, a_run(first, "FedAvg", [0.6] * 4), a_run(first, "Dear", [0.9] * 4)),
        found(second, a_run(second, "FedAvg", [0.6] * 4)),
    ]
    (only,) = advise(Situation(wish="free"), both).candidates
    assert (only.label, only.good_on, only.behind) == ("FedAvg", 1, pytest.approx(15))


def test_what_any_data_set_has_is_left_out_where_it_has_no_row_with_the_reason():
    """Dear has a row on one of a group's two; Cheap is asked for but nowhere finished."""
    first, second = an_experiment("One"), an_experiment("Two")
    both = [
        found(first, *(a_run(first, n, [0.6] * 4) for n in ("FedAvg", "Dear")), name="1"),
        found(second, a_run(second, "FedAvg", [0.6] * 4), name="2"),
    ]
    both = [msgspec.structs.replace(both[0], missing=()), both[1]]
    everywhere = ["Alone", "Central", "Cheap", "Cheap, long", "Fitted"]
    assert left_out(both, both) == {"1": everywhere, "2": sorted([*everywhere, "Dear"])}
    some = [msgspec.structs.replace(one, missing=missing) for one, missing in
            zip(both, [("Cheap",), ("Cheap", "Dear")], strict=True)]  # fmt: skip
    told = "One: Cheap (not finished). Two: Cheap (not finished); Dear (not finished)"
    assert f"| Left out | {told} |" in page_of(*some)


def test_a_group_of_a_single_data_set_names_what_the_others_have():
    """Its file lacks Dear, which its note explains."""
    first, second = an_experiment("One"), an_experiment("Two", kind="dirichlet")
    whole = found(first, *(a_run(first, n, [0.6] * 4) for n in ("FedAvg", "Dear")), name="1")
    lacks = found(second, a_run(second, "FedAvg", [0.6] * 4), name="2")
    every = [msgspec.structs.replace(one, missing=()) for one in (whole, lacks)]
    assert left_out(every[1:], every) == {"2": ["Dear"]}
    assert "| Left out | - | Two: Dear |" in page_of(*every)


def test_where_nothing_is_as_good_as_the_best_one_method_is_named():
    """The best on each data set was not run on the other."""
    first, second = an_experiment("One"), an_experiment("Two")
    weak = {"FedAvg": 0.5, "Alone": 0.4}
    both = [
        found(one, *(a_run(one, label, [own] * 4) for label, own in (weak | {best: 0.9}).items()))
        for one, best in ((first, "Dear"), (second, "Cheap"))
    ]
    advice = advise(Situation(wish="free"), both)
    assert [(one.label, one.good_on) for one in advice.equals] == [("FedAvg", 0)]
    line = next(one for one in page_of(*both).splitlines() if "whatever it costs" in one)
    assert line.endswith("| FedAvg (40.0; none is as good as the best) |")


@pytest.mark.parametrize(
    ("measure", "label", "size", "rounds", "times"),
    [
        ("rounds", "Cheap", 20, 4, 0.2),
        ("bytes", "Cheap, long", 20, 8, 0.4),
        ("tenth", "Cheap, long", 5, 8, 0.1),
        ("tenth", "Cheap, long", 10, 8, 0.1),  # four of its rounds
    ],
)
def test_bytes_are_those_of_all_rounds_to_the_score(measure, label, size, rounds, times):
    """With light rounds a method may have moved as much as others, in more of them."""
    experiment = an_experiment()
    one = found(
        experiment,
        a_run(experiment, "FedAvg", [0.6] * 4),
        a_run(experiment, label, [0.6] * rounds, size=size),
    )
    lightest = advise(Situation(wish="any", measure=measure), [one]).lightest
    assert (lightest.label, lightest.bytes_ratio) == (label, pytest.approx(times))
