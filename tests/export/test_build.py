"""From a model to a bundle that a device opens, and no bundle when parity fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli.export import export as export_command
from protofleet.datasets import DeviceData
from protofleet.edge.join import open_learner
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.errors import ExportError, InputError
from protofleet.export import formats
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.capture import capture
from protofleet.export.models import build_model
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.federation.client import check_trained
from protofleet.runtime import BackendName, open_programs
from tests.export.test_onnx import scaled_gradient
from tests.export.toys import Perceptron

pytestmark = pytest.mark.slow(seconds=4)

_KEY = Ed25519PrivateKey.generate()


def _spec(shape: tuple[int, ...], classes: int, **fields: Any) -> BundleSpec:
    return BundleSpec(
        name="toy",
        strategy="fedavg",
        classes=tuple(f"class {i}" for i in range(classes)),
        preprocessing=Preprocessing(input_shape=shape),
        **fields,
    )


def test_a_device_gets_what_pytorch_computes(tmp_path: Path) -> None:
    """The bundle verifies, and its logits and features are the module's in evaluation mode."""
    torch.manual_seed(0)
    model = Perceptron()
    spec = _spec((5,), 3, provenance={"why": "a test"})
    report = export_bundle(model, spec, out=tmp_path / "toy.pfb", key=_KEY)
    bundle = Bundle.open(tmp_path / "toy.pfb", trusted={_KEY.public_key().public_bytes_raw()})
    assert bundle.digest == report.digest
    assert [record.program for record in report.parity] == ["infer", "features", "train"]
    assert bundle.manifest.provenance["why"] == "a test"
    initial, programs = bundle.model(), open_programs(bundle)
    x = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(x)).numpy()
        features = model.features(torch.from_numpy(x)).numpy()
    given = (initial.network, x)
    np.testing.assert_allclose(programs.predict(*given, batch_size=4), logits, atol=1e-6)
    np.testing.assert_allclose(programs.features(*given, batch_size=4), features, atol=1e-6)


@pytest.fixture(scope="module")
def normalising(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Of a model with batch normalisation of vectors."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("normalising") / "toy.pfb"
    export_bundle(Perceptron(), _spec((5,), 3), out=path, key=_KEY)
    return Bundle.open(path, any_signer=True)


def _learner(bundle: Bundle, count: int, backend: BackendName) -> Learner:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(count, 5)).astype(np.float32), np.arange(count) % 3
    own = DeviceData(
        x_train=x, y_train=y, x_test=x, y_test=y, classes=("class 0", "class 1", "class 2")
    )
    return open_learner(bundle, LocalData(own=own), threads=1, device_id="anna", backend=backend)


