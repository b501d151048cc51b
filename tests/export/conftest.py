"""Trained models that several of these files quantise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn
from torch.nn import functional

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData
from protofleet.datasets.digits import CLASSES, load_digits
from tests.export.quantise_bundles import Digits, infer_bundle


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder is slow: each process that runs some of it loads PyTorch first."""
    for item in items:
        if item.path.parent.name == "export" and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.slow(seconds=1))


@pytest.fixture(scope="session")
def signing_key(tmp_path_factory) -> tuple[Ed25519PrivateKey, Path]:
    """A key, and the file that holds it."""
    key = Ed25519PrivateKey.generate()
    path = tmp_path_factory.mktemp("key") / "key.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
    return key, path


@pytest.fixture(scope="session")
def digits() -> DeviceData:
    """1 200 digits to train on and 597 to score on."""
    x, y = load_digits()
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    return DeviceData(
        x_train=x[:1200], y_train=y[:1200], x_test=x[1200:], y_test=y[1200:], classes=CLASSES
    )


@pytest.fixture(scope="session")
def digits_model(digits) -> nn.Module:
    """A convolutional network that has learned them."""
    torch.manual_seed(0)
    return fitted(Digits(), digits, epochs=12)


@pytest.fixture(scope="session")
def digits_bundle(digits_model, signing_key, tmp_path_factory) -> tuple[Bundle, Path]:
    """The network as a bundle, and where it lies."""
    path = tmp_path_factory.mktemp("bundle") / "digits.pfb"
    return infer_bundle(digits_model, (1, 8, 8), CLASSES, path, signing_key[0]), path


def fitted(model: nn.Module, data: DeviceData, *, epochs: int) -> nn.Module:
    """The model after so many passes over the train part."""
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    return model.eval()
