"""Every strategy over a real broker: the same bits as in one process, and no hostile update counts.

Programs come from bundles that are really exported. Three strategies, which ask most of the wire,
run in four processes (``device join``, ``coordinator run``); the others run the same coordinator
and the same devices in threads, because starting processes takes longer than all that they do here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hostile_device import HostileDevice
from packed import pack_update
from threaded import Federation, final_state
from tiny_bundle import tiny_data, trust_in_tests

from protofleet.bundle import Bundle
from protofleet.bundle.keys import save_public_key
from protofleet.datasets import DeviceData
from protofleet.edge import LocalData, open_personal
from protofleet.edge.join import open_learner
from protofleet.federation.outcomes.calibration import check_ratios, try_rates
from protofleet.federation.randomness import server_rng
from protofleet.federation.records import Costs
from protofleet.federation.settings import load_config
from protofleet.runtime import open_programs
from protofleet.settings import to_toml
from protofleet.strategies import STRATEGIES, build
from protofleet.strategies.aggregation import MEAN, Aggregator
from protofleet.strategies.aggregation import build as build_aggregator
from protofleet.strategies.optimisers import LADDERS
from protofleet.strategies.scores import confusion
from protofleet.strategies.types import ClientState, ServerState, ServerTools, Update

_CLASSES = ("class0", "class1", "class2")
_DEVICES = ("anna", "berta", "carla")
_ROUNDS, _SEED = 2, 3
_HOSTILE_COUNTS = (1, 1, 1)


@dataclass(frozen=True)
class Model:
    """What is exported: model, its settings and training objectives; input shape."""

    name: str
    settings: Mapping[str, Any]
    shape: tuple[int, ...]
    objectives: tuple[str, ...] = ("cross_entropy",)


_ROWS = {"inputs": 4, "classes": 3, "hidden": (8, 6)}
_IMAGE = (1, 16, 16)
_MODELS = {
    "mlp": Model(
        "mlp",
        _ROWS,
        (4,),
        ("cross_entropy", "moon", "prototype_mse", "hyper_knowledge", "fedphp"),
    ),
    "prototypes": Model("mlp_prototypes", _ROWS, (4,), ("prototype_distance",)),
    "directions": Model("mlp_prototypes", {**_ROWS, "head_kind": "cosine"}, (4,)),
    "cnn": Model(
        "cnn",
        {"channels": 1, "size": 16, "classes": 3, "filters": (2, 3), "hidden": 6},
        _IMAGE,
        ("cross_entropy", "cdfl"),
    ),
    "autoencoder": Model(
        "autoencoder",
        {"steps": 4, "channels": 1, "classes": 3, "filters": (3,), "latent": 5, "kernel": 3},
        (4,),
        ("cross_entropy", "reconstruction", "head_cross_entropy"),
    ),
    "alp": Model(
        "vit",
        {
            "classes": 3,
            "size": 16,
            "channels": 1,
            "patch": 8,
            "depth": 1,
            "width": 6,
            "heads": 1,
            "mlp_width": 8,
            "prototypes": (4,),
        },
        _IMAGE,
    ),
}


@dataclass(frozen=True)
class Entry:
    """What a strategy needs: a model of ``_MODELS``, settings, and whether in processes."""

    model: str = "mlp"
    settings: Mapping[str, Any] = field(default_factory=dict)
    processes: bool = False


_ENTRIES = {
    "apfl": Entry(),
    "apple": Entry(),
    "cdfl": Entry("cnn", {"restarts": 2, "images_per_centroid": 2}, processes=True),
    "ditto": Entry(settings={"personal_epochs": 1}),
    "fedala": Entry(),
    "fedali": Entry("alp"),
    "fedamp": Entry(),
    "fedavg": Entry(),
    "fedavg_c": Entry(),
    "fedhkd": Entry(),
    "fedclar": Entry(settings={"cluster_round": 1, "threshold": 1e-7}),
    "fedhome": Entry("autoencoder", {"refine_from": 2}),
    "feddyn": Entry(settings={"weighted_alpha": True, "max_norm": 10.0}),
    "fedfomo": Entry(),
    "fedhp": Entry("prototypes", {"sphere_steps": 50}, processes=True),
    "fednh": Entry("directions", {"sphere_steps": 50}),
    "fedpac": Entry(),
    "fedper": Entry(),
    "fedphp": Entry(),
    "fedproto": Entry(),
    "fedprox": Entry(),
    "fedrep": Entry(settings={"head_epochs": 2}),
    "fedsub": Entry(settings={"restarts": 2}, processes=True),
    "local": Entry(),
    "moon": Entry(),
    "partialfed": Entry(settings={"temperature": 1.0}),
    "perfedavg": Entry(settings={"variant": "hf"}),
    "pfedme": Entry(settings={"inner_steps": 2}),
    "protohar": Entry(),
    "scaffold": Entry(),
}
_TRAINING = {"epochs": 1, "batch_size": 8}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One strategy, its settings, its bundle in a file, and the devices' data."""

    name: str
    settings: Mapping[str, Any]
    path: Path
    data: Mapping[str, LocalData]

    @property
    def bundle(self):
        return Bundle.open(self.path, any_signer=True)

    @property
    def strategy(self):
        return build(self.name, self.settings, self.bundle.model())

    def learner(self, client_id):
        return open_learner(self.bundle, self.data[client_id], threads=1, device_id=client_id)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What an undisturbed run ends with.

    Attributes:
        server: the coordinator's state.
        clients: what devices keep.
        updates: of the last round.
        rounds: final fit included.
    """

    server: ServerState
    clients: Mapping[str, ClientState]
    updates: list[Update]
    rounds: int


def in_one_process(case: Case, aggregator: Aggregator = MEAN) -> Expected:
    """The strategy without wire, store and coordinator."""
    strategy, programs = case.strategy, open_programs(case.bundle)
    asked = strategy.description
    learners = {client_id: case.learner(client_id) for client_id in sorted(case.data)}
    server = strategy.server_init(case.bundle.model(), server_rng(_SEED, 0))
    states: dict[str, ClientState | None] = dict.fromkeys(learners)
    for round_id in range(1, _ROUNDS + asked.final_fit + 1):
        final, updates = round_id > _ROUNDS, []
        for client_id, learner in learners.items():
            payload = replace(strategy.downlink(server, client_id), final=final)
            states[client_id], update = learner.train(
                strategy, states[client_id], payload, seed=_SEED
            )
            strategy.uplink.check(update.tensors)
            counts = np.array(learner.class_counts(round_id))
            updates.append(replace(update, class_counts=counts if asked.class_counts else None))
        tools = ServerTools(
            grad_fns=programs.grad_fns if asked.server_objectives else {},
            predict=programs.predict,
            rng=server_rng(_SEED, round_id),
            aggregator=aggregator,
        )
        if final:
            server = replace(server, round_id=round_id)
        else:
            server = strategy.aggregate(server, updates, tools)
    return Expected(server=server, clients=states, updates=updates, rounds=round_id)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Bundles by name of ``_MODELS``, each exported once; and the signer's key file."""
    key, folder = Ed25519PrivateKey.generate(), tmp_path_factory.mktemp("bundles")
    save_public_key(key.public_key().public_bytes_raw(), folder / "key.pem")

    def get(name):
        path = folder / f"{name}.pfb"
        if not path.exists():
            _export(_MODELS[name], path, key)
        return path

    return get, folder / "key.pem"


