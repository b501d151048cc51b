"""Who sets nothing gets a strategy that learns: a slice of ``all/defaults-small``, in full."""

from __future__ import annotations

from functools import cache

import pytest
from rich.console import Console

from protofleet.experiments.config import find, load_experiment
from protofleet.experiments.runner import RunOptions, run_experiment

pytestmark = pytest.mark.slow(seconds=35)

# Each with a record of defaults of its own. Least accuracies of the last round, in per cent, on the
# clients' own test parts: below what any of five seeds gave by at least two points.
LEAST = {
    "Local": 90,
    "FedAvg": 92,
    "SCAFFOLD": 89,
    "FedHKD": 89,
    "FedRep": 90,
    "Ditto": 92,
    "APFL": 88,
    "Per-FedAvg": 88,
    "pFedMe": 92,
    "FedProto": 90,
    "FedPAC": 89,
    "FedALA": 90,
    "FedHP": 88,
    "FedSub": 88,
}


@cache
def _accuracies(folder, data_root):
    options = RunOptions(data_root=data_root, seeds=(1,), labels=tuple(LEAST), workers=1)
    found = run_experiment(
        "all/defaults-small",
        load_experiment(find("all/defaults-small")),
        folder,
        options,
        Console(quiet=True),
    )
    return {one.label: 100 * one.last.personalisation["accuracy"].mean for one in found}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("defaults")


def test_no_row_sets_how_a_client_trains():
    experiment = load_experiment(find("all/defaults-small"))
    assert not experiment.training
    assert {key for one in experiment.methods for key in one.settings} == {"pixelise", "factor"}


@pytest.mark.parametrize("label", LEAST)
def test_a_strategy_learns_ten_digits_in_ten_rounds(label, folder, data_root):
    assert _accuracies(folder, data_root)[label] >= LEAST[label]
