"""Which stored runs count for a claim, and how far its experiment is."""

import msgspec
import pytest
from paired_runs import a_run, store_runs, write_files

from protofleet.experiments.claim_registry import load_claims
from protofleet.experiments.claim_results import or_earlier, progress_of, result_of, varied
from protofleet.experiments.claim_text import verdict_text
from protofleet.experiments.config import committed, load_experiment


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_unfinished_runs_other_settings_and_other_lengths_do_not_count(place):
    experiment = write_files(place)
    store_runs(
        place / "runs" / "one",
        experiment,
        a_run("A", 1, [0.5, 0.6, 0.7], loss=0.1),
        a_run("B", 1, [0.5, 0.6, 0.6], loss=0.2),
        a_run("A", 2, [0.5, 0.6, 0.9], key="another"),
        a_run("B", 2, [0.5, 0.6, 0.7]),
        a_run("A", 3, [0.5, 0.6, 0.9]),
        a_run("B", 3, [0.5], finished=False),
    )
    (claim,) = load_claims(place / "papers")
    result = result_of(claim, place / "runs")
    assert [pair.seed for pair in result.outcomes[0].pairs] == [1]
    assert (result.seeds_done, result.seeds_asked) == (1, 3)
    progress = progress_of("one.toml", experiment, place / "runs" / "one")
    assert progress.done == {"A": (1, 3), "B": (1, 2)}
    assert (progress.other, progress.finished) == (1, False)
    # A's seed 2 has all of its 3 rounds to come, B's seed 3 has 2; each takes 2 s.
    assert (progress.rounds_left, progress.seconds_left) == (5, 10.0)


def test_nothing_stored_is_nothing_done(place):
    experiment = write_files(place)
    progress = progress_of("one.toml", experiment, place / "runs")
    assert (progress.rounds_left, progress.seconds_left) == (18, None)
    (claim,) = load_claims(place / "papers")
    result = result_of(claim, place / "runs")
    assert {one.verdict for one in result.outcomes} == {"not measured"}


def test_a_whole_experiment_leaves_nothing(place):
    experiment = write_files(place)
    runs = [a_run(label, seed, [0.5] * 3) for label in "AB" for seed in (1, 2, 3)]
    store_runs(place, experiment, *runs)
    progress = progress_of("one.toml", experiment, place)
    assert (progress.finished, progress.seconds_left) == (True, 0.0)


def test_a_run_without_its_final_fit_is_not_finished(place):
    """All of its rounds are done, and yet it has to go on."""
    experiment = write_files(place)
    runs = [a_run(label, seed, [0.5] * 3) for label in "AB" for seed in (1, 2)]
    runs += [a_run("A", 3, [0.5] * 3), a_run("B", 3, [0.5] * 3, finished=False)]
    store_runs(place, experiment, *runs)
    progress = progress_of("one.toml", experiment, place)
    assert (progress.rounds_left, progress.other, progress.finished) == (0, 0, False)


def test_finished_runs_of_another_length_are_told_and_longer_ones_leave_no_debt(place):
    experiment = write_files(place)
    runs = [a_run("A", 1, [0.5] * 2), a_run("A", 2, [0.5] * 5, finished=False)]
    store_runs(place, experiment, *runs)
    progress = progress_of("one.toml", experiment, place)
    assert (progress.other, progress.done["A"]) == (1, ())
    assert progress.rounds_left == 3 + 0 + 3 + 9


def test_the_rest_takes_what_each_methods_rounds_took_without_final_fits(place):
    """A's rounds take 2 s, B's 10; 3 of A and 6 of B are left."""
    experiment = write_files(place)
    runs = [a_run("A", seed, [0.5] * 3, final=0.9) for seed in (1, 2)]
    slow = [
        msgspec.structs.replace(
            run,
            rounds=tuple(
                msgspec.structs.replace(one, seconds=900.0 if one.final else 10.0)
                for one in run.rounds
            ),
        )
        for run in [a_run("B", 1, [0.5] * 3, final=0.9)]
    ]
    store_runs(place, experiment, *runs, *slow)
    progress = progress_of("one.toml", experiment, place)
    assert (progress.rounds_left, progress.seconds_left) == (9, 3 * 2.0 + 6 * 10.0)