def _export(model, path, key):
    import torch  # noqa: PLC0415 - heavy, and only here

    from protofleet.bundle.manifest import Preprocessing  # noqa: PLC0415 - with the others
    from protofleet.export.build import BundleSpec, export_bundle  # noqa: PLC0415 - torch
    from protofleet.export.models import build_model  # noqa: PLC0415 - torch

    torch.manual_seed(0)
    spec = BundleSpec(
        name=path.stem,
        strategy="fedavg",
        classes=_CLASSES,
        preprocessing=Preprocessing(input_shape=model.shape),
        objectives=model.objectives,
    )
    export_bundle(build_model(model.name, **model.settings), spec, out=path, key=key)
    trust_in_tests(key)


def _part(shape, seed, n):
    """``n`` examples of all classes; images are bright where their class says."""
    x, y = tiny_data(seed, n)
    if len(shape) > 1:
        rows = np.clip(x / 4 + 0.5, 0, 1)[:, :, None, None]
        x = np.repeat(rows, 4, axis=2).reshape(n, 1, 16, 1) * np.ones((1, 1, 1, 16), np.float32)
    return np.ascontiguousarray(x, np.float32), y


def _local_data(shape, index):
    """Of device ``index``: the last lacks a class. Images have boxes."""
    n = 16 + 4 * index
    x, y = _part(shape, index, n)
    x, y = (x, y) if index < 2 else (x[y != 1], y[y != 1])
    x_test, y_test = _part(shape, 1000 + index, 15)
    boxes = np.array([[[2, 3, 12, 14]]], np.float32)
    images = len(shape) > 1
    own = DeviceData(
        x_train=x,
        y_train=y,
        x_test=x_test,
        y_test=y_test,
        classes=_CLASSES,
        boxes_train=boxes.repeat(len(y), axis=0) if images else None,
        boxes_test=boxes.repeat(len(y_test), axis=0) if images else None,
    )
    return LocalData(own=own)


