"""Figures of alignment layers in the results of a run."""

import msgspec
import pytest
from rich.console import Console

from protofleet.errors import InputError
from protofleet.experiments.config import Experiment
from protofleet.experiments.runner import RunOptions, run_experiment
from protofleet.experiments.store import load_results

_BASE = {
    "title": "Digits",
    "paper": "none",
    "table": "none",
    "data": [{"name": "digits"}],
    "partition": {"kind": "iid", "clients": 2},
    "model": {"name": "aligned_rows:build"},
    "rounds": 2,
    "seeds": [1],
    "training": {"epochs": 1},
    "methods": [{"label": "FedAli", "strategy": "fedali"}],
    "diagnostics": True,
}


def run(changes, folder, **options):
    chosen = msgspec.convert({**_BASE, **changes}, Experiment)
    given = RunOptions(data_root=folder, workers=1, **options)
    run_experiment("digits", chosen, folder / "runs", given, Console(quiet=True))
    return load_results(folder / "runs", chosen)


@pytest.mark.slow(seconds=15)
@pytest.mark.timeout(240)
def test_every_round_tells_of_its_layers_and_without_a_request_of_clustering_alone(tmp_path):
    """What is known anyway comes always; the rest belongs to another run, made anew."""
    (asked,) = run({"score": {"pooled_limit": 64}}, tmp_path)
    named = {f"align.{name}" for name in ("relabelled", "relocated", "moved")}
    for one in asked.rounds:
        figures = one.figures
        layers = {f"align.{name}" for name in ("cosine", "used", "entropy", "mixed")}
        assert figures.keys() == named | layers
        assert 0 < figures["align.used"] <= 1
        assert 0 < figures["align.entropy"] < 1
        assert -1 <= figures["align.cosine"] <= 1
    (plain,) = run({"score": {"pooled_limit": 64}, "diagnostics": False}, tmp_path)
    assert plain.rounds[0].figures.keys() == named
    assert [one.scores for one in plain.rounds] == [one.scores for one in asked.rounds]
    with pytest.raises(InputError, match="expected test examples of everybody"):
        run({"score": {"pooled_limit": 0}}, tmp_path)
    with pytest.raises(InputError, match="`diagnostics`: computed by the engines local and ray"):
        run({"score": {"pooled_limit": 64}}, tmp_path, engine="mqtt")