@pytest.mark.parametrize("backend", ["onnx", "litert"])
@pytest.mark.parametrize("name", ["fedavg", "local", "scaffold"])
def test_a_batch_of_one_leaves_a_device_with_batch_normalisation_usable(
    normalising: Bundle, name: str, backend: BackendName, caplog: pytest.LogCaptureFixture
) -> None:
    """17 examples in batches of 16, and a device that has one example in all; said once each."""
    settings = {"epochs": 2, "batch_size": 16, "optimiser": {"kind": "sgd", "lr": 0.1}}
    for count, said in ((17, "is joined to the batch before"), (1, "nothing is trained")):
        caplog.clear()
        learner = _learner(normalising, count, backend)
        strategy = learner.strategy(name, settings)
        server = strategy.server_init(learner.model, np.random.default_rng(0))
        state = None
        for _ in range(2):
            payload = strategy.downlink(server, "anna")
            state, update = learner.train(strategy, state, payload, seed=1)
            check_trained(state.tensors)
            check_trained(update.tensors)
        before, after = learner.model.buffers, strategy.client_model(state).buffers
        moved = not np.array_equal(before.buffer, after.buffer)
        assert (moved, np.isnan(update.loss)) == (count > 1, count == 1)
        assert [said in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("backend", ["onnx", "litert"])
def test_the_largest_batch_of_litert_takes_the_example_that_is_left_over(
    normalising: Bundle, backend: BackendName
) -> None:
    learner = _learner(normalising, 257, backend)
    strategy = learner.strategy("fedavg", {"epochs": 1, "batch_size": 256})
    payload = strategy.downlink(strategy.server_init(learner.model, np.random.default_rng(0)), "a")
    _, update = learner.train(strategy, None, payload, seed=1)
    assert np.isfinite(update.loss)


def test_batches_of_one_are_refused_at_the_start_where_they_have_no_variance(
    normalising: Bundle,
) -> None:
    """By a device, and by a coordinator, which reads it in the manifest."""
    programs = normalising.manifest.programs
    assert {name: program.min_batch for name, program in programs.items()} == {
        "infer": 1,
        "features": 1,
        "train": 2,
    }
    with pytest.raises(InputError, match=r"'batch_size': expected at least 2, got 1"):
        _learner(normalising, 4, "onnx").strategy("fedavg", {"batch_size": 1})
    batch = {"x": np.ones((1, 5), np.float32), "y": np.zeros(1, np.int64)}
    train = open_programs(normalising).grad_fns["cross_entropy"]
    with pytest.raises(InputError, match=r"program '.*train.*': expected at least 2 examples"):
        train(normalising.model().network, batch, np.random.default_rng(0))


def test_writing_onnx_leaves_the_captured_graph_as_it_is() -> None:
    """TFLite is written from it afterwards, and the exporter would promote types in it."""
    example = {"x": torch.zeros(4, 12), "y": torch.zeros(4, dtype=torch.int64)}
    model = build_model("fasttext", vocabulary=50, width=8)
    program = capture(model, OBJECTIVES["cross_entropy"], example)
    before = str(program.graph.graph)
    to_onnx(program, name="train")
    assert str(program.graph.graph) == before


@pytest.mark.slow
def test_no_bundle_when_a_program_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tampered training program is named and nothing lies at the path."""

    def tampered(program: Any, *, name: str) -> bytes:
        data = to_onnx(program, name=name)
        return scaled_gradient(data, "grad.head.bias", 1.01) if name == "train" else data

    monkeypatch.setattr(formats, "to_onnx", tampered)
    with pytest.raises(ExportError, match=r"program 'train', tensor 'grad\.head\.bias'"):
        export_bundle(Perceptron(), _spec((5,), 3), out=tmp_path / "toy", key=_KEY)
    assert list(tmp_path.iterdir()) == []


def test_classes_must_fit_the_logits(tmp_path: Path) -> None:
    """Three logits cannot name four classes."""
    said = r"Perceptron\), .*toys.py:\d+: expected 4 numbers .*class 0.*got 3"
    with pytest.raises(InputError, match=said):
        export_bundle(Perceptron(), _spec((5,), 4), out=tmp_path / "toy", key=_KEY)


_SMALL: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...], int]]] = {
    "mlp": lambda: (build_model("mlp"), (64,), 10),
    "cnn": lambda: (build_model("cnn", size=16, filters=[4, 6], hidden=8), (1, 16, 16), 10),
    "cnn_prototypes": lambda: (
        build_model("cnn_prototypes", size=16, filters=[4, 6]),
        (1, 16, 16),
        10,
    ),
    "fasttext": lambda: (build_model("fasttext", vocabulary=50, width=8), (12,), 4),
    "hart": lambda: (build_model("hart", width=32, kernels=[3], head_width=16), (128, 6), 6),
    "hart_alp": lambda: (
        build_model("hart_alp", width=32, kernels=[7], head_width=16, prototypes=[8]),
        (128, 6),
        6,
    ),
    "mlp_alp": lambda: (
        build_model("mlp_alp", inputs=9, hidden=(8, 6), prototypes=(5, 4)),
        (9,),
        10,
    ),
    "mlp_prototypes": lambda: (build_model("mlp_prototypes", inputs=9), (9,), 10),
    "vit": lambda: (
        build_model("vit", size=8, channels=1, width=24, depth=1, prototypes=[6]),
        (1, 8, 8),
        10,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # ``mlp_alp`` has alignment layers; of transformers there is BERT (``test_transformers.py``).
    [
        pytest.param(one, marks=pytest.mark.full_size) if one.startswith(("hart", "vit")) else one
        for one in _SMALL
    ],
)
def test_registered_models_pass_parity(name: str, tmp_path: Path) -> None:
    """Small variants: plain ONNX Runtime and the device's runtime with its kernels."""
    torch.manual_seed(3)
    model, shape, classes = _SMALL[name]()
    report = export_bundle(model, _spec(shape, classes), out=tmp_path / "toy.pfb", key=_KEY)
    assert max(record.worst_error for record in report.parity) < 1e-5


@pytest.mark.full_size
@pytest.mark.timeout(900)
def test_full_size_hart_with_alp(tmp_path: Path) -> None:
    """The paper's model: 1 890 590 trained values, a training program below 2 MB."""
    torch.manual_seed(0)
    model = build_model("hart_alp")
    report = export_bundle(model, _spec((128, 6), 6), out=tmp_path / "hart.pfb", key=_KEY)
    assert report.params == 1_890_590
    assert report.parity[-1].tensors == 1 + len(list(model.parameters())) + 6 + 1
    assert report.parity[-1].program_bytes < 2_000_000


@pytest.mark.slow
def test_the_command_reports_parity_as_json(tmp_path: Path) -> None:
    """One record per program, the strategy's and those asked for, and the strategy's settings."""
    key = tmp_path / "key.pem"
    arguments = ["mlp", "--set", "hidden=[8]", "--strategy", "fedavg", "--strategy-set", "epochs=2"]
    arguments += ["--objective", "moon", "--objective", "cross_entropy"]
    arguments += ["--out", str(tmp_path / "mlp.pfb"), "--key", str(_key_file(key)), "--json"]
    result = CliRunner().invoke(export_command, arguments, catch_exceptions=False)
    report = json.loads(result.stdout)
    names = [record["program"] for record in report["parity"]]
    assert names == ["infer", "features", "train", "train_moon"]
    manifest = Bundle.open(tmp_path / "mlp.pfb", any_signer=True).manifest
    assert manifest.strategy.settings == {"epochs": 2}
    assert manifest.classes == tuple(str(i) for i in range(10))


def test_the_command_needs_the_shape_of_a_users_model(tmp_path: Path) -> None:
    """A user's module has no known input shape; the message says what to give."""
    arguments = ["tests.export.toys:Perceptron", "--strategy", "fedavg"]
    arguments += ["--out", str(tmp_path / "toy.pfb")]
    with pytest.raises(InputError, match="give --input-shape"):
        CliRunner().invoke(export_command, arguments, catch_exceptions=False)


def _key_file(path: Path) -> Path:
    from protofleet.bundle import keys  # noqa: PLC0415 - only this helper needs it

    keys.load_or_create_signing_key(path)
    return path


class _Tied(nn.Module):
    """The encoder's weight again, transposed, by another name of the same module."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(5, 4), nn.Linear(5, 3)
        self.again = self.encoder

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.encoder(x))
        back = z @ self.again.weight
        return self.head(torch.cat([z, (back - x).square().mean(1, keepdim=True)], 1))


class _Shuffled(nn.Module):
    """Columns in an order of whole numbers, above what a constant of other numbers may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(9000).flip(0))
        self.head = nn.Linear(9000, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, self.order])


