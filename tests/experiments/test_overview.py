"""Several experiments together: equal bytes, costs, which runs count; worked out by hand."""

from __future__ import annotations

import msgspec
import pytest
from overview_runs import METHODS, a_run, an_experiment, entry_of, found, page_of, rests_on

from protofleet.experiments.decisions import Situation, advise, left_out
from protofleet.experiments.overview import MOST_FREQUENT, overview
from protofleet.experiments.store import run_folder, save_result


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
    methods = [other | {"model": {"name": "cnn"}}, *METHODS]
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
    text = page_of(table)
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
    text = page_of(table)
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


def test_a_method_that_diverged_with_a_seed_is_left_out_and_the_others_keep_theirs():
    experiment = an_experiment()
    runs = [
        a_run(experiment, n, [0.5] * 4, seed=seed) for n in ("FedAvg", "Dear") for seed in (1, 2, 3)
    ]
    runs += [a_run(experiment, "Cheap", [0.9] * 4, seed=seed) for seed in (1, 3)]
    table = found(experiment, *runs, diverged={"FedAvg": (), "Cheap": (2,), "Alone": (1, 2, 3)})
    assert table.seeds == (1, 2, 3)
    assert [one.label for one in table.entries] == ["Dear", "FedAvg"]
    missing = "Cheap (diverged with seed 2), Cheap, long, Fitted, Alone (diverged with seeds 1-3)"
    page = page_of(table)
    assert f"Not run: {missing}, Central." in page
    assert "Cheap (diverged with seed 2); Cheap, long (not finished)" in page


def test_fedavg_is_the_measure_with_the_seeds_by_which_it_did_not_diverge():
    experiment = an_experiment()
    table = found(
        experiment,
        a_run(experiment, "FedAvg", [0.5] * 4, seed=1),
        *(a_run(experiment, "Dear", [0.6] * 4, seed=seed) for seed in (1, 2)),
        diverged={"FedAvg": (2,)},
    )
    assert table.seeds == (1,)
    assert ". FedAvg diverged with seed 2: no figures are of that." in page_of(table)


def test_the_overview_reads_of_stored_runs_which_diverged(tmp_path):
    experiment = an_experiment(seeds=(1, 2))
    runs = [a_run(experiment, n, [0.5] * 4, seed=s) for n in ("FedAvg", "Dear") for s in (1, 2)]
    broken = a_run(experiment, "Dear", [0.5], seed=2)
    runs[-1] = msgspec.structs.replace(broken, finished=False, stopped="a loss is not finite")
    for run in runs:
        method = next(one for one in experiment.methods if one.label == run.label)
        save_result(run_folder(tmp_path / "one", method, run.seed), run)
    (table,) = overview({"one": experiment}, tmp_path).data_sets
    assert (table.seeds, table.diverged) == ((1, 2), {"Dear": (2,)})
    assert "Dear" in table.missing


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
    assert MOST_FREQUENT not in left_out([table], [table])["x"]
    text = page_of(table)
    assert f"| {MOST_FREQUENT} | **75.0** | - | - |" in text
    assert f"| {MOST_FREQUENT} | **5.0** | 5.0 |" in text
