"""Any method on models of people's own: from the wishes of an export to rounds of training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli.export import export as export_command
from protofleet.cli.strategies import strategies as strategies_command
from protofleet.datasets import DeviceData
from protofleet.edge import LocalData
from protofleet.edge.join import open_learner
from protofleet.errors import InputError
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.classifier.prepare import Wishes
from protofleet.export.methods import Methods, choose_methods
from protofleet.export.models import build_model
from protofleet.export.models.layers import PrototypeHead
from protofleet.federation.randomness import server_rng
from protofleet.federation.suitability import why_not
from protofleet.runtime import open_programs
from protofleet.strategies import DESCRIPTIONS, build
from protofleet.strategies.aggregation import MEAN
from protofleet.strategies.types import ServerState, ServerTools
from tests.export.users_models import CLASSES, Encoder, Images, Tied, TwoHeads, perceptron

_ROWS, _IMAGE, _SERIES = (9,), (1, 12, 12), (10, 6)


def _methods(model: nn.Module, shape: tuple[int, ...], *names: str, **wishes: Any) -> Methods:
    spec = BundleSpec(
        name="mine",
        strategy="",
        classes=CLASSES,
        preprocessing=Preprocessing(input_shape=shape),
        objectives=(),
        provenance={"model": "mine:build"},
    )
    return choose_methods(model, spec, Wishes(strategies=names, **wishes))


@pytest.mark.parametrize("name", ["cross_entropy", "moon"])
def test_an_objective_of_another_task_is_refused_before_the_work(name):
    spec = BundleSpec(
        name="mine",
        strategy="",
        task="regression",
        targets=("a", "b", "c"),
        preprocessing=Preprocessing(input_shape=_ROWS),
        objectives=(name,),
    )
    expected = f"objective '{name}': expected one for task regression, got one whose labels"
    with pytest.raises(InputError, match=expected):
        choose_methods(perceptron(), spec, Wishes(strategies=("fedavg",)))


@pytest.fixture(scope="session")
def exported(tmp_path_factory, signing_key):
    """Bundles, each exported once: which model, shape, strategies and other wishes."""
    folder = tmp_path_factory.mktemp("methods")
    made: dict[str, Mapping[str, Any]] = {
        "rows": {"model": perceptron, "shape": _ROWS, "names": ["all"]},
        "images": {"model": Images, "shape": _IMAGE, "names": ["moon", "fedsub", "cdfl"]},
        "series": {"model": Encoder, "shape": _SERIES, "names": ["fedali"]},
        "distances": {
            "model": perceptron,
            "shape": _ROWS,
            "names": ["fedhp"],
            "head_kind": "prototypes",
        },
        "directions": {
            "model": perceptron,
            "shape": _ROWS,
            "names": ["fednh"],
            "head_kind": "cosine",
        },
    }

    def get(name: str) -> Path:
        path = folder / f"{name}.pfb"
        if not path.exists():
            torch.manual_seed(0)
            wishes = {**made[name]}
            model, shape = wishes.pop("model")(), wishes.pop("shape")
            methods = _methods(model, shape, *wishes.pop("names"), **wishes)
            export_bundle(model, methods.spec, out=path, key=signing_key[0])
        return path

    return get


_RUNS = {
    "rows": [
        "fedala",
        "fedhkd",
        "fedpac",
        "fedper",
        "fedproto",
        "fedrep",
        "fedsub",
        "moon",
        "protohar",
    ],
    "images": ["cdfl", "fedper", "fedsub", "moon"],
    "series": ["fedali", "fedrep"],
    "distances": ["fedhp"],
    "directions": ["fednh"],
}
_STEPS = {"sphere_steps": 20}
_SETTINGS = {"cdfl": {"restarts": 2, "value_range": (-4.0, 4.0)}, "fedhp": _STEPS, "fednh": _STEPS}


def test_a_bundle_knows_whether_a_training_has_moved_its_prototypes(
    exported, tmp_path, signing_key
):
    assert not Bundle.open(exported("distances"), any_signer=True).model().trained_prototypes
    model = perceptron()
    methods = _methods(model, _ROWS, "fedhp", head_kind="prototypes")
    (head,) = (part for part in model.modules() if isinstance(part, PrototypeHead))
    with torch.no_grad():
        head.prototypes[0] *= 1.01
    export_bundle(model, methods.spec, out=tmp_path / "t.pfb", key=signing_key[0])
    assert Bundle.open(tmp_path / "t.pfb", any_signer=True).model().trained_prototypes


@pytest.mark.slow(seconds=60)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("made", "name"),
    [
        # CDFL and FedAli run over the wire in tests/e2e/test_every_strategy.py.
        pytest.param(
            made,
            name,
            marks=[pytest.mark.full_size] if name == "cdfl" or made == "series" else [],
        )
        for made, names in _RUNS.items()
        for name in names
    ],
)
def test_methods_train_models_that_know_nothing_of_them(made: str, name: str, exported) -> None:
    """Two rounds of two devices, one per runtime: the server's state moves and stays finite."""
    bundle = Bundle.open(exported(made), any_signer=True)
    before, after = _two_rounds(bundle, name, {"epochs": 1, **_SETTINGS.get(name, {})})
    floats = {n: v for n, v in after.tensors.items() if v.dtype == np.float32}
    assert floats
    assert all(np.isfinite(value).all() for value in floats.values())
    moved = [n for n, v in floats.items() if not np.array_equal(v, before.tensors.get(n, 0))]
    assert moved