def _attack(expected, round_id):
    """First a tensor that nobody expects, then an honest update with a NaN or a false name."""
    update = replace(expected.updates[0], client_id="hostile", round_id=round_id, num_examples=3)
    if round_id == 1:
        surplus = {**update.tensors, "surplus": np.zeros(1, np.float32)}
        return pack_update(replace(update, tensors=surplus), Costs())
    floats = [n for n, value in update.tensors.items() if value.dtype == np.float32 and value.size]
    if not floats:
        return pack_update(replace(update, client_id="anna"), Costs())
    poisoned = update.tensors[floats[0]].copy()
    poisoned.reshape(-1)[0] = np.nan
    tensors = {**update.tensors, floats[0]: poisoned}
    return pack_update(replace(update, tensors=tensors), Costs())


def _run_in_threads(config, data):
    with Federation(config, data) as federation:
        return federation.finish()


def _run_in_processes(federation, data):
    for name, one in data.items():
        one.own.save(federation.folder / f"{name}.npz")
    data[_DEVICES[0]].own.save(federation.pooled)
    coordinator = federation.start_coordinator()
    devices = [federation.start_device(name) for name in data]
    assert coordinator.finish() == 0, coordinator.log
    assert [device.finish() for device in devices] == [0] * len(devices)
    return json.loads((federation.run_dir / "result.json").read_text())


_FILE = """
federation = "home"
broker = "{url}"
bundle = "{bundle}"
trusted = ["{signer}"]
run_dir = "run"
rounds = {rounds}
seed = {seed}
[cohort]
minimum = {minimum}
{strategy}"""


def _write(federation, case, minimum, more=""):
    optimiser = msgspec.to_builtins(case.strategy.settings)["optimiser"]
    settings = {**case.settings, "optimiser": optimiser}  # devices are to find none here
    text = _FILE.format(
        url=federation.url,
        bundle=case.path,
        signer=Bundle.open(case.path, any_signer=True).signer,
        rounds=_ROUNDS,
        seed=_SEED,
        minimum=minimum,
        strategy=to_toml({"strategy": {"name": case.name, "settings": settings}}).decode(),
    )
    federation.file.write_text(text + more)
    return load_config(federation.file)


@pytest.fixture(autouse=True)
def _numpy_kernels(monkeypatch):
    """The same kernels on both sides of the comparison; these need no compiling."""
    monkeypatch.setenv("PROTOFLEET_NUMBA", "0")


def _case(name, entry, export):
    shape = _MODELS[entry.model].shape
    return Case(
        name=name,
        settings={**_TRAINING, **entry.settings},
        path=export(entry.model),
        data={c: _local_data(shape, index) for index, c in enumerate(_DEVICES)},
    )


