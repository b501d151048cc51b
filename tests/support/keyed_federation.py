"""A federation with keys of two devices: its data, its settings, what its result must equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.benchmarks._keys import enrol_here
from protofleet.datasets import DeviceData
from protofleet.edge.learning.training import LocalData
from protofleet.federation.settings import CohortSettings, FederationConfig, RoundSettings
from protofleet.wire.mqtt.broker_access import BrokerAccess


def part(seed: int) -> LocalData:
    """One device's examples."""
    x, y = tiny_data(seed, 12)
    test = tiny_data(1000 + seed, 6)
    classes = ("class0", "class1", "class2")
    own = DeviceData(x_train=x, y_train=y, x_test=test[0], y_test=test[1], classes=classes)
    return LocalData(own=own)


DATA = {"anna": part(1), "berta": part(2)}


def keyed_config(folder: Path, url: str, key: Ed25519PrivateKey) -> FederationConfig:
    """Its devices are enrolled, their stores beside the run folder."""
    enrol_here(folder / "federation", "home", {n: folder / f"store-{n}" for n in DATA}, url)
    return FederationConfig(
        federation="home",
        broker=BrokerAccess(url=url),
        bundle=tiny_bundle(folder / "tiny.pfb", key),
        run_dir=folder / "run",
        rounds=2,
        keys=folder / "federation",
        cohort=CohortSettings(minimum=2),
        round=RoundSettings(deadline_s=120.0),
    )


def outcome(result: dict[str, Any]) -> str:
    """What must not depend on the road: participants and scores of every round."""
    rounds = [(row["round_id"], row["participants"], row["scores"]) for row in result["rounds"]]
    return json.dumps([rounds, result["scores"]])