class _Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.clamp(0, 0.5))


def _biases_alone() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    for name, value in model.named_parameters():
        value.requires_grad_(name.endswith("bias"))
    return model


def _frozen_head() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    model[2].requires_grad_(requires_grad=False)
    return model


@pytest.mark.parametrize(
    ("model", "features", "params", "head"),
    [
        (_Tied(), 5, {"encoder.weight", "encoder.bias", "head.weight", "head.bias"}, 2),
        (_Shuffled(), 9000, {"head.weight", "head.bias"}, 2),
        (_Clamped(), 5, {"head.weight", "head.bias"}, 2),
        (_biases_alone(), 5, {"0.bias", "2.bias"}, 1),
        (_frozen_head(), 5, {"0.weight", "0.bias"}, 0),
    ],
    ids=["tied weights", "a table of rows", "bounds of two kinds", "biases alone", "frozen head"],
)
def test_a_model_as_people_write_it_is_exported_whole(
    model: nn.Module, features: int, params: set[str], head: int, tmp_path: Path
) -> None:
    """In both formats, each compared with PyTorch; and it is as it was."""
    before = dict(model.named_parameters())
    report = export_bundle(model, _spec((features,), 3), out=tmp_path / "a.pfb", key=_KEY)
    assert not report.left_out
    manifest = Bundle.open(tmp_path / "a.pfb", any_signer=True).manifest
    assert {one.name for one in manifest.params} == params
    assert len(manifest.head) == head
    assert all(value is before[name] for name, value in model.named_parameters())