@pytest.mark.slow
@pytest.mark.mosquitto
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_over_the_wire_a_strategy_ends_with_the_same_bits(name, make_federation, exported):
    """Every round counts three updates and refuses a fourth; devices keep the same models."""
    entry = _ENTRIES.get(name)
    if entry is None:
        pytest.fail(f"strategy '{name}' has no entry in _ENTRIES of {__file__}: add what it needs")
    export, trust = exported
    case = _case(name, entry, export)
    expected = in_one_process(case)

    federation = make_federation(name, case.path, 0)
    federation.devices, federation.trust = _DEVICES, trust
    # Three devices of so few examples differ more than the clip allows.
    config = _write(federation, case, len(_DEVICES) + 1, "[aggregation]\nnorm_clip = 0\n")
    hostile = HostileDevice(config, "hostile", partial(_attack, expected), _HOSTILE_COUNTS)
    if entry.processes:
        result = _run_in_processes(federation, case.data)
    else:
        result = _run_in_threads(config, case.data)
    hostile.stop()

    assert [row["participants"] for row in result["rounds"]] == [3] * expected.rounds
    assert len(hostile.rejections) == expected.rounds
    assert "surplus" in hostile.rejections[0]
    assert all("NaN" in why or "names 'anna'" in why for why in hostile.rejections[1:])
    assert _bits(final_state(config)) == _bits(expected.server)
    for client_id in case.data:
        store = federation.folder / f"store-{client_id}"
        _check_personal(case, client_id, store, expected.clients[client_id])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_strategy_tries_a_ladder_of_rates(name, exported):
    """By its own client half, twice the same, and the rate matters to who has enough examples."""
    export, _ = exported
    case = _case(name, _ENTRIES[name], export)
    strategy = case.strategy
    server = strategy.server_init(case.bundle.model(), server_rng(_SEED, 0))
    rates = LADDERS[msgspec.to_builtins(strategy.settings)["optimiser"]["kind"]]
    for client_id in (_DEVICES[0], _DEVICES[2]):
        payload = strategy.downlink(server, client_id)
        told = [
            try_rates(
                case.learner(client_id).rate_tester(1), strategy, payload, seed=_SEED, rates=rates
            )
            for _ in range(2)
        ]
        np.testing.assert_array_equal(*told)
        check_ratios(told[0], len(rates))
        assert np.ptp(told[0]) > 0.002


@pytest.mark.slow(seconds=10)
@pytest.mark.mosquitto
@pytest.mark.parametrize("name", ["fedavg", "fedali"])
def test_the_median_of_a_federation_file_is_what_the_server_computes(
    name, make_federation, exported
):
    """Parameters are NumPy's median of what the devices sent, and all of the state the same bits
    as in one process, FedAli's clustered prototypes included."""
    export, _ = exported
    case = _case(name, _ENTRIES[name], export)
    expected = in_one_process(case, build_aggregator("median", {}))
    federation = make_federation(name, case.path, 0)
    config = _write(
        federation, case, len(_DEVICES), '[aggregation]\nkind = "median"\nnorm_clip = 0\n'
    )
    _run_in_threads(config, case.data)

    found = final_state(config)
    assert _bits(found) == _bits(expected.server)
    sent = [update.tensors for update in expected.updates]
    params = [key for key in found.tensors if key.startswith("params/")]
    assert params
    for key in params:
        median = np.median([tensors[key] for tensors in sent], axis=0)
        np.testing.assert_array_equal(found.tensors[key], median, err_msg=key)
        mean = np.mean([tensors[key] for tensors in sent], axis=0)
        assert not np.array_equal(found.tensors[key], mean), key


def _bits(state):
    return state.round_id, {
        name: (value.dtype, value.shape, value.tobytes()) for name, value in state.tensors.items()
    }


def _check_personal(case, client_id, store, state):
    """A device infers with the model, and the rule, that its strategy says."""
    strategy = case.strategy
    model, rule = strategy.client_model(state), strategy.client_score(state)
    own = case.learner(client_id).evaluate(model, score=rule).own
    data = case.data[client_id].own
    found = open_personal(store, use="personal")
    assert found.round_id == state.round_id
    counts = confusion(data.y_test, found.predict(data.x_test).indices, len(_CLASSES))
    np.testing.assert_array_equal(counts, own)
    _check_plain(found, data.x_test)


def _check_plain(personal, x):
    """The plain files of a model give its probabilities in runtimes that know nothing of us."""
    expected = personal.predict(x, batch_size=len(x)).probabilities
    session = onnxruntime.InferenceSession(personal.plain("onnx"))
    (shares,) = session.run(["probabilities"], {"x": x})
    np.testing.assert_allclose(shares, expected, atol=1e-4)
    runner = Interpreter(model_content=personal.plain("tflite")).get_signature_runner()
    np.testing.assert_allclose(runner(x=x)["probabilities"], expected, atol=1e-4)
