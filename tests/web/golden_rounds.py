"""Rounds of the Python devices, for the browser's strategies: ``golden_rounds.py FOLDER``.

Each case is a strategy with some settings over a few rounds of three clients and a server: what
went into every client's round and what came out of it. ``cases.json`` says what lies where; a
case's tensors are one safetensors file, with names ``<round>/<client>/<payload|state|update>/…``.

Clients: ``phone`` is there from round 1; ``gerät`` has fewer examples and no test part; ``late``
joins in round 2 with seven examples; ``empty`` has none.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from torch import Tensor, nn

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.errors import InputError
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.models import build_model
from protofleet.export.models.alp import AlignmentConfig
from protofleet.federation.outcomes.calibration import try_rates
from protofleet.nn import AlignedOutput, align
from protofleet.runtime import open_programs
from protofleet.strategies import build
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import (
    ClientState,
    Evaluation,
    ServerState,
    ServerTools,
    TensorSchema,
    TensorSchemas,
    Update,
)
from protofleet.tensors.blobs import encode

SEED = 2**53 + 11
_CLASSES = ("lying", "sitting", "walking")
_INPUTS = 12
_SIZES = {"phone": (70, 24), "gerät": (37, 0), "late": (7, 6), "empty": (0, 5)}
_JOINS = {"phone": 1, "gerät": 1, "late": 2, "empty": 1}

# A smaller eps makes a step of whatever rounding has left of a gradient near zero: by Adam's own, a
# Python device differs from itself by up to 1.5e-5 of the change if its inputs are rounded anew.
_ADAM = {"kind": "adam", "lr": 0.03, "eps": 1e-3}
_SGD = {"kind": "sgd", "lr": 0.05}
_MOMENTUM = {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
_TORCH_ADAM = {**_ADAM, "eps_form": "torch", "weight_decay": 1e-3}
_SHORT = {"epochs": 2, "batch_size": 16, "optimiser": _ADAM}
RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
_ALA = {"kind": "ala", "max_passes": 20, "eta": 2.0}


class Noisy(nn.Module):
    """Batch normalisation, whose statistics are buffers, and dropout, which asks for noise."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(_INPUTS, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3)
        )
        self.head = nn.Linear(16, len(_CLASSES))

    def features(self, x: Tensor) -> Tensor:
        """What the head takes."""
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.features(x))
        return logits


@dataclass(frozen=True, kw_only=True)
class Network:
    """A model to export, and what its bundle says of it."""

    model: Callable[[], nn.Module]
    objectives: tuple[str, ...]
    outputs: Mapping[str, Any] = field(default_factory=lambda: {"classes": _CLASSES})
    head: str | None = "head"


def _perceptron(outputs: int = len(_CLASSES)) -> nn.Module:
    return build_model("mlp", inputs=_INPUTS, hidden=(16,), classes=outputs)


def _aligned() -> nn.Module:
    """Prototypes move by a tenth in each step.

    By the thousandth of the default, float32 would hold their changes to four digits only.
    """
    model = align(_perceptron(), after=["body.0"], prototypes=[4])
    for module in model.modules():
        if isinstance(module, AlignedOutput):
            module.config = AlignmentConfig(gamma=0.9)
    return model