def _two_rounds(
    bundle: Bundle, name: str, settings: Mapping[str, Any]
) -> tuple[ServerState, ServerState]:
    strategy, programs = build(name, settings, bundle.model()), open_programs(bundle)
    asked = strategy.description
    learners = {
        backend: open_learner(
            bundle, _data(bundle, seed), threads=1, device_id=backend, backend=backend
        )
        for seed, backend in enumerate(("litert", "onnx"))
    }
    first = server = strategy.server_init(bundle.model(), server_rng(0, 0))
    states = dict.fromkeys(learners)
    for round_id in (1, 2):
        updates = []
        for device, learner in learners.items():
            payload = strategy.downlink(server, device)
            states[device], update = learner.train(strategy, states[device], payload, seed=0)
            strategy.uplink.check(update.tensors)
            counts = np.array(learner.class_counts(round_id))
            updates.append(replace(update, class_counts=counts if asked.class_counts else None))
        tools = ServerTools(
            grad_fns=programs.grad_fns,
            predict=programs.predict,
            rng=server_rng(0, round_id),
            aggregator=MEAN,
        )
        server = strategy.aggregate(server, updates, tools)
    return first, server


def _data(bundle: Bundle, seed: int) -> LocalData:
    rng = np.random.default_rng(seed)
    shape = bundle.manifest.preprocessing.input_shape
    y = np.arange(24, dtype=np.int64) % len(CLASSES)
    x = np.clip(rng.normal(y.reshape(-1, *[1] * len(shape)), 0.5, (24, *shape)), -4, 4)
    x = x.astype(np.float32)
    boxes = np.array([[[1, 1, 8, 8]]], np.float32).repeat(24, axis=0)
    images = len(shape) == 3
    own = DeviceData(
        x_train=x[:18],
        y_train=y[:18],
        x_test=x[18:],
        y_test=y[18:],
        classes=CLASSES,
        boxes_train=boxes[:18] if images else None,
        boxes_test=boxes[18:] if images else None,
    )
    return LocalData(own=own)


@pytest.mark.slow(seconds=20)
def test_a_bundle_says_which_strategies_run_on_it(exported) -> None:
    """'all' makes a bundle for all that can run; the others say what to do."""
    bundle = Bundle.open(exported("rows"), any_signer=True)
    reasons = why_not(bundle)
    missing = {name for name, why in reasons.items() if why}
    assert missing == {"cdfl", "fedali", "fedhome", "fedhp", "fednh"}
    assert "expected images" in reasons["cdfl"]
    assert "needs a training program 'reconstruction'" in reasons["fedhome"]
    assert "--align" in reasons["fedali"]
    assert "--head-kind prototypes" in reasons["fedhp"]
    assert "--head-kind cosine" in reasons["fednh"]
    assert bundle.manifest.strategy.name == "fedavg"
    assert bundle.manifest.head == ("5.weight", "5.bias")
    assert [layer.before for layer in bundle.manifest.layers] == [None, "0", "3"]


@pytest.mark.slow(seconds=20)
def test_the_command_says_the_same_to_people_and_programs(exported) -> None:
    """One line per strategy, or JSON."""
    path = str(exported("distances"))
    people = CliRunner().invoke(strategies_command, ["--model", path], catch_exceptions=False)
    lines = dict(line.split(maxsplit=1) for line in people.stdout.splitlines())
    assert lines["fedhp"] == "runs"
    assert "--strategy fedhp --strategy moon --out NEW.pfb" in lines["moon"]
    found = json.loads(CliRunner().invoke(strategies_command, ["--model", path, "--json"]).stdout)
    assert {one["name"]: one["runs"] for one in found} == {
        name: lines[name] == "runs" for name in DESCRIPTIONS
    }


