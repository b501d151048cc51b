"""A strategy on a really exported perceptron, whose rounds an oracle can follow: full batches,
four clients of different sizes and classes, of which some take part."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toy_model import server_tools

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.runtime import open_programs
from protofleet.strategies.types import Update

CLASSES = ("one", "two", "three")
COHORTS = ("abc", "bcd", "abcd", "ad", "abcd")
_SIZES = {"a": 6, "b": 9, "c": 4, "d": 12}


def client_data() -> dict[str, tuple[Any, Any]]:
    """Examples (n, 2) and classes by client; c lacks the third class."""
    rng = np.random.default_rng(3)
    data = {}
    for index, (client, size) in enumerate(_SIZES.items()):
        y = rng.integers(0, 2 if client == "c" else 3, size)
        x = rng.normal(size=(size, 2)) + 1.5 * np.eye(3, 2)[y] + 0.3 * index
        data[client] = x.astype(np.float32), y.astype(np.int64)
    return data


def perceptron_bundle(path: Path, model: str, objective: str, **settings: Any) -> Bundle:
    """A bundle of a perceptron 2-6-5-3 with one training program; no unit is dead at the start."""
    import torch  # noqa: PLC0415 - only what exports loads PyTorch

    from protofleet.export.build import BundleSpec, export_bundle  # noqa: PLC0415
    from protofleet.export.models import build_model  # noqa: PLC0415

    torch.manual_seed(0)
    made = build_model(model, inputs=2, hidden=(6, 5), classes=3, **settings)
    with torch.no_grad():
        for index in (0, 2):
            made.body[index].weight.normal_()
            made.body[index].bias.fill_(0.5)
    spec = BundleSpec(
        name="perceptron",
        strategy="fedavg",
        objectives=tuple(dict.fromkeys(("cross_entropy", objective))),
        classes=CLASSES,
        preprocessing=Preprocessing(input_shape=(2,)),
    )
    export_bundle(made, spec, out=path, key=Ed25519PrivateKey.generate())
    return Bundle.open(path, any_signer=True)


class OracleFederation:
    """A server and the clients of ``client_data``."""

    def __init__(self, bundle: Bundle, name: str, settings: dict[str, Any]) -> None:
        self.learners = {client: _learner(bundle, client) for client in _SIZES}
        model = bundle.model()
        self.strategy = self.learners["a"].strategy(name, {"batch_size": 64, **settings})
        self.server = self.strategy.server_init(model, np.random.default_rng(0))
        self.states: dict[str, Any] = dict.fromkeys(_SIZES)

    def round(self, cohort: str) -> list[Update]:
        """These clients train, and the server makes its next state."""
        updates = []
        for client in cohort:
            payload = self.strategy.downlink(self.server, client)
            self.strategy.payload.check(payload.tensors)
            self.states[client], update = self.learners[client].train(
                self.strategy, self.states[client], payload, seed=5
            )
            self.strategy.uplink.check(update.tensors)
            self.strategy.check(update)
            counts = np.array(self.learners[client].class_counts(payload.round_id))
            updates.append(dataclasses.replace(update, class_counts=counts))
        self.server = self.strategy.aggregate(self.server, updates, server_tools())
        return updates


def _learner(bundle: Bundle, client: str) -> Learner:
    x, y = client_data()[client]
    own = DeviceData(x_train=x, y_train=y, x_test=x, y_test=y, classes=CLASSES)
    return Learner(bundle, open_programs(bundle), LocalData(own=own), Meter(), client)
