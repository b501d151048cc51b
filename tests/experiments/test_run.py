"""What a run's strategy is told beside the experiment's file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy_model import server_tools

from protofleet.experiments.config import Method
from protofleet.strategies.types import Update


def _plan(job, strategy, **settings):
    method = Method(label="method", strategy=strategy, settings=settings)
    return replace(job, method=method).plan()


@pytest.mark.parametrize(
    ("strategy", "sent", "kept"),
    [("scaffold", "change/control/", "control/"), ("feddyn", "params/", "moved/")],
)
def test_the_first_round_of_four_of_five_clients_divides_by_five(job, strategy, sent, kept):
    """SCAFFOLD: c = (1/N) Σ_S Δc_i; FedDyn: -h/alpha = (1/N) Σ_S (θ_i - θ) for any alpha."""
    plan = _plan(job, strategy)
    server = plan.strategy.server_init(plan.model, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    changes = rng.normal(size=(4, plan.model.params.layout.shapes["head"][0], 3))
    updates = []
    for name, change in zip("abcd", changes.astype(np.float32), strict=True):
        zeros = {
            key: np.zeros(f.shape, f.dtype) for key, f in plan.strategy.uplink.required.items()
        }
        params = {key: value for key, value in server.tensors.items() if key in zeros}
        tensors = {**zeros, **params}
        tensors[sent + "head"] = tensors[sent + "head"] + change
        updates.append(Update(client_id=name, round_id=1, num_examples=3, tensors=tensors))
    after = plan.strategy.aggregate(server, updates, server_tools()).tensors
    np.testing.assert_allclose(after[kept + "head"], changes.sum(axis=0) / 5, atol=1e-6)
    assert not after[kept + "padding"].any()


def test_a_stated_population_stays_and_the_server_s_other_settings_too(job):
    server = {"lr": 0.5, "population": 9}
    assert _plan(job, "scaffold", server=server).settings["server"] == server
    assert _plan(job, "scaffold", server={"lr": 0.5}).settings["server"] == {
        "lr": 0.5,
        "population": 5,
    }


def test_where_all_take_part_the_first_round_tells_how_many_there_are(job):
    method = Method(label="method", strategy="scaffold", cohort="all")
    assert "server" not in replace(job, method=method).plan().settings


@pytest.mark.parametrize("strategy", ["fedavg", "pfedme"])
def test_who_asks_for_no_population_is_told_none_and_keeps_its_identity(job, strategy):
    """Their stored runs stay good."""
    assert "server" not in _plan(job, strategy).settings