_TARGETS = {"task": "regression", "targets": ("speed", "slope")}
_LABELS = {"task": "multilabel", "targets": ("warm", "wet")}
NETWORKS: Mapping[str, Network] = {
    "perceptron": Network(model=_perceptron, objectives=("cross_entropy", "moon", "prototype_mse")),
    "noisy": Network(model=Noisy, objectives=("cross_entropy", "moon", "prototype_mse")),
    "prototypes": Network(
        model=lambda: build_model("mlp_prototypes", inputs=_INPUTS, hidden=(16,), classes=3),
        objectives=("cross_entropy", "prototype_distance"),
    ),
    "aligned": Network(model=_aligned, objectives=("cross_entropy",)),
    "regression": Network(model=lambda: _perceptron(2), objectives=("mse",), outputs=_TARGETS),
    "multilabel": Network(model=lambda: _perceptron(2), objectives=("bce",), outputs=_LABELS),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A strategy with settings on a bundle; ``forgets``: who starts anew before which round."""

    strategy: str
    name: str
    settings: Mapping[str, Any]
    bundle: str = "perceptron"
    rounds: int = 3
    final: bool = False
    forgets: Mapping[str, int] = field(default_factory=dict)


def _cases() -> list[Case]:
    """Every strategy of the browser."""
    named: dict[str, dict[str, dict[str, Any]]] = {
        "local": {
            "adam": _SHORT,
            "momentum": {**_SHORT, "optimiser": _MOMENTUM, "clip_norm": 0.5},
            "keep_best": {**_SHORT, "epochs": 4, "keep_best": True},
        },
        "fedavg": {
            "adam": _SHORT,
            "sgd": {**_SHORT, "optimiser": _SGD, "score_at": "start"},
            "momentum, clipped": {
                **_SHORT, "optimiser": _MOMENTUM, "clip_norm": 0.5, "drop_last": True,
            },
            "torch's adam": {**_SHORT, "optimiser": _TORCH_ADAM, "drop_last": True},
        },
        "fedala": {
            "its own": {"optimiser": _SGD},
            "adam": {**_SHORT, "local_init": {**_ALA, "layer_idx": 3}, "drop_last": False},
        },
        "fedavg_c": {"adam": _SHORT, "early score": {**_SHORT, "score_at": "start"}},
        "fedprox": {
            "adam": {**_SHORT, "mu": 0.5},
            "momentum, clipped": {**_SHORT, "mu": 2, "optimiser": _MOMENTUM, "clip_norm": 0.3},
        },
        "scaffold": {
            "second option": {**_SHORT, "optimiser": _SGD, "clip_norm": 1.0, "drop_last": True},
            "first option": {
                **_SHORT,
                "optimiser": _SGD,
                "option": "I",
                "server": {"lr": 0.5, "population": 5},
            },
        },
        "fedper": {"adam": _SHORT, "named head": {**_SHORT, "head": "body.0.b"}},
        "fedrep": {
            "adam": {**_SHORT, "head_epochs": 2},
            "momentum, clipped": {**_SHORT, "optimiser": _MOMENTUM, "clip_norm": 0.3},
        },
        "fedproto": {
            "adam": _SHORT,
            "sgd": {**_SHORT, "optimiser": _SGD, "prototype_weight": 0.3, "drop_last": True},
            "own classes": {**_SHORT, "optimiser": _SGD, "predict": "nearest_own"},
            "as FedAli compares it": {
                **_SHORT, "first_prototypes": "normal", "means": "last_epoch", "predict": "head",
                "drop_last": True,
            },
        },
        "ditto": {
            "adam": {**_SHORT, "personal_epochs": 1},
            "momentum, early score": {
                **_SHORT, "lam": 0.2, "optimiser": _MOMENTUM, "score_at": "start",
            },
        },
        "moon": {"adam": _SHORT, "momentum": {**_SHORT, "tau": 0.2, "optimiser": _MOMENTUM}},
        "protohar": {
            "its own": {"epochs": 2, "batch_size": 16},
            "adam, unclipped": {
                **_SHORT, "head_optimiser": _TORCH_ADAM, "head_epochs": 2, "clip_norm": None,
                "prototype_mean": "plain",
            },
        },
    }  # fmt: skip
    finals = {"fedavg_c", "fedproto", "protohar"}
    plain = [
        Case(strategy=strategy, name=name, settings=settings, final=strategy in finals)
        for strategy, several in named.items()
        for name, settings in several.items()
    ]
    # One case of each again with batch statistics and noise.
    noisy = [
        replace(case, name=f"noisy, {case.name}", bundle="noisy")
        for case in plain
        if case.name == next(iter(named[case.strategy]))
    ]
    return [*plain, *noisy, *_special_cases()]


def _special_cases() -> list[Case]:
    momentum = {**_SHORT, "optimiser": _MOMENTUM, "clip_norm": 0.5}
    strong = {**_SHORT, "regulariser": "sum", "prototype_optimiser": _SGD, "sphere_steps": 20}
    return [
        Case(
            strategy="fedhp", name="its own", settings={"epochs": 2, "batch_size": 16},
            bundle="prototypes", final=True,
        ),
        Case(
            strategy="fedhp", name="sum, lost anchors", settings=strong, bundle="prototypes",
            rounds=4, forgets={"phone": 3},
        ),
        Case(strategy="fedali", name="adam", settings=_SHORT, bundle="aligned"),
        Case(
            strategy="fedali", name="kept prototypes, momentum", bundle="aligned",
            settings={**momentum, "keep_local_prototypes": True, "beta": 0.5},
        ),
        *(
            Case(
                strategy=strategy, name="local_init", bundle=bundle,
                settings={**_SHORT, "local_init": {**_ALA, "layer_idx": layers}},
            )
            for strategy, bundle, layers in (
                ("fedavg", "noisy", 2), ("fedper", "perceptron", 1), ("ditto", "perceptron", 0),
                ("moon", "perceptron", 2), ("fedali", "aligned", 2),
            )
        ),
        *(
            Case(strategy=strategy, name=bundle, settings=settings, bundle=bundle)
            for bundle in ("regression", "multilabel")
            for strategy, settings in (
                ("fedavg", momentum), ("ditto", _SHORT), ("local", {**_SHORT, "keep_best": True}),
            )
        ),
    ]  # fmt: skip


def _asked() -> list[tuple[str, str, dict[str, Any]]]:
    """Strategies, bundles and settings that are right or wrong in one respect each."""
    own: dict[str, dict[str, list[Any]]] = {
        "fedprox": {"mu": [0, 1e9, -0.1, 2e9]},
        "fedper": {"head": ["body.0", "nothing", "", 3, None]},
        "fedrep": {"head_epochs": [0, 1, 100_000, 100_001], "epochs": [0]},
        "fedala": {"local_init": [None, {"kind": "ala", "window": 0}, {"kind": "ala", "eta": 2}]},
        "ditto": {"lam": [-1, 0], "personal_epochs": [0]},
        "moon": {"tau": [0, 1e-6], "mu": [-1]},
        "fedproto": {
            "prototype_weight": [-1, 0],
            "first_prototypes": ["normal", "zeros"],
            "means": ["last_epoch", 1],
            "predict": ["head", "nearest_own", "mean"],
        },
        "protohar": {
            "head_optimiser": [_SGD, {"kind": "adagrad"}],
            "prototype_mean": ["plain", "median", 1],
        },
        "fedhp": {},
        "fedali": {},
        "local": {"keep_best": [True, 1]},
        "scaffold": {
            "optimiser": [{"lr": 0.1}, _SGD, _ADAM, _MOMENTUM, {"kind": "sgd", "lr": 0}],
            "option": ["I", 1],
            "server": [{}, None, {"lr": -1}, {"kind": 1}, {"population": 3}],
        },
    }
    shared: dict[str, list[Any]] = {
        "epochs": [0, 1, 100_001, "5", True, 2.5, None],
        "batch_size": [0, 1, 2**20, 2**20 + 1],
        "drop_last": [True, 0, None],
        "clip_norm": [None, 0, 1e-12, "1"],
        "score_at": ["start", "middle", None],
        "optimiser": [
            None, "adam", [], {}, {"kind": None}, {"kind": "rmsprop"}, {"kind": "sgd"},
            {"kind": "sgd", "momentum": 1.5}, {"kind": "sgd", "beta1": 0.9},
            {"kind": "adam", "beta2": 1}, {"kind": "adam", "beta2": 0.999999},
            {"kind": "adam", "eps": 0}, {"kind": "adam", "eps_form": "tf"},
            {"kind": "adam", "lr": "0.1"}, {"lr": 0.1},
        ],
        "local_init": [
            {"kind": "ala"}, {"eta": 2}, {}, {"kind": "ala", "layer_idx": -1}, {"kind": "no"}, 1,
        ],
        "learning_rate": [0.1],
    }  # fmt: skip
    bundles = {"fedhp": "prototypes", "fedali": "aligned"}
    return [
        *(
            (strategy, bundles.get(strategy, "perceptron"), {name: value})
            for strategy, settings in {"fedavg": shared, "fedavg_c": {"x": [1]}, **own}.items()
            for name, values in settings.items()
            for value in values
        ),
        *(
            ("fedhp", "prototypes", {name: value})
            for name, value in (
                ("regulariser", "product"), ("sphere_steps", -1), ("sphere_momentum", 2),
                ("prototype_sum", "printed"), ("prototype_optimiser", {"kind": "sgd", "lr": -1}),
            )
        ),
        *(
            ("fedali", "aligned", {name: value})
            for name, value in (("beta", 1.1), ("keep_local_prototypes", 1), ("kmeans_tol", -1),
                                ("kmeans_empty", "drop"))
        ),
        ("local", "perceptron", {"score_at": "start"}),
        ("scaffold", "perceptron", {"option": "I", "clip_norm": 1.0}),
        ("fedproto", "perceptron", {"local_init": {"kind": "ala"}}),
        *(
            (strategy, bundle, {})
            for strategy in (*own, "fedavg", "fedavg_c")
            for bundle in ("perceptron", "regression")
        ),
    ]  # fmt: skip


def _answer(bundle: Bundle, strategy: str, settings: Mapping[str, Any]) -> str | None:
    try:
        build(strategy, settings, bundle.model())
    except InputError as error:
        return str(error)
    return None


def write(folder: Path) -> None:
    """Everything: bundles, data and cases."""
    folder.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    bundles = {name: _export(folder / f"{name}.pfb", name, key) for name in NETWORKS}
    parts = {name: _data(bundle) for name, bundle in bundles.items()}
    for name, data in parts.items():
        tensors = {
            f"{client}/{part}": getattr(own, part)
            for client, own in data.items()
            for part in ("x_train", "y_train", "x_test", "y_test")
        }
        (folder / f"{name}.data.safetensors").write_bytes(encode(tensors))
    cases = _cases()
    told = [
        _run(case, bundles[case.bundle], parts[case.bundle], folder / f"{index}.safetensors")
        for index, case in enumerate(cases)
    ]
    signer = key.public_key().public_bytes_raw().hex()
    asked = [
        {"strategy": strategy, "bundle": bundle, "settings": settings, "refused": refused}
        for strategy, bundle, settings in _asked()
        for refused in [_answer(bundles[bundle], strategy, settings)]
    ]
    document = {"seed": str(SEED), "signer": signer, "rates": RATES, "cases": told, "asked": asked}
    (folder / "cases.json").write_text(json.dumps(document, indent=1, ensure_ascii=False))


def _export(path: Path, name: str, key: Ed25519PrivateKey) -> Bundle:
    torch.manual_seed(3)
    network = NETWORKS[name]
    spec = BundleSpec(
        name=name,
        strategy="fedavg",
        objectives=network.objectives,
        preprocessing=Preprocessing(input_shape=(_INPUTS,)),
        head=network.head,
        formats=("onnx",),
        **network.outputs,
    )
    export_bundle(network.model(), spec, out=path, key=key)
    return Bundle.open(path, any_signer=True)


def _data(bundle: Bundle) -> dict[str, DeviceData]:
    rng = np.random.default_rng(5)
    manifest = bundle.manifest
    made: dict[str, DeviceData] = {}
    for client, (train, test) in _SIZES.items():
        x_train, y_train = _examples(rng, train, manifest.task)
        x_test, y_test = _examples(rng, test, manifest.task)
        made[client] = DeviceData(
            x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test,
            classes=manifest.classes, targets=manifest.targets,
        )  # fmt: skip
    return made


def _examples(rng: np.random.Generator, count: int, task: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The third class, or the second target, depends on what none of the others does."""
    x = rng.standard_normal((count, _INPUTS)).astype(np.float32)
    numbers = np.stack([x[:, 0] - x[:, 1] * x[:, 2], x[:, 3] + np.abs(x[:, 4])], axis=1)
    if task == "regression":
        return x, numbers.astype(np.float32)
    if task == "multilabel":
        return x, (numbers > 0).astype(np.float32)
    return x, np.where(numbers[:, 0] > 0, 0, np.where(numbers[:, 1] > 1, 1, 2)).astype(np.int64)


def _run(case: Case, bundle: Bundle, data: Mapping[str, DeviceData], path: Path) -> dict[str, Any]:
    learners = {
        client: Learner(bundle, open_programs(bundle), LocalData(own=own), Meter(), client)
        for client, own in data.items()
    }
    strategy = learners["phone"].strategy(case.strategy, case.settings)
    server = strategy.server_init(bundle.model(), np.random.default_rng(1))
    calibration = _calibrated(learners["phone"], strategy, server)
    states: dict[str, ClientState] = {}
    tensors: dict[str, NDArray[Any]] = {}
    rounds: list[dict[str, Any]] = []
    for round_id in range(1, case.rounds + 1 + case.final):
        final = round_id > case.rounds
        told: dict[str, Any] = {}
        updates: list[Update] = []
        for client, learner in learners.items():
            if _JOINS[client] > round_id:
                continue
            if case.forgets.get(client) == round_id:
                states.pop(client)
            payload = replace(strategy.downlink(server, client), final=final)
            before = states.get(client)
            states[client], update = learner.train(strategy, before, payload, seed=SEED)
            counts = np.array(learner.class_counts(round_id), np.int64)
            updates.append(replace(update, class_counts=counts if len(counts) else None))
            parts = {
                "payload": payload.tensors,
                "state": states[client].tensors,
                "update": update.tensors,
            }
            for part, values in parts.items():
                tensors |= {
                    f"{round_id}/{client}/{part}/{n}": np.array(v) for n, v in values.items()
                }
            told[client] = {
                "fresh": before is None,
                **_said(update),
                "scores_features": strategy.client_score(states[client]) is not None,
            }
        rounds.append({"round_id": round_id, "final": final, "clients": told})
        if not final:
            server = _aggregated(strategy, server, updates)
    path.write_bytes(encode(tensors))
    told = {"tensors": path.name, "rounds": rounds, "calibration": calibration}
    return {**_described(case, strategy, data), **told}


def _calibrated(learner: Learner, strategy: Strategy, server: ServerState) -> dict[str, Any]:
    """All settings, and what each of ``RATES`` does to the loss on held-out examples."""
    tester = learner.rate_tester(1)
    assert tester is not None
    payload = strategy.downlink(server, learner.device_id)
    ratios = try_rates(tester, strategy, payload, seed=SEED, rates=RATES)
    assert ratios is not None
    return {"settings": msgspec.to_builtins(strategy.settings), "ratios": ratios.tolist()}


def _aggregated(strategy: Strategy, server: ServerState, updates: list[Update]) -> ServerState:
    def refuse(*_arguments: object, **_named: object) -> Any:
        raise AssertionError("these servers run no program")

    tools = ServerTools(grad_fns={}, predict=refuse, rng=np.random.default_rng(2))
    return strategy.aggregate(server, updates, tools)


def _described(case: Case, strategy: Strategy, data: Mapping[str, DeviceData]) -> dict[str, Any]:
    description = strategy.description
    return {
        "strategy": case.strategy,
        "name": case.name,
        "bundle": case.bundle,
        "settings": dict(case.settings),
        "clients": list(data),
        "programs": list(description.objectives),
        "class_counts": description.class_counts,
        "payload": _forms(strategy.payload),
        "uplink": _forms(strategy.uplink),
    }


def _forms(forms: TensorSchemas) -> dict[str, Any]:
    def told(form: TensorSchema) -> dict[str, Any]:
        return {"shape": list(form.shape), "dtype": form.dtype, "most": form.most}

    return {
        "required": {name: told(form) for name, form in forms.required.items()},
        "optional": {name: told(form) for name, form in forms.optional.items()},
    }


def _said(update: Update) -> dict[str, Any]:
    """What an update says beside its tensors; None stands for NaN."""
    evaluation: Evaluation = update.evaluation
    return {
        "num_examples": update.num_examples,
        "loss": _number(update.loss),
        "own": None if evaluation.own is None else evaluation.own.tolist(),
        "own_loss": _number(evaluation.own_loss),
        "more": {name: value.tolist() for name, value in evaluation.more.items()},
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
