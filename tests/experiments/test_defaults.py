"""Who sets nothing gets a strategy that learns: a slice of ``outcome/digits``, in full."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
from rich.console import Console

from protofleet.experiments.config import find, load_experiment
from protofleet.experiments.outcomes import task_outcome
from protofleet.experiments.runner import RunOptions, run_experiment

pytestmark = pytest.mark.slow(seconds=35)

FOUND = ("local", "fedavg", "ditto", "fedali")
"""With the rate that their clients find."""
OWN = {"local": 90, "scaffold": 89, "perfedavg": 88, "fedhp": 88}
"""With their own rates, which count beside noise and in cells: least accuracies of the last round,
in per cent, on the clients' own test parts, at least two points below what any of five seeds gave.
"""


@cache
def _run(folder, data_root, labels, finds_rate):
    experiment = load_experiment(find("outcome/digits"))
    experiment = msgspec.structs.replace(experiment, finds_rate=finds_rate)
    options = RunOptions(data_root=data_root, seeds=(1,), labels=labels, workers=1)
    place = folder / str(finds_rate)
    results = run_experiment("outcome/digits", experiment, place, options, Console(quiet=True))
    return task_outcome("outcome/digits", experiment, place), results


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("defaults")


@pytest.mark.parametrize("label", FOUND)
def test_a_strategy_helps_every_owner_and_harms_none(label, folder, data_root):
    """Eight people whose model knew nothing: with ten rounds it knows nine digits of ten."""
    found, _ = _run(folder, data_root, FOUND, finds_rate=True)
    row = found.rows[label]
    assert (row.helped, row.harmed, row.learns) == (8, 0, True)
    assert row.start < 0.2
    assert row.end > 0.8
    assert len(row.rates) == 1


@pytest.mark.full_size
@pytest.mark.parametrize("label", OWN)
def test_a_strategy_learns_with_its_own_rate(label, folder, data_root):
    _, results = _run(folder, data_root, tuple(OWN), finds_rate=False)
    (run,) = [one for one in results if one.label == label]
    assert run.calibration is None
    assert 100 * run.last.personalisation["accuracy"].mean >= OWN[label]
