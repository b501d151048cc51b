"""A tiny signed bundle and three clients for it."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle, tiny_data

from protofleet import DeviceData

_CLASSES = ("class0", "class1", "class2")


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    return tiny_bundle(tmp_path_factory.mktemp("api") / "tiny.pfb", Ed25519PrivateKey.generate())


@pytest.fixture(scope="session")
def clients():
    def part(seed):
        (x, y), (x_test, y_test) = tiny_data(seed, 40), tiny_data(100 + seed, 20)
        return DeviceData(x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=_CLASSES)

    return {name: part(seed) for seed, name in enumerate(("anna", "berta", "carla"))}
