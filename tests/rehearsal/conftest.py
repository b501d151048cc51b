"""A small fleet to rehearse: a tiny model, owners with data, a federation's file."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle, tiny_data, trust_in_tests

from protofleet.datasets import DeviceData
from protofleet.rehearsal.fleet_file import DeviceGroup, RehearsalFile

_CLASSES = ("class0", "class1", "class2")
_FEDERATION = """
federation = "study"
broker = "mqtt://127.0.0.1:1883"
bundle = "bundle.pfb"
run_dir = "run"
rounds = 3
seed = 5

[cohort]
minimum = 4

[round]
deadline_s = 3600.0
"""


@pytest.fixture
def study(tmp_path) -> Path:
    """A folder with bundle, ``federation.toml`` and six owners' data."""
    key = Ed25519PrivateKey.generate()
    trust_in_tests(key)
    tiny_bundle(tmp_path / "bundle.pfb", key)
    (tmp_path / "federation.toml").write_text(_FEDERATION)
    (tmp_path / "data").mkdir()
    for number in range(6):
        x, y = tiny_data(number, 60)
        data = DeviceData(
            x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:], classes=_CLASSES
        )
        data.save(tmp_path / "data" / f"owner-{number}.npz")
    return tmp_path


@pytest.fixture
def fleet(study) -> RehearsalFile:
    """Four boards that are always there."""
    return RehearsalFile(
        federation=study / "federation.toml",
        data=study / "data",
        days=1.0,
        step_s=0.1,
        groups=(DeviceGroup(name="board", count=4, hardware="pi-4", network="ethernet"),),
    )
