"""Several experiments together: equal bytes, noise, costs, advice, the page; worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from protofleet.cli.main import main
from protofleet.experiments import _overview_figure, _overview_text
from protofleet.experiments.config import Experiment, digest, expanded, load_experiment
from protofleet.experiments.decisions import Situation, advise, groups, left_out
from protofleet.experiments.overview import (
    MOST_FREQUENT,
    Overview,
    as_good,
    data_set,
    overview,
    ranked,
)
from protofleet.experiments.store import EvaluationData, MethodResult, run_folder, save_result
from protofleet.federation.records import ClientCosts, RoundRecord, Scores, Spread

_METHODS = [
    {"label": "FedAvg", "strategy": "fedavg"},
    {"label": "Dear", "strategy": "scaffold"},
    {"label": "Cheap", "strategy": "fedproto"},
    {"label": "Cheap, long", "strategy": "fedproto", "rounds": 8},
    {"label": "Fitted", "strategy": "fedavg_c"},
    {"label": "Alone", "strategy": "local"},
    {"label": "Central", "strategy": "local", "merged": True},
]


def an_experiment(title="Digits", kind="iid", seeds=(1, 2, 3), methods=_METHODS) -> Experiment:
    partition = {"kind": kind, "clients": 2} | ({"alpha": 0.1} if kind == "dirichlet" else {})
    return msgspec.convert(
        {
            "title": title,
            "paper": "choosing",
            "table": title,
            "data": [{"name": "digits"}],
            "partition": partition,
            "model": {"name": "mlp"},
            "rounds": 4,
            "seeds": seeds,
            "methods": methods,
            "score": {"metric": "accuracy", "select": "last"},
        },
        Experiment,
    )


def scores(own, server=None, std=0.1):
    found = {"personalisation": {"accuracy": {"mean": own, "std": std, "n": 9}}}
    if server is not None:
        found["global"] = {"accuracy": {"mean": server, "std": 0, "n": 1}}
    return msgspec.convert(found, Scores)


def rests_on(pooled, frequent):
    """Test examples of all, and what always naming the most frequent class scores."""
    most_frequent = {"accuracy": Spread(mean=frequent, std=0.1, n=9)}
    return EvaluationData(pooled=pooled, most_frequent=most_frequent)


def a_run(experiment, label, own, *, seed=1, size=100, fit=None, train_s=0.5, peak=None, **more):
    """A round for each of ``own``; two clients that move ``size`` bytes each in a round."""
    method = next(one for one in experiment.methods if one.label == label)
    rounds = [(score, False) for score in own] + ([(fit, True)] if fit is not None else [])
    return MethodResult(
        experiment="x",
        label=label,
        strategy=method.strategy,
        seed=seed,
        identity="",
        engine="local",
        finished=True,
        rounds=tuple(
            RoundRecord(
                round_id=number + 1,
                final=final,
                seconds=1,
                participants=2,
                bytes_up=size,
                bytes_down=size,
                scores=scores(score, server=None if final else score - 0.1),
                # What a first round costs is no measure.
                costs=ClientCosts(train_s=train_s if number else 99.0, kept_bytes=size * 10),
            )
            for number, (score, final) in enumerate(rounds)
        ),
        clients=2,
        peak_bytes=peak,
        digest=digest(experiment, method),
        **more,
    )


def found(experiment, *runs):
    by_label = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    return data_set("x", experiment, by_label)


def entry_of(table, label):
    return next(one for one in table.entries if one.label == label)


@pytest.fixture
def table():
    experiment = an_experiment()
    return found(
        experiment,
        a_run(experiment, "FedAvg", [0.5, 0.6, 0.7, 0.8], peak=100),
        a_run(experiment, "Dear", [0.6, 0.7, 0.8, 0.9], size=150, train_s=1.0, peak=130),
        a_run(experiment, "Cheap", [0.3, 0.4, 0.5, 0.6], size=50),
        a_run(experiment, "Cheap, long", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.82, 0.84], size=50),
        a_run(experiment, "Fitted", [0.5, 0.6, 0.7, 0.8], size=101, fit=0.95),
        a_run(experiment, "Alone", [0.4, 0.5, 0.6, 0.7], size=0),
        a_run(experiment, "Central", [0.9, 0.9, 0.95, 0.99]),
    )


def test_equal_bytes_is_the_last_whole_round_within_what_fedavg_moves(table):
    """FedAvg's 4 rounds move 400 bytes a client: 2 rounds of 150, 8 of 50, 3 of 101."""
    at = {
        label: entry_of(table, label).places["bytes"]["personalisation"]
        for label in ("FedAvg", "Dear", "Cheap", "Cheap, long", "Fitted", "Alone")
    }
    assert {label: place.rounds for label, place in at.items()} == {
        "FedAvg": 4, "Dear": 2, "Cheap": 4, "Cheap, long": 8, "Fitted": 3, "Alone": 4,
    }  # fmt: skip
    assert at["Dear"].mean == pytest.approx(70)
    assert at["Cheap, long"].mean == pytest.approx(84)
    assert (at["Fitted"].mean, at["Fitted"].unfitted) == (pytest.approx(70), True)
    assert at["FedAvg"].behind == pytest.approx(4)  # behind the long cheap one
    assert set(entry_of(table, "Central").places) == {"rounds"}
    # A tenth of the bytes, 40: not one round but of who moves nothing.
    assert [one.label for one in table.entries if "tenth" in one.places] == ["Alone"]


