"""A method of five clients, of whom three take part in a round, on a synthetic bundle."""

from __future__ import annotations

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.benchmarks._synthetic_bundle import (
    SETTINGS,
    synthetic_data,
    write_synthetic_bundle,
)
from protofleet.experiments.config import Experiment
from protofleet.experiments.prepare import ClientFiles, PreparedData
from protofleet.experiments.run import Job

_EXPERIMENT = {
    "title": "synthetic",
    "paper": "none",
    "table": "none",
    "data": [{"name": "digits"}],
    "partition": {"kind": "dirichlet", "clients": 5, "alpha": 1.0},
    "model": {"name": "synthetic"},
    "rounds": 4,
    "cohort": 3,
    "seeds": [1],
    "training": dict(SETTINGS),
    "methods": [{"label": "Ditto", "strategy": "ditto"}],
}


@pytest.fixture
def job(tmp_path):
    bundle, data = tmp_path / "bundle.pfb", tmp_path / "data.npz"
    write_synthetic_bundle(bundle, 1000, Ed25519PrivateKey.generate())
    synthetic_data().save(data)
    experiment = msgspec.convert(_EXPERIMENT, Experiment)
    prepared = PreparedData(
        clients={f"client-{number}": ClientFiles(own=data) for number in range(5)},
        merged=data,
        pooled=None,
        classes=synthetic_data().classes,
        input_shape=(4,),
        key="synthetic",
    )
    folder = tmp_path / "run"
    folder.mkdir()
    return Job(
        experiment=experiment,
        method=experiment.methods[0],
        seed=1,
        rounds=4,
        bundle=bundle,
        data=prepared,
        folder=folder,
        name="synthetic",
    )
