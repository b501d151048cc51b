from __future__ import annotations

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet.federation.plan import make_plan
from protofleet.federation.settings import StrategySettings
from protofleet.strategies.optimisers import Adam


def test_the_file_s_settings_go_over_the_bundle_s(tiny, tmp_path):
    """What is in force is what the strategy has, what travels and what identifies the run."""
    brought = {"epochs": 2, "optimiser": {"kind": "adam", "lr": 0.1, "beta1": 0.8}}
    bundle = tiny_bundle(tmp_path / "other.pfb", Ed25519PrivateKey.generate(), settings=brought)
    mine = StrategySettings(settings={"optimiser": {"lr": 0.5}})
    plan = make_plan(msgspec.structs.replace(tiny.plan.config, bundle=bundle, strategy=mine))
    assert plan.settings == {"epochs": 2, "optimiser": {"kind": "adam", "lr": 0.5, "beta1": 0.8}}
    assert plan.strategy.settings.optimiser == Adam(lr=0.5, beta1=0.8)
    assert '"lr":0.5' in plan.identity["settings"]