def test_a_prototype_head_leaves_the_encoder_as_it_is() -> None:
    """Only the head's tensors change their names and values."""
    torch.manual_seed(0)
    model = Images()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    methods = _methods(model, _IMAGE, "fedhp", head_kind="prototypes")
    assert isinstance(model.classifier[3], PrototypeHead)
    after = model.state_dict()
    assert before.keys() - after.keys() == {"classifier.3.weight", "classifier.3.bias"}
    assert after.keys() - before.keys() == {"classifier.3.prototypes"}
    for name in before.keys() & after.keys():
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=0)
    assert methods.spec.objectives == ("prototype_distance",)
    assert methods.notes[0] == "head: 'classifier.3' is replaced by a prototype per class"


class _Reads(nn.Module):
    """A model that looks at its head's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(x))
        return logits / self.fc.weight.norm()


def test_a_head_whose_weight_the_model_reads_cannot_be_replaced() -> None:
    with pytest.raises(InputError, match=r"'fc' cannot be replaced.*no attribute 'weight'"):
        _methods(_Reads(), (5,), "fedhp", head_kind="prototypes")


def test_what_cannot_be_replaced_is_refused() -> None:
    """A head whose logits are one of two, and one that is not known."""
    with pytest.raises(InputError, match="--head-kind prototypes: several heads"):
        _methods(TwoHeads(), (5,), "fedhp", head_kind="prototypes")
    with pytest.raises(InputError, match="'0' cannot be replaced, expected a module that takes"):
        _methods(perceptron(), _ROWS, "fedhp", head_kind="prototypes", head="0")


def test_a_strategy_that_was_named_is_refused_with_the_remedy() -> None:
    """Before anything is captured."""
    for name, model, why in (
        ("moon", TwoHeads(), "strategy 'moon': needs features: several heads.*--head second"),
        ("fedper", Tied(), "--head NAME"),
        ("fedhp", nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), "--head-kind prototypes"),
        ("fednh", nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), "--head-kind cosine"),
        ("fedhkd", _Reads(), "strategy 'fedhkd': the logits are not what its head 'fc' makes of"),
        ("fedsub", nn.Linear(5, 3), "expected dense layers or convolutions with a ReLU"),
        ("fedavgg", TwoHeads(), "strategy 'fedavgg': unknown; expected one of .*cdfl, "),
    ):
        with pytest.raises(InputError, match=why):
            _methods(model, (5,), name)


def test_a_doubtful_head_does_not_stop_methods_that_need_none() -> None:
    """The note says why the others cannot run."""
    methods = _methods(TwoHeads(), (5,), "all")
    assert methods.spec.objectives == ("cross_entropy",)
    assert {"moon", "fedper", "fedproto"} <= methods.left_out.keys()
    (note,) = methods.notes
    assert note.startswith("head: several heads: the logits depend on first, second side by side")
    assert note.endswith("--head second; without it only strategies that ask for no head can run")


def test_fedhome_asks_for_a_model_that_decodes() -> None:
    """Others are refused by name; the autoencoder gets both programs."""
    with pytest.raises(
        InputError, match=r"'fedhome': expected .* decode\(features\) .*autoencoder"
    ):
        _methods(perceptron(), _ROWS, "fedhome")
    assert "decode(features)" in _methods(perceptron(), _ROWS, "all").left_out["fedhome"]
    model = build_model("autoencoder", steps=10, channels=6, classes=3, filters=(4,), latent=5)
    methods = _methods(model, _SERIES, "fedhome", "fedavg")
    assert methods.spec.objectives == ("reconstruction", "head_cross_entropy", "cross_entropy")


def test_the_first_strategy_names_the_bundle_and_takes_the_settings() -> None:
    """Programs are those of all, once each."""
    methods = _methods(perceptron(), _ROWS, "protohar", "moon", "fedsub")
    assert methods.spec.strategy == "protohar"
    assert methods.spec.objectives == ("cross_entropy", "prototype_mse", "moon")
    assert methods.spec.layers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head", "nothing"], "--head nothing: no such module"),
        (["--align", "encoder=many"], "--align encoder=many: expected a number"),
        (["--align", "nothing=4"], "align: no module is called 'nothing'"),
    ],
)
def test_the_command_s_wishes_are_checked(arguments: list[str], message: str, tmp_path: Path):
    """User errors, each one line."""
    given = ["tests.export.users_models:Encoder", "--strategy", "fedavg", "--input-shape", "10,6"]
    out = ["--out", str(tmp_path / "mine.pfb")]
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(export_command, [*given, *arguments, *out], catch_exceptions=False)