def test_a_run_that_diverged_is_neither_left_to_run_nor_forgotten(place):
    experiment = write_files(place)
    runs = [a_run(label, seed, [0.4 + seed / 10] * 3) for label in "AB" for seed in (1, 2)]
    runs += [a_run("A", 3, [0.9] * 3), stopped("B", 3)]
    store_runs(place / "one", experiment, *runs)
    progress = progress_of("one", experiment, place / "one")
    assert (progress.diverged, progress.rounds_left) == ({"A": (), "B": (3,)}, 0)
    assert progress.finished
    (claim,) = load_claims(place / "papers")
    first = result_of(claim, place).outcomes[0]
    assert first.diverged == {"B": (3,)}
    assert verdict_text(first) == "not decided; B diverged with seed 3"
    earlier = result_of(claim, place)
    store_runs(place / "there" / "one", experiment, *runs[:-1])
    there = result_of(claim, place / "there")
    assert there.outcomes[0].diverged == {}
    assert or_earlier(there, earlier).outcomes[0].diverged == {"B": (3,)}


def stopped(label, seed):
    run = a_run(label, seed, [0.1], finished=False)
    return msgspec.structs.replace(run, stopped="a loss is not finite")


def test_earlier_figures_count_for_each_comparison_by_what_is_claimed_now(place):
    """Stored are A and B with two seeds; earlier there were three, another threshold and no C."""
    experiment = write_files(place)
    runs = [a_run(label, s, [0.5 + 0.1 * (label == "A")] * 3) for label in "AB" for s in (1, 2, 3)]
    store_runs(place / "one", experiment, *runs)
    (claim,) = load_claims(place / "papers")
    earlier = result_of(claim, place)
    assert or_earlier(earlier, earlier) is earlier
    text = (place / "one.toml").read_text()
    (place / "one.toml").write_text(
        text.replace("methods = [", 'methods = [{label = "C", strategy = "fedprox"}, ')
    )
    file = place / "papers" / "fedx.toml"
    more = '\n[[claims.comparisons]]\nmethod = "A"\nagainst = "C"\nsections = ["personalisation"]\n'
    file.write_text(file.read_text().replace("paper = 2.0", "threshold = 20.0") + more)
    (claim,) = load_claims(place / "papers")
    result = or_earlier(result_of(claim, place / "empty"), earlier)
    first, last = result.outcomes[0], result.outcomes[-1]
    assert [len(one.pairs) for one in (first, last)] == [3, 0]
    assert (first.verdict, first.paper, last.verdict) == ("refuted", None, "not measured")
    assert result.curves.keys() == {"A", "B"}
    assert result.seeds_done == 0  # of A and C
    file.write_text(file.read_text().replace(more, ""))
    (claim,) = load_claims(place / "papers")
    assert or_earlier(result_of(claim, place / "empty"), earlier).seeds_done == 3
    (place / "one.toml").write_text(text.replace("epochs = 1", "epochs = 2"))
    (claim,) = load_claims(place / "papers")
    changed = result_of(claim, place / "empty")
    assert or_earlier(changed, earlier) is changed


def test_what_a_seed_varies_follows_from_the_division():
    people = ("the initial values", "the order of the examples")
    assert varied(load_experiment(committed()["claims/fedali-ucihar"])) == people
    assert varied(load_experiment(committed()["claims/fedsub-wesad-dynamic"])) == (
        *("which of them test", "which classes come back to whom"),
        *people,
    )
    assert varied(load_experiment(committed()["claims/fedhp-mnist"])) == (
        *("who has which examples", "which of them test", "who is in a round"),
        *people,
    )


def test_a_result_survives_json(place):
    experiment = write_files(place)
    runs = [a_run(label, seed, [0.1 * seed] * 3) for label in "AB" for seed in (1, 2, 3)]
    store_runs(place / "one", experiment, *runs)
    (claim,) = load_claims(place / "papers")
    result = result_of(claim, place)
    assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result
