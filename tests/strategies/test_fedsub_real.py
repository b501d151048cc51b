"""FedSub and ProtoHAR with an exported perceptron on the 15 people of WESAD's derived features."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from packed import pack_update
from toy_model import server_tools

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets.derived import WESAD_CLASSES, wesad_features_pool
from protofleet.datasets.federate import Natural, Stratified, federate
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.models import build_model
from protofleet.federation.coding import read_update
from protofleet.federation.plan import make_plan
from protofleet.federation.records import Costs
from protofleet.federation.settings import FederationConfig, StrategySettings
from protofleet.runtime import open_programs
from protofleet.strategies.scores import macro_f1
from protofleet.strategies.types import Payload
from protofleet.tensors import blobs
from protofleet.wire.mqtt.broker_access import BrokerAccess

pytestmark = [pytest.mark.data, pytest.mark.slow]

_SGD = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("fedsub") / "mlp.pfb"
    torch.manual_seed(0)
    spec = BundleSpec(
        name="mlp",
        strategy="fedsub",
        objectives=("cross_entropy", "prototype_mse"),
        classes=WESAD_CLASSES,
        preprocessing=Preprocessing(input_shape=(13,)),
    )
    model = build_model("mlp", inputs=13, hidden=(32, 64), classes=3)
    export_bundle(model, spec, out=path, key=Ed25519PrivateKey.generate())
    return path


@pytest.fixture(scope="module")
def people(data_root):
    clients = federate(
        wesad_features_pool(data_root), Natural(), Stratified(test_fraction=0.3), seed=0
    )
    assert len(clients) == 15
    return clients


class Federation:
    """Everyone takes part; what travels goes through blobs and has the form that is admitted."""

    def __init__(self, bundle, people, tmp_path, name, **settings):
        config = FederationConfig(
            federation="home",
            broker=BrokerAccess(url="mqtt://127.0.0.1"),
            bundle=bundle,
            trusted=(Bundle.open(bundle, any_signer=True).signer,),
            run_dir=tmp_path,
            rounds=1,
            strategy=StrategySettings(name=name, settings=settings),
        )
        plan = make_plan(config)
        programs = open_programs(plan.bundle)
        self.learners = {
            client: Learner(plan.bundle, programs, LocalData(own=data), Meter(), client)
            for client, data in people.items()
        }
        self.counts = {c: np.bincount(d.y_train, minlength=3) for c, d in people.items()}
        self.strategy = plan.strategy
        self.server = plan.server_init()
        self.states = dict.fromkeys(people)

    def round(self, *, final=False):
        updates = [self._objective(client, final=final) for client in self.learners]
        if not final:
            self.server = self.strategy.aggregate(self.server, updates, server_tools())
        return updates

    def _objective(self, client, *, final):
        sent = self.strategy.downlink(self.server, client)
        tensors = blobs.decode(blobs.encode(sent.tensors, {}), max_bytes=1 << 20)[0]
        payload = Payload(round_id=sent.round_id, tensors=tensors, final=final)
        self.states[client], update = self.learners[client].train(
            self.strategy, self.states[client], payload, seed=3
        )
        data = pack_update(update, Costs())
        received = read_update(data)
        self.strategy.check(received)
        self.strategy.uplink.check(received.tensors)
        return dataclasses.replace(received, class_counts=self.counts[client])


def _scores(updates):
    """Mean macro-F1 right after distribution, and after the local fit."""
    evaluations = [update.evaluation for update in updates]
    before = np.mean([macro_f1(one.own) for one in evaluations])
    return before, np.mean([macro_f1(one.more["after_fit"]) for one in evaluations])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fusion": "average", "subnetworks": "whole"},
        {"fusion": "leadership", "subnetworks": "whole", "variant": "full"},
    ],
)
def test_fedsub_learns_stress_of_15_people(bundle, people, tmp_path, settings):
    """Fused models, not trained any further, score twice as well as untrained ones (0.24)."""
    federation = Federation(
        bundle, people, tmp_path, "fedsub", epochs=3, optimiser=_SGD, **settings
    )
    rounds = [federation.round() for _ in range(8)]
    final = federation.round(final=True)
    _assert_learnt(rounds, final, loss=0.55, score=0.55)
    masks = np.unpackbits(final[0].tensors["masks/body.0"], axis=1)
    assert masks.any()
    assert not masks.all()
    assert 2 <= len(np.unique(federation.server.tensors["clusters/labels"][:, 0])) <= 7


def test_protohar_learns_stress_of_15_people(bundle, people, tmp_path):
    """The averaged body with each one's own head, not trained any further."""
    optimisers = {"optimiser": _SGD, "head_optimiser": _SGD}
    federation = Federation(bundle, people, tmp_path, "protohar", epochs=3, **optimisers)
    rounds = [federation.round() for _ in range(6)]
    _assert_learnt(rounds, federation.round(final=True), loss=0.65, score=0.45)
    assert federation.server.tensors["present"].all()


def _assert_learnt(rounds, final, *, loss, score):
    losses = [np.mean([update.loss for update in one]) for one in (rounds[0], rounds[-1])]
    assert losses[1] < loss * losses[0]
    (untrained, _), (before, after) = _scores(rounds[0]), _scores(final)
    assert untrained < 0.33
    assert before > score
    assert after > before - 0.03
