"""CDFL with a really exported network on real digits: devices, admission, server, two rounds."""

from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from packed import pack_update

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData
from protofleet.datasets.mnist import mnist_pool
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.federation.admission import admit, expect_updates
from protofleet.federation.coding import decode_update, read_update
from protofleet.federation.randomness import server_rng
from protofleet.federation.records import Costs
from protofleet.federation.server_tools import make_server_tools
from protofleet.kernels import pixelise
from protofleet.runtime import open_programs
from protofleet.strategies.scores import accuracy
from protofleet.wire.codecs import Coding

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow(seconds=4)

_CLIENTS = ("ada", "bob", "cyd", "dan")
_DIGITS = 4
_SEED = 5
_SETTINGS = {
    "pixelise": "whole",
    "factor": 2,
    "epochs": 4,
    "batch_size": 8,
    "server_batch_size": 8,
    "optimiser": {"kind": "sgd", "lr": 0.03, "momentum": 0.9},
    "restarts": 2,
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    from protofleet.bundle.manifest import Preprocessing  # noqa: PLC0415 - beside its user
    from protofleet.export.build import BundleSpec, export_bundle  # noqa: PLC0415 - needs torch
    from protofleet.export.models import build_model  # noqa: PLC0415 - needs torch

    torch.manual_seed(0)
    spec = BundleSpec(
        name="digits",
        strategy="cdfl",
        classes=tuple(str(digit) for digit in range(10))[:_DIGITS],
        preprocessing=Preprocessing(input_shape=(1, 28, 28)),
        objectives=("cross_entropy", "cdfl"),
    )
    network = build_model("cnn", filters=[4, 8], hidden=16, classes=_DIGITS)
    path = tmp_path_factory.mktemp("cdfl") / "a.pfb"
    export_bundle(network, spec, out=path, key=Ed25519PrivateKey.generate())
    return Bundle.open(path, any_signer=True)


@pytest.fixture(scope="module")
def parts(data_root):
    """Each client's own hundred digits, the last fifth for testing."""
    pool = mnist_pool(data_root, limit=100)
    rows = np.flatnonzero((pool.y < _DIGITS) & ~pool.is_test)
    rows = np.random.default_rng(0).permutation(rows).reshape(len(_CLIENTS), 100)
    classes = pool.classes[:_DIGITS]
    return {
        client: DeviceData(
            x_train=pool.x[own[:80]],
            y_train=pool.y[own[:80]],
            x_test=pool.x[own[80:]],
            y_test=pool.y[own[80:]],
            classes=classes,
        )
        for client, own in zip(_CLIENTS, rows, strict=True)
    }


@pytest.fixture(scope="module")
def world(bundle, parts):
    programs = open_programs(bundle)
    learners = {
        client: Learner(bundle, programs, LocalData(own=own), Meter(), client)
        for client, own in parts.items()
    }
    return run(bundle, learners)


def run(bundle, learners):
    """Two rounds; all updates travel as bytes and are admitted by the coordinator's rules."""
    strategy = learners["ada"].strategy("cdfl", _SETTINGS)
    limits = SimpleNamespace(update_bytes=1 << 24, update_norm=1e6)
    model = bundle.model()
    server = strategy.server_init(model, server_rng(_SEED, 0))
    expected = expect_updates(
        SimpleNamespace(
            bundle=bundle, strategy=strategy, model=model, config=SimpleNamespace(limits=limits)
        )
    )
    tools = make_server_tools(bundle, strategy, seed=_SEED)
    servers, blobs, states = [server], [], dict.fromkeys(learners)
    for round_id in (1, 2):
        sent = {}
        for client, learner in learners.items():
            payload = strategy.downlink(server, client)
            states[client], update = learner.train(strategy, states[client], payload, seed=_SEED)
            sent[client] = pack_update(update, Costs())
            decoded = decode_update(
                sent[client], Coding(), {}, max_bytes=1 << 24, forms=strategy.uplink
            )
            admit(decoded, expected, client_id=client, round_id=round_id, baseline={})
        updates = [read_update(blob) for blob in sent.values()]
        server = strategy.aggregate(server, updates, tools(round_id))
        servers.append(server)
        blobs.append(sent)
    return SimpleNamespace(strategy=strategy, servers=servers, blobs=blobs, states=states)


def updates_of(world, round_id):
    blobs = world.blobs[round_id - 1]
    return {c: read_update(blob) for c, blob in blobs.items()}


def test_networks_and_images_come_up_from_the_asked_half_only(world):
    """A network has about 12 000 bytes; scores alone are a few hundred."""
    first, second = updates_of(world, 1), updates_of(world, 2)
    assert all(update.tensors for update in first.values())
    asked = {c for c in _CLIENTS if world.strategy.downlink(world.servers[1], c).tensors["uploads"]}
    assert len(asked) == 2
    assert {c for c, update in second.items() if update.tensors} == asked
    for client, blob in world.blobs[1].items():
        if client not in asked:
            assert len(blob) < len(world.blobs[0][client]) / 10
            assert second[client].evaluation.own.sum() == 20


def test_loss_falls_and_scores_rise(world):
    first, second = updates_of(world, 1), updates_of(world, 2)

    def mean(updates, value):
        return np.mean([value(update) for update in updates.values()])

    assert mean(second, lambda u: u.loss) < mean(first, lambda u: u.loss)
    own = [mean(updates, lambda u: accuracy(u.evaluation.own)) for updates in (first, second)]
    assert own[1] > own[0]
    assert own[1] > 0.75
    for name in ("pixelised", "personalised"):
        assert mean(second, lambda u, n=name: accuracy(u.evaluation.more[n])) > 0.75


def test_uploaded_images_are_pixelised_examples_with_their_own_labels(world, parts):
    for client, update in updates_of(world, 1).items():
        own = parts[client]
        images, labels = update.tensors["shown/images"], update.tensors["shown/labels"]
        assert _DIGITS <= len(images) <= 3 * _DIGITS
        z = np.rint(pixelise(own.x_train, None, 2) * 255)
        for image, label in zip(images, labels, strict=True):
            same = (np.abs(z - image) <= 0.5).all(axis=(1, 2, 3))
            assert label in own.y_train[same]


def test_the_server_s_training_moves_the_average_and_it_learns(world, parts, bundle):
    updates = updates_of(world, 1).values()
    average = np.mean([update.tensors["params/head.weight"] for update in updates], axis=0)
    server = world.servers[1].tensors["params/head.weight"]
    assert np.abs(server - average).max() > 1e-3
    programs = open_programs(bundle)
    network = world.strategy.server_model(world.servers[2])
    x = np.concatenate([own.x_test for own in parts.values()])
    y = np.concatenate([own.y_test for own in parts.values()])
    assert (programs.predict(network, x).argmax(axis=1) == y).mean() > 0.7


def test_a_device_infers_with_its_personalised_network(world, bundle, parts):
    programs = open_programs(bundle)
    for client, update in updates_of(world, 2).items():
        own = parts[client]
        network = world.strategy.client_model(world.states[client])
        right = programs.predict(network, own.x_test, batch_size=32).argmax(axis=1) == own.y_test
        assert right.mean() == pytest.approx(accuracy(update.evaluation.more["personalised"]))