def test_equal_rounds_are_fedavgs_and_a_final_fit_counts(table):
    places = {one.label: one.places.get("rounds", {}) for one in table.entries}
    means = {label: one["personalisation"].mean for label, one in places.items() if one}
    assert means == pytest.approx(
        {"FedAvg": 80, "Dear": 90, "Cheap": 60, "Fitted": 95, "Alone": 70, "Central": 99}
    )
    assert not places["Cheap, long"]  # it would be the cheap one again
    assert places["Central"]["personalisation"].behind is None
    assert places["Fitted"]["personalisation"].behind == 0
    assert not places["Fitted"]["personalisation"].unfitted
    assert [one.label for one in table.entries][:3] == ["Central", "Fitted", "Dear"]


def test_bytes_that_differ_by_a_thousandth_cost_no_round():
    experiment = an_experiment()
    table = found(
        experiment,
        a_run(experiment, "FedAvg", [0.5, 0.6, 0.7, 0.8], size=100_000),
        a_run(experiment, "Dear", [0.6, 0.7, 0.8, 0.9], size=100_020),
    )
    assert entry_of(table, "Dear").places["bytes"]["personalisation"].rounds == 4


def test_equal_bytes_are_those_of_the_same_seed():
    """FedAvg moves 400 bytes with seed 1 and 800 with seed 2: two and four rounds of 200."""
    experiment = an_experiment()
    runs = [a_run(experiment, "FedAvg", [0.5] * 4, seed=seed, size=100 * seed) for seed in (1, 2)]
    runs += [
        a_run(experiment, "Dear", [0.6, 0.7, 0.8, 0.9], seed=seed, size=200) for seed in (1, 2)
    ]
    place = entry_of(found(experiment, *runs), "Dear").places["bytes"]["personalisation"]
    assert {seed: one.mean for seed, one in place.by_seed.items()} == pytest.approx({1: 70, 2: 90})
    assert (place.rounds, place.std) == (3, pytest.approx(10))


def test_fedavg_on_a_model_of_its_own_sets_no_measure():
    other = {"label": "FedAvg, small", "strategy": "fedavg", "rounds": 2}
    methods = [other | {"model": {"name": "cnn"}}, *_METHODS]
    experiment = an_experiment(methods=methods)
    table = found(
        experiment,
        a_run(experiment, "FedAvg, small", [0.9, 0.95], size=10),
        a_run(experiment, "FedAvg", [0.5, 0.6, 0.7, 0.8]),
        a_run(experiment, "Central", [0.9] * 4),
    )
    assert (table.rounds, table.mb) == (4, pytest.approx(400e-6))
    assert entry_of(table, "FedAvg, small").own_model
    assert [one.label for one in table.entries if one.alone] == []
    advice = advise(Situation(wish="free"), [table])
    assert {one.label: one.entries[0].own_model for one in advice.candidates} == {
        "FedAvg": False, "FedAvg, small": True,
    }  # fmt: skip
    text = _overview_text.page(Overview(data_sets=(table,), missing=(), runs={}), "x", None)
    assert "**FedAvg, small°** (0.0; 1 of 1)" in text
    assert entry_of(table, "Central").ratios == {}


