"""Curves of the methods that a claim compares."""

import msgspec
from paired_runs import a_run, store_runs, write_files

from protofleet.experiments.claim_curves import by_bytes, curve_section, curves_of
from protofleet.experiments.claim_registry import load_claims
from protofleet.experiments.claim_results import result_of


def test_curves_are_means_of_the_seeds_by_round_without_the_final_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = write_files(tmp_path)
    runs = [a_run("A", s, [0.2, 0.4, 0.5 + s / 10], final=0.9) for s in (1, 2)]
    store_runs(tmp_path / "one", experiment, *runs)
    (claim,) = load_claims(tmp_path / "papers")
    curves = result_of(claim, tmp_path).curves
    assert curves.keys() == {"A"}
    assert (curves["A"].seeds, curves["A"].points) == (
        2,
        ((1, 20, 0), (2, 40, 0), (3, 65, 5)),
    )


def test_a_claim_of_bytes_has_its_curves_over_them(tmp_path, monkeypatch):
    """2 kB a round over two clients."""
    monkeypatch.chdir(tmp_path)
    experiment = write_files(tmp_path)
    store_runs(tmp_path / "one", experiment, a_run("A", 1, [0.2, 0.4, 0.5], up=10**6, down=10**6))
    (claim,) = load_claims(tmp_path / "papers")
    result = result_of(claim, tmp_path)
    assert not by_bytes(result.outcomes)  # they are a detail
    outcomes = [msgspec.structs.replace(one, detail=False) for one in result.outcomes]
    runs = {"A": [a_run("A", 1, [0.2, 0.4], up=10**6, down=10**6)]}
    points = curves_of(outcomes, runs, "accuracy")["A"].points
    assert [point.place for point in points] == [1, 2]
    assert curve_section(outcomes) == "personalisation"
    assert curve_section(outcomes[2:]) is None
