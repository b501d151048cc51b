"""Every strategy that needs no classes learns a regression with really exported programs."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toy_model import server_tools

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.federation.outcomes.scores import round_scores
from protofleet.runtime import open_programs
from protofleet.strategies import DESCRIPTIONS

pytestmark = pytest.mark.slow(seconds=12)

_TARGETS = ("sum", "first")
_SGD = {"epochs": 3, "batch_size": 10, "optimiser": {"kind": "sgd", "lr": 0.05}}
_SETTINGS = {
    "apple": {"optimiser": {"kind": "sgd", "lr": 0.1}},
    "fedala": {"drop_last": False},
    "local": {"keep_best": True},
    "perfedavg": {"epochs": 6, "alpha": 0.05},
    "pfedme": {"lam": 1.0, "local_lr": 0.5},
    "scaffold": {"option": "I"},
}
_NAMES = sorted(
    name for name, one in DESCRIPTIONS.items() if "regression" in one.tasks and name != "fedali"
)
"""FedAli needs an alignment layer; what it asks of the loss is what FedAvg asks."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    import torch  # noqa: PLC0415 - only what exports loads PyTorch

    from protofleet.export.build import BundleSpec, export_bundle  # noqa: PLC0415
    from protofleet.export.models import build_model  # noqa: PLC0415

    torch.manual_seed(0)
    spec = BundleSpec(
        name="regression",
        strategy="fedavg",
        task="regression",
        targets=_TARGETS,
        objectives=("mse",),
        preprocessing=Preprocessing(input_shape=(4,)),
    )
    model = build_model("mlp", inputs=4, hidden=(8,), classes=2)
    path = tmp_path_factory.mktemp("regression") / "a.pfb"
    export_bundle(model, spec, out=path, key=Ed25519PrivateKey.generate())
    return Bundle.open(path, any_signer=True)


def _examples(seed, offset):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    return x, np.stack([x.sum(1) + offset, x[:, 0]], axis=1).astype(np.float32)


def _learner(bundle, index):
    (x, y), (x_test, y_test) = (_examples(seed, index) for seed in (index, 10 + index))
    own = DeviceData(x_train=x, y_train=y, x_test=x_test, y_test=y_test, targets=_TARGETS)
    return Learner(bundle, open_programs(bundle), LocalData(own=own), Meter(), f"client{index}")


@pytest.mark.parametrize("name", _NAMES)
def test_a_strategy_without_classes_learns_a_regression(bundle, name):
    learners = [_learner(bundle, index) for index in range(2)]
    strategy = learners[0].strategy(name, {**_SGD, **_SETTINGS.get(name, {})})
    server = strategy.server_init(bundle.model(), np.random.default_rng(0))
    states, errors = [None, None], []
    for _ in range(5):
        updates = []
        for index, learner in enumerate(learners):
            payload = strategy.downlink(server, f"client{index}")
            states[index], update = learner.train(strategy, states[index], payload, seed=1)
            assert learner.task.check("own", update.evaluation.own, 2) is None
            updates.append(update)
        server = strategy.aggregate(server, updates, server_tools())
        evaluations = [update.evaluation for update in updates]
        scores = round_scores(evaluations, None, task="regression", targets=_TARGETS)
        errors.append(scores.personalisation["rmse"].mean)
        if name != "fedala":  # scored with the mixture, before it trains
            loss = np.mean([one.own_loss for one in evaluations])
            squares = [one.own[:, 2].sum() / one.own[:, 0].sum() for one in evaluations]
            assert loss == pytest.approx(np.mean(squares), rel=1e-6)
    assert errors[-1] < 0.7 * errors[0]
    assert scores.targets.keys() == set(_TARGETS)