def test_a_method_that_is_scored_before_training_is_marked():
    experiment = an_experiment()
    early = a_run(experiment, "Dear", [0.6, 0.7, 0.8, 0.9])
    more = {"after_fit": early.rounds[0].scores.personalisation}
    rounds = [
        msgspec.structs.replace(one, scores=msgspec.structs.replace(one.scores, more=more))
        for one in early.rounds
    ]
    early = msgspec.structs.replace(early, rounds=tuple(rounds))
    table = found(experiment, early, a_run(experiment, "FedAvg", [0.5, 0.6, 0.7, 0.8]))
    assert [one.label for one in table.entries if one.early] == ["Dear"]
    text = _overview_text.page(Overview(data_sets=(table,), missing=(), runs={}), "x", None)
    assert "| Dear† | " in text


def test_costs_are_divided_by_fedavgs(table):
    dear = entry_of(table, "Dear")
    assert dear.ratios == pytest.approx({"mb": 1.5, "train_ms": 2, "kept_mb": 1.5, "peak_mb": 1.3})
    assert dear.costs.train_ms == pytest.approx(1000)
    assert "peak_mb" not in entry_of(table, "Cheap").ratios
    assert table.mb == pytest.approx(400e-6)


def test_a_method_that_cannot_afford_a_round_has_no_score_at_equal_bytes():
    experiment = an_experiment()
    table = found(
        experiment,
        a_run(experiment, "FedAvg", [0.5, 0.6, 0.7, 0.8]),
        a_run(experiment, "Dear", [0.9] * 4, size=500),
    )
    assert "bytes" not in entry_of(table, "Dear").places
    assert entry_of(table, "FedAvg").places["bytes"]["personalisation"].behind == 0


def test_a_method_that_cannot_afford_a_round_with_one_seed_has_no_score_of_the_other():
    experiment = an_experiment()
    runs = [a_run(experiment, "FedAvg", [0.5] * 4, seed=seed, size=100 * seed) for seed in (1, 2)]
    runs += [a_run(experiment, "Dear", [0.9] * 4, seed=seed, size=500) for seed in (1, 2)]
    table = found(experiment, *runs)
    assert table.seeds == (1, 2)
    assert "bytes" not in entry_of(table, "Dear").places


def test_figures_are_those_of_the_seeds_that_all_methods_have_finished():
    experiment = an_experiment()
    table = found(
        experiment,
        *(a_run(experiment, "FedAvg", [0.5 + seed / 10] * 4, seed=seed) for seed in (1, 2)),
        a_run(experiment, "Dear", [0.9] * 4, seed=2),
    )
    assert (table.seeds, table.asked) == ((2,), 3)
    assert set(table.missing) == {"Cheap", "Cheap, long", "Fitted", "Alone", "Central"}
    assert entry_of(table, "FedAvg").places["rounds"]["personalisation"].mean == pytest.approx(70)
    nothing = found(experiment, a_run(experiment, "Dear", [0.9] * 4))
    assert nothing is None


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
    assert left_out(both) == {"Dear": ["Two"]}
    text = _overview_text.page(Overview(data_sets=tuple(both), missing=(), runs={}), "x", None)
    assert "| Left out | Dear (not finished on Two) |" in text
    absent = msgspec.structs.replace(both[1], missing=())
    text = _overview_text.page(
        Overview(data_sets=(both[0], absent), missing=(), runs={}), "x", None
    )
    assert "| Left out | Dear (no row on Two, see its note) |" in text


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


def test_the_servers_model_has_the_interval_of_its_accuracy_over_the_pooled_examples():
    """0.5 and 0.45 right of 400 have 95 % intervals of 4.9 points each: together 6.9."""
    experiment = an_experiment()

    def table(pooled):
        evaluation = rests_on(pooled, 0.3)
        runs = [("FedAvg", 0.6), ("Dear", 0.55)]
        return found(
            experiment,
            *(a_run(experiment, n, [own] * 4, evaluation_data=evaluation) for n, own in runs),
        )

    place = entry_of(table(400), "FedAvg").places["rounds"]["global"]
    assert (place.by_seed[1].std, place.by_seed[1].n) == (pytest.approx(50), 400)
    good = [entry_of(table(n), "Dear").places["rounds"]["global"].as_good for n in (400, 1000)]
    assert good == [True, False]
    assert table(400).pooled == (400,)


