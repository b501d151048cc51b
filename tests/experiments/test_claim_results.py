"""Which stored runs count for a claim, and how far its experiment is."""

import msgspec
import pytest
from paired_runs import a_run, store_runs, write_files

from protofleet.experiments.claim_registry import load_claims
from protofleet.experiments.claim_results import progress_of, result_of


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
    assert (progress.older, progress.finished) == (1, False)
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


def test_a_result_survives_json(place):
    experiment = write_files(place)
    runs = [a_run(label, seed, [0.1 * seed] * 3) for label in "AB" for seed in (1, 2, 3)]
    store_runs(place / "one", experiment, *runs)
    (claim,) = load_claims(place / "papers")
    result = result_of(claim, place)
    assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result
