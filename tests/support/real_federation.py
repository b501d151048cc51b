"""A federation in one process with really exported programs: a perceptron 4-8-3 with ReLU.

Unless they agree, two clients have two classes mixed up, so that personal models pay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_data
from toy_model import server_tools

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.runtime import open_programs
from protofleet.strategies.scores import accuracy
from protofleet.strategies.types import Payload, Update
from protofleet.tensors import blobs

CLASSES = ("class0", "class1", "class2")
TRAINING = {"epochs": 2, "batch_size": 10, "optimiser": {"kind": "sgd", "lr": 0.1}}
_SWAPS = ((0, 1, 2), (1, 0, 2), (0, 2, 1))


def perceptron_bundle(path: Path, objectives: tuple[str, ...]) -> Bundle:
    """A bundle with a training program for each objective."""
    settings = {"inputs": 4, "hidden": (8,), "classes": 3}
    return real_bundle(path, objectives, ("mlp", settings))


def real_bundle(
    path: Path, objectives: tuple[str, ...], model: tuple[str, dict[str, Any]]
) -> Bundle:
    """A bundle of a registered model with these settings, for the federation's data."""
    import torch  # noqa: PLC0415 - only what exports loads PyTorch

    from protofleet.export.build import BundleSpec, export_bundle  # noqa: PLC0415
    from protofleet.export.models import build_model  # noqa: PLC0415

    torch.manual_seed(0)
    spec = BundleSpec(
        name=path.stem,
        strategy="fedavg",
        objectives=objectives,
        classes=CLASSES,
        preprocessing=Preprocessing(input_shape=(4,)),
    )
    name, settings = model
    export_bundle(build_model(name, **settings), spec, out=path, key=Ed25519PrivateKey.generate())
    return Bundle.open(path, any_signer=True)


class RealFederation:
    """Three clients and a server; what travels goes through blobs."""

    def __init__(
        self, bundle: Bundle, name: str, settings: dict[str, Any], *, agree: bool = False
    ) -> None:
        swaps = [_SWAPS[0]] * 3 if agree else _SWAPS
        self.learners = [_learner(bundle, client, swap) for client, swap in enumerate(swaps)]
        self.strategy = self.learners[0].strategy(name, settings)
        self.server = self.strategy.server_init(bundle.model(), np.random.default_rng(0))
        self.states: list[Any] = [None] * len(_SWAPS)

    def round(self, *, final: bool = False) -> list[Update]:
        """Everyone trains; the updates. After a final round nothing is aggregated."""
        updates = []
        for client, learner in enumerate(self.learners):
            sent = self.strategy.downlink(self.server, f"client{client}")
            payload = Payload(
                round_id=sent.round_id, tensors=_through_a_blob(sent.tensors), final=final
            )
            self.states[client], update = learner.train(
                self.strategy, self.states[client], payload, seed=5
            )
            updates.append(update)
        if not final:
            self.server = self.strategy.aggregate(self.server, updates, server_tools())
        return updates


def mean_accuracy(updates: list[Update]) -> float:
    """Of the clients' models on their own test parts."""
    return float(np.mean([accuracy(update.evaluation.own) for update in updates]))


def _learner(bundle: Bundle, client: int, labels: tuple[int, ...]) -> Learner:
    swap = np.array(labels)
    (x, y), (x_test, y_test) = tiny_data(client, 60), tiny_data(100 + client, 60)
    own = DeviceData(
        x_train=x, y_train=swap[y], x_test=x_test, y_test=swap[y_test], classes=CLASSES
    )
    return Learner(bundle, open_programs(bundle), LocalData(own=own), Meter(), f"client{client}")


def _through_a_blob(tensors: Any) -> Any:
    return blobs.decode(blobs.encode(tensors, {}), max_bytes=1 << 20)[0]