def test_the_most_frequent_class_stands_beside_the_methods_and_is_never_advised():
    experiment = an_experiment()
    evaluation = rests_on(100, 0.75)
    table = found(
        experiment,
        a_run(experiment, "FedAvg", [0.5, 0.6, 0.7, 0.8], evaluation_data=evaluation),
        a_run(experiment, "Dear", [0.1] * 4, evaluation_data=evaluation),
    )
    floor = entry_of(table, MOST_FREQUENT)
    place = floor.places["rounds"]["personalisation"]
    assert (place.mean, place.behind, place.as_good) == (75, pytest.approx(5), True)
    assert MOST_FREQUENT not in {c.label for c in advise(Situation(wish="x"), [table]).candidates}
    assert left_out([table]) == {}
    text = _overview_text.page(Overview(data_sets=(table,), missing=(), runs={}), "x", None)
    assert f"| {MOST_FREQUENT} | **75.0** | - | - |" in text
    assert f"| {MOST_FREQUENT} | **5.0** | 5.0 |" in text


def test_methods_with_other_optimisers_or_more_steps_are_marked_and_their_settings_listed():
    sgd, adam = {"kind": "sgd", "lr": 0.1}, {"kind": "adam", "lr": 0.01}
    own = {"optimiser": adam}
    methods = [
        {"label": "FedAvg", "strategy": "fedavg"},
        {"label": "Adam", "strategy": "fedavg", "settings": own},
        {"label": "Long", "strategy": "fedavg", "settings": {"epochs": 4}},
        {"label": "Head", "strategy": "fedrep"},
    ]
    experiment = msgspec.structs.replace(
        an_experiment(methods=methods),
        note="One\nnote.",
        training={"epochs": 2, "optimiser": sgd},
    )
    shared = {"epochs": 2, "optimiser": sgd | {"momentum": 0.0}}
    heads = {"head_epochs": 1, "head_optimiser": adam}
    chosen = {"FedAvg": {}, "Adam": own, "Long": {"epochs": 4}, "Head": heads}
    table = found(
        experiment,
        *(a_run(experiment, n, [0.5] * 4, settings=shared | one) for n, one in chosen.items()),
    )
    marks = {one.label: (one.other_optimiser, one.more_steps) for one in table.entries}
    assert marks == {
        "FedAvg": (False, False), "Adam": (True, False), "Long": (False, True),
        "Head": (True, True),
    }  # fmt: skip
    lines = _overview_text.page(
        Overview(data_sets=(table,), missing=(), runs={}), "x", None
    ).splitlines()
    assert "One note." in lines
    assert 'All methods: `epochs = 2, optimiser = {kind = "sgd", lr = 0.1}`.' in lines
    assert '| Head | `head_optimiser = {kind = "adam", lr = 0.01}` |' in lines
    assert "| Long | `epochs = 4` |" in lines
    assert any(line.startswith("| Head§¶ | ") for line in lines)


def test_a_method_with_a_final_fit_is_marked_where_it_is_advised():
    experiment = an_experiment()
    table = found(
        experiment,
        a_run(experiment, "FedAvg", [0.1] * 4),
        a_run(experiment, "Fitted", [0.5] * 4, fit=0.9),
    )
    text = _overview_text.page(Overview(data_sets=(table,), missing=(), runs={}), "x", None)
    assert "**Fitted‡** (0.0; 1 of 1)" in text


def test_names_in_a_column_never_overlap_and_stay_in_it_while_there_is_room():
    assert _overview_figure.apart([0.9, 0.5], [0.1, 0.1]) == pytest.approx([0.9, 0.5])
    assert _overview_figure.apart([0.5, 0.5], [0.1, 0.2]) == pytest.approx([0.5, 0.35])
    assert _overview_figure.apart([0.01, 0.0], [0.1, 0.1]) == pytest.approx([0.15, 0.05])
    assert _overview_figure.apart([1.0, 1.0], [0.5, 0.6]) == pytest.approx([0.75, 0.2])


def test_points_that_are_beaten_for_less_are_not_on_the_front():
    ends = {"a": (1.0, 50.0), "b": (2.0, 40.0), "c": (3.0, 60.0), "d": (3.0, 55.0)}
    assert _overview_figure.pareto(ends) == ["a", "c"]
    alike = {"a": (1.0, 50.0), "b": (1.005, 60.0), "c": (1.1, 55.0), "d": (1.1, 60.0)}
    assert _overview_figure.pareto(alike) == ["b"]


