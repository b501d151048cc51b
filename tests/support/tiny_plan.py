"""A tiny bundle and what a coordinator makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet.federation.admission import ExpectedUpdate, expect_updates
from protofleet.federation.plan import Plan, make_plan
from protofleet.federation.settings import FederationConfig, LimitSettings
from protofleet.wire.mqtt.broker_access import BrokerAccess

_LIMITS = LimitSettings(update_bytes=10_000)


@dataclass(frozen=True)
class Tiny:
    """A plan and what its updates look like."""

    plan: Plan
    expected: ExpectedUpdate

    def tensors(self) -> dict[str, Any]:
        """An update's tensors, ones everywhere."""
        return {n: np.ones(f.shape, f.dtype) for n, f in self.expected.uplink.required.items()}


@pytest.fixture
def tiny(tmp_path):
    config = FederationConfig(
        federation="home",
        broker=BrokerAccess(url="mqtt://127.0.0.1"),
        bundle=tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate()),
        run_dir=tmp_path / "run",
        rounds=2,
        limits=_LIMITS,
    )
    plan = make_plan(config)
    return Tiny(plan, expect_updates(plan))