@pytest.fixture
def stored(tmp_path):
    """Two experiments, of which one has runs."""
    experiments = {"one": an_experiment("One"), "two": an_experiment("Two", kind="dirichlet")}
    one = experiments["one"]
    for run in (
        *(a_run(one, "FedAvg", [0.5, 0.6, 0.7, 0.8], seed=seed, peak=100) for seed in (1, 2)),
        a_run(one, "Dear", [0.6, 0.7, 0.8, 0.9], size=150),
        a_run(one, "Alone", [0.4, 0.5, 0.6, 0.7], size=0),
        a_run(one, "Cheap", [0.1], size=50),  # stopped after a round: not what the file asks for
    ):
        method = next(method for method in one.methods if method.label == run.label)
        save_result(run_folder(tmp_path / "one", method, run.seed), run)
    return overview(experiments, tmp_path)


def test_the_page_is_the_same_for_the_same_results_and_names_what_is_missing(stored, tmp_path):
    page = _overview_text.page(stored, "protofleet experiment table one two", "images/x.png")
    assert page == _overview_text.page(
        stored, "protofleet experiment table one two", "images/x.png"
    )
    lines = page.splitlines()
    assert "Not yet run: `two`." in lines
    assert "| [One](#one) | iid | 2 | `mlp` | accuracy | - | 4 | 0.0004 | 1 of 3 |" in lines
    dear = [line for line in lines if line.startswith("| Dear | ")]
    assert dear[-3:] == [
        "| Dear | **90.0** | - | **80.0** |",
        "| Dear | **70.0** | - | 60.0 | 2 |",
        "| Dear | 0.00015 | 1.50 | 1.00 | 0.0015 | - | - |",
    ]
    (slow,) = [line for line in lines if line.startswith("| A slow or dear link")]
    assert slow.endswith("| **Alone** (0.0; 1 of 1) |")
    narrow, wide = (_overview_text.page(stored, "x", None, columns=n) for n in (80, 140))
    assert ("| Dear | **90.0**" in narrow, "| Dear | **90.0**" in wide) == (False, True)
    assert "Its table takes 140 columns" in narrow
    drawings = []
    for name in ("x.svg", "y.svg"):
        _overview_figure.draw(stored, tmp_path / name)
        drawings.append((tmp_path / name).read_bytes())
    assert drawings[0] == drawings[1]


def test_several_names_and_a_folder_of_experiments_are_compared(tmp_path, capsys):
    names = expanded(["choosing"])
    assert "choosing/ucihar" in names
    assert expanded(["digits.toml", "choosing/wisdm"]) == ["digits.toml", "choosing/wisdm"]
    with pytest.raises(SystemExit) as ended:
        main(["experiment", "table", "choosing", "--out", str(tmp_path)])
    assert ended.value.code == 1
    assert "found none that are finished; make them with" in capsys.readouterr().err


_FILE = """
title = "Digits"
paper = "x"
table = "1"
rounds = 4
partition = {kind = "iid", clients = 2}
model = {name = "mlp"}
data = [{name = "digits"}]
score = {metric = "accuracy", select = "last"}
"""


def test_some_methods_of_several_experiments_are_compared_where_they_are(
    tmp_path, monkeypatch, capsys
):
    """The second one has neither of the two, and so no say."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.toml").write_text(
        _FILE
        + """
        methods = [{label = "FedAvg", strategy = "fedavg"}, {label = "Dear", strategy = "scaffold"},
                   {label = "Alone", strategy = "local"}]"""
    )
    other = 'methods = [{label = "Average", strategy = "fedavg"}]'
    (tmp_path / "two.toml").write_text(_FILE + other)
    one = load_experiment(tmp_path / "one.toml")
    for method in one.methods:
        run = a_run(one, method.label, [0.5, 0.6, 0.7, 0.8])
        save_result(run_folder(tmp_path / "runs" / "one", method, 1), run)

    def table(*labels):
        chosen = [word for label in labels for word in ("--methods", label)]
        with pytest.raises(SystemExit) as ended:
            main(["experiment", "table", "one.toml", "two.toml", "--markdown", *chosen])
        return ended.value.code or 0

    assert table("Dear", "FedAvg") == 0
    printed = capsys.readouterr().out
    assert "| Dear | " in printed
    assert "| Alone | " not in printed
    assert "Not yet run" not in printed
    assert table("Dear") == 1
    assert "--methods: expected FedAvg among them" in capsys.readouterr().err
