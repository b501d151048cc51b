"""The objectives against their formulas in plain NumPy, and as programs against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.errors import ExportError, InputError
from protofleet.export.build import BundleSpec, capture_programs, export_bundle
from protofleet.export.capture import capture
from protofleet.export.classifier import ClassifierView, Parts
from protofleet.export.models import build_model, layers
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import TOLERANCE, check_parity, stock_runner
from protofleet.runtime import open_programs
from tests.export.toys import Perceptron

pytestmark = pytest.mark.slow(seconds=2)

_KEY = Ed25519PrivateKey.generate()
_C, _D = 4, 3
_CLASSIFIERS = tuple(n for n, one in OBJECTIVES.items() if one.labels == "classes")
_WITH_TARGETS = tuple(n for n, one in OBJECTIVES.items() if one.labels == "numbers")
Arrays = dict[str, np.ndarray]


class Flat(nn.Module):
    """Features are the input itself and logits its first values: formulas read off directly."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def features(self, x: Tensor) -> Tensor:
        return x * self.scale

    def head(self, features: Tensor) -> Tensor:
        return torch.cat((features, features[:, :1] * 0), 1)

    def classify(self, rows: Tensor) -> Tensor:
        return self.head(rows)

    def decode(self, features: Tensor) -> Tensor:
        return 2 * features.flip(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def _batch(name: str, size: int = 6, seed: int = 0) -> Arrays:
    """A batch of every input that the objective declares."""
    rng = np.random.default_rng(seed)
    known = {"batch": size, "classes": _C, "outputs": _C, "features": _D}
    values: Arrays = {}
    for key, declared in OBJECTIVES[name].inputs.items():
        shape = [known.get(d, d) for d in ("batch", _D)] if declared.shape is None else None
        shape = [known.get(d, d) for d in declared.shape] if shape is None else shape
        values[key] = np.asarray(rng.normal(size=shape) if shape else rng.uniform(0.2, 1), "f4")
    if name in _CLASSIFIERS:
        values["y"] = rng.permutation(np.arange(size) % _C)
    if OBJECTIVES[name].inputs["y"].flags:
        values["y"] = (values["y"] > 0).astype("f4")
    if "present" in values:
        values["present"] = np.array([1, 0, 1, 0], "f4")
    return values


def _loss(name: str, batch: Arrays, model: nn.Module | None = None) -> float:
    tensors = {key: torch.from_numpy(np.asarray(value)) for key, value in batch.items()}
    return OBJECTIVES[name].loss(model or Flat(), tensors).item()


def _cross_entropy(logits: np.ndarray, y: np.ndarray) -> float:
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return float(-np.log((shifted / shifted.sum(1, keepdims=True))[np.arange(len(y)), y]).mean())


def _logits(x: np.ndarray) -> np.ndarray:
    return np.concatenate((x, np.zeros((len(x), 1))), 1)


def _cos(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def _moon(b: Arrays) -> float:
    terms = []
    for z, positive, negative in zip(b["x"], b["positive"], b["negative"], strict=True):
        near = np.exp(_cos(z, positive) / b["tau"])
        terms.append(-np.log(near / (near + np.exp(_cos(z, negative) / b["tau"]))))
    return _cross_entropy(_logits(b["x"]), b["y"]) + float(b["mu"] * np.mean(terms))


def _prototype_mse(b: Arrays) -> float:
    rows = [
        np.square(x - b["prototypes"][y]) if b["present"][y] else np.zeros(_D)
        for x, y in zip(b["x"], b["y"], strict=True)
    ]
    return _cross_entropy(_logits(b["x"]), b["y"]) + float(b["weight"] * np.mean(rows))


def _info_nce(anchors: np.ndarray, partners: np.ndarray, tau: float) -> float:
    scores = np.array([[np.exp(_cos(a, p) / tau) for p in partners] for a in anchors])
    return float(np.mean([-np.log(row[j] / row.sum()) for j, row in enumerate(scores)]))


def _cdfl(b: Arrays) -> float:
    return (
        _cross_entropy(_logits(b["z"]), b["y"])
        + b["contrastive"] * _info_nce(b["z"], b["x"], b["tau"])
        + b["distillation"] * _info_nce(b["z"], b["teacher"], b["tau"])
        + b["clustering"] * np.mean([np.linalg.norm(row) for row in b["z"] - b["centroids"]])
    )


def _kernel(a: np.ndarray, b: np.ndarray) -> float:
    return float(sum(np.exp(-np.sum((a - b) ** 2) / (2 * width)) for width in (10, 15, 20, 50)))


def _mean_kernel(rows: np.ndarray, others: np.ndarray) -> float:
    return float(np.mean([[_kernel(a, b) for b in others] for a in rows]))


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def _fedphp(b: Arrays) -> float:
    x, teacher = b["x"], b["teacher"]
    within = _mean_kernel(x, x) + _mean_kernel(teacher, teacher)
    p, q = _softmax(b["teacher_outputs"]), _softmax(_logits(x))
    return (
        b["local"] * _cross_entropy(_logits(x), b["y"])
        + b["mmd"] * (within - 2 * _mean_kernel(x, teacher))
        + b["kl"] * float(np.mean(np.sum(p * np.log(p / q), 1)))
    )


def _reconstruction(b: Arrays) -> float:
    gaps = 2 * b["x"][:, ::-1] - b["x"]
    return _cross_entropy(_logits(b["x"]), b["y"]) + float(b["weight"] * np.mean(gaps**2))


def _mse(b: Arrays) -> float:
    return float(np.mean((_logits(b["x"]) - b["y"]) ** 2))


def _huber(b: Arrays) -> float:
    errors = np.abs(_logits(b["x"]) - 3 * b["y"])
    assert errors.min() < 1 < errors.max()
    return float(np.mean(np.where(errors <= 1, errors**2 / 2, errors - 0.5)))


def _bce(b: Arrays) -> float:
    shares = 1 / (1 + np.exp(-_logits(b["x"])))
    return float(-np.mean(np.where(b["y"] > 0, np.log(shares), np.log(1 - shares))))


def _hyper_knowledge(b: Arrays) -> float:
    def soft(row: np.ndarray) -> np.ndarray:
        shares = np.exp(_logits(row[None])[0] / b["temperature"])
        return shares / shares.sum()

    there = [c for c in range(_C) if b["present"][c]]
    gaps = [np.linalg.norm(soft(b["prototypes"][c]) - b["predictions"][c]) for c in there]
    pulls = [
        np.linalg.norm(x - b["prototypes"][y]) if y in there else 0.0
        for x, y in zip(b["x"], b["y"], strict=True)
    ]
    taught = b["prediction_weight"] * np.mean(gaps) + b["feature_weight"] * np.mean(pulls)
    return _cross_entropy(_logits(b["x"]), b["y"]) + float(taught)


_ORACLES: dict[str, Callable[[Arrays], float]] = {
    "moon": _moon,
    "prototype_mse": _prototype_mse,
    "cdfl": _cdfl,
    "fedphp": _fedphp,
    "hyper_knowledge": _hyper_knowledge,
    "reconstruction": _reconstruction,
    "head_cross_entropy": lambda b: _cross_entropy(_logits(b["features"]), b["y"]),
    "mse": _mse,
    "bce": _bce,
}


@pytest.mark.parametrize("name", _ORACLES)
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_its_formula(name: str, seed: int) -> None:
    """Term by term and example by example in NumPy."""
    batch = _batch(name, seed=seed)
    assert _loss(name, batch) == pytest.approx(_ORACLES[name](batch), rel=1e-5)


def test_huber_is_its_formula_and_pytorchs() -> None:
    """On both sides of the threshold; its gradient is bounded."""
    batch = _batch("huber")
    scaled = {**batch, "y": np.float32(3) * batch["y"]}
    expected = torch.nn.functional.huber_loss(
        Flat()(torch.from_numpy(batch["x"])), torch.from_numpy(scaled["y"])
    )
    assert _loss("huber", scaled) == pytest.approx(_huber(batch), rel=1e-5)
    assert _loss("huber", scaled) == pytest.approx(expected.item(), rel=1e-6)
    far = {**batch, "y": batch["y"] + np.float32(1e6)}
    assert np.abs(_gradient("huber", far, "x")).max() <= 1 / _C


def test_certain_and_wrong_logits_have_a_finite_loss_and_gradient() -> None:
    batch = {"x": np.array([[200.0, -200, 0]], "f4"), "y": np.array([[0, 1, 0, 0]], "f4")}
    expected = (200 + 200 + 2 * np.log(2)) / 4
    assert _loss("bce", batch) == pytest.approx(expected, rel=1e-6)
    assert np.isfinite(_gradient("bce", batch, "x")).all()


def test_prototype_distance_is_its_formula() -> None:
    """Logits are minus distances, not squared; the pull to the anchors is summed over classes."""
    model = build_model("mlp_prototypes", inputs=_D, hidden=(_D,), classes=_C)
    with torch.no_grad():
        model.body[0].weight.copy_(torch.eye(_D))
        model.body[0].bias.zero_()
    batch = _batch("prototype_distance")
    prototypes = model.head.prototypes.detach().numpy()
    features = np.maximum(batch["x"], 0)
    logits = [[-np.linalg.norm(f - p) for p in prototypes] for f in features]
    pull = sum(1 - _cos(p, a) for p, a in zip(prototypes, batch["anchors"], strict=True))
    expected = _cross_entropy(np.array(logits), batch["y"]) + batch["weight"] * pull
    view = ClassifierView(model, Parts(head=""))
    assert _loss("prototype_distance", batch, view) == pytest.approx(expected, rel=1e-5)


def _gradient(name: str, batch: Arrays, key: str) -> np.ndarray:
    tensors = {k: torch.from_numpy(np.asarray(v)) for k, v in batch.items()}
    tensors[key].requires_grad_()
    OBJECTIVES[name].loss(Flat(), tensors).backward()
    return tensors[key].grad.numpy()


@pytest.mark.parametrize(("name", "key"), [("moon", "x"), ("cdfl", "z"), ("cdfl", "x")])
def test_features_of_length_zero_have_a_finite_gradient(name: str, key: str) -> None:
    """As after a ReLU that let nothing through: no direction, no pull."""
    batch = _batch(name)
    batch[key][:] = 0
    for other in ("positive", "negative", "teacher", "centroids"):
        if other in batch:
            batch[other][:2] = 0
    assert np.isfinite(_loss(name, batch))
    assert np.abs(_gradient(name, batch, key)).max() < 10


@pytest.mark.parametrize("tau", [1e-4, 1e-2])
@pytest.mark.parametrize("name", ["moon", "cdfl"])
def test_a_small_temperature_does_not_overflow(name: str, tau: float) -> None:
    """exp(1/tau) is no float32 number; the loss is the gap of the cosines over tau."""
    batch = {**_batch(name), "tau": np.float32(tau)}
    assert np.isfinite(_loss(name, batch))
    assert np.isfinite(_gradient(name, batch, "x")).all()
    if name == "moon":
        pairs = zip(batch["x"], batch["positive"], batch["negative"], strict=True)
        gaps = [max(0.0, _cos(z, n) - _cos(z, p)) / tau for z, p, n in pairs]
        rest = _cross_entropy(_logits(batch["x"]), batch["y"])
        expected = rest + batch["mu"] * np.mean(gaps)
        assert _loss(name, batch) == pytest.approx(expected, rel=1e-2)


def test_a_batch_of_one_has_no_negatives_and_no_contrast() -> None:
    """The softmax over one candidate is 1."""
    batch = _batch("cdfl", size=1)
    assert _loss("cdfl", batch) == pytest.approx(_cdfl(batch), rel=1e-5)
    gradient = _gradient("cdfl", batch, "x")
    np.testing.assert_allclose(gradient, np.zeros((1, _D)), atol=1e-6)


def test_cdfl_pulls_both_sides_of_the_pair_of_images_and_no_input() -> None:
    """The gradient through the original's features is not zero."""
    batch = _batch("cdfl")
    assert np.abs(_gradient("cdfl", batch, "x")).max() > 1e-3


def test_fedphp_has_nothing_to_learn_from_an_equal_model() -> None:
    """Both transfers are zero and flat there, whatever they weigh."""
    batch = _batch("fedphp")
    batch |= {"teacher": batch["x"].copy(), "teacher_outputs": _logits(batch["x"]).astype("f4")}
    batch["local"] = np.zeros((), "f4")
    assert _loss("fedphp", batch) == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(_gradient("fedphp", batch, "x"), 0, atol=1e-6)


def test_nothing_of_an_absent_prototype_is_read() -> None:
    """Not even a value that is no number."""
    batch = _batch("prototype_mse")
    expected = _loss("prototype_mse", batch)
    batch["prototypes"][batch["present"] == 0] = np.nan
    assert _loss("prototype_mse", batch) == expected
    batch["present"][:] = 0
    assert _loss("prototype_mse", batch) == pytest.approx(
        _cross_entropy(_logits(batch["x"]), batch["y"]), rel=1e-6
    )


def test_a_feature_on_its_prototype_has_a_finite_gradient() -> None:
    """The distance's derivative does not exist there; zero is taken."""
    points = torch.eye(3)
    x = points.clone().requires_grad_()
    found = layers.distances(x, points)
    found.sum().backward()
    np.testing.assert_allclose(found.diagonal().detach(), np.zeros(3), atol=1e-6)
    assert found[0, 1].item() == pytest.approx(2**0.5)
    assert torch.isfinite(x.grad).all()
    zero = torch.zeros(1, 3, requires_grad=True)
    (layers.length(zero) + layers.unit(zero).sum()).sum().backward()
    assert torch.equal(zero.grad, torch.zeros(1, 3))


def test_only_a_model_with_prototypes_has_distances_to_them() -> None:
    spec = _spec((64,), ("prototype_distance",))
    with pytest.raises(ExportError, match=r"prototype per class.*--head-kind prototypes"):
        capture_programs(build_model("mlp"), spec)


@pytest.mark.parametrize("name", ["reconstruction", "head_cross_entropy"])
def test_only_a_model_that_decodes_has_a_reconstruction_and_a_head_apart(name: str) -> None:
    """Here a model whose head is found in its forward pass; a method decode is not enough."""
    model = nn.Sequential(nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 10))
    model.decode = lambda features: features
    with pytest.raises(ExportError, match=r"features\(x\), head\(features\) .* 'autoencoder' has"):
        capture_programs(model, _spec((9,), (name,)))


def _spec(shape: tuple[int, ...], objectives: tuple[str, ...], classes: int = 10) -> BundleSpec:
    return BundleSpec(
        name="toy",
        strategy="fedavg",
        classes=tuple(str(i) for i in range(classes)),
        preprocessing=Preprocessing(input_shape=shape),
        objectives=objectives,
    )


_EVERY = _CLASSIFIERS
_OF_SOME = {"prototype_distance", "reconstruction", "head_cross_entropy"}
_COMMON = tuple(name for name in _CLASSIFIERS if name not in _OF_SOME)
_CNN = {"size": 16, "filters": [4, 6]}
_MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...], int, tuple[str, ...]]] = {
    "mlp": ({"hidden": [8, 6]}, (64,), 10, _COMMON),
    "cnn": ({**_CNN, "hidden": 8}, (1, 16, 16), 10, ("cdfl", "fedphp")),
    "cnn_prototypes": (_CNN, (1, 16, 16), 10, ("cross_entropy", "prototype_distance")),
    "autoencoder": (
        {"steps": 15, "channels": 2, "filters": [4, 6], "latent": 5},
        (15, 2),
        6,
        ("cross_entropy", "reconstruction", "head_cross_entropy"),
    ),
    "hart": ({"width": 32, "kernels": [3], "head_width": 16}, (128, 6), 6, ("cdfl",)),
}


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize(
    "name",
    [
        # Over the wire cdfl exports such a network too (tests/e2e/test_every_strategy.py).
        pytest.param(one, marks=pytest.mark.full_size) if one in {"hart", "cnn"} else one
        for one in _MODELS
    ],
)
def test_objectives_pass_parity(name: str, tmp_path: Path) -> None:
    """Plain ONNX Runtime and the device's runtime, dropout and all.

    LiteRT is held to the tolerance of every export: of CDFL's gradients in a net of 6 units some
    are small differences of large numbers, and its kernels differ from processor to processor.
    """
    torch.manual_seed(3)
    settings, shape, classes, objectives = _MODELS[name]
    spec = _spec(shape, objectives, classes)
    report = export_bundle(build_model(name, **settings), spec, out=tmp_path / "a.pfb", key=_KEY)
    names = [record.program for record in report.parity]
    assert names == ["infer", "features", "train", *(f"train_{o}" for o in objectives[1:])]
    for record in report.parity:
        errors = dict(record.by_runner)
        assert errors.pop("LiteRT") <= TOLERANCE
        assert len(errors) == 2
        assert max(errors.values()) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", _WITH_TARGETS)
def test_objectives_of_targets_pass_parity_in_both_runtimes(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    spec = BundleSpec(
        name="toy",
        strategy="fedavg",
        task="multilabel" if name == "bce" else "regression",
        targets=tuple("abcd"),
        preprocessing=Preprocessing(input_shape=(_D,)),
        objectives=(name,),
    )
    model = build_model("mlp", inputs=_D, hidden=(_D,), classes=_C)
    report = export_bundle(model, spec, out=tmp_path / "a.pfb", key=_KEY)
    assert report.left_out == {}
    assert all(record.worst_error < 2e-5 for record in report.parity)
    manifest = Bundle.open(tmp_path / "a.pfb", any_signer=True).manifest
    (y,) = (port for port in manifest.programs["train"].inputs if port.key == "y")
    assert (manifest.outputs, y.dtype, y.shape) == (tuple("abcd"), "float32", ("batch", _C))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*_COMMON, *_WITH_TARGETS])
def test_every_input_of_a_program_changes_its_result(name: str) -> None:
    """No term is lost on the way, and batches of one run."""
    model = build_model("mlp", inputs=_D, hidden=(_D,), classes=_C)
    example = {k: torch.from_numpy(np.asarray(v)) for k, v in _batch(name).items()}
    program = capture(model, OBJECTIVES[name], example)
    run = stock_runner(to_onnx(program, name="train"))
    params = {f"param.{k}": v.detach().numpy() for k, v in model.named_parameters()}
    batch = _batch(name, seed=1)
    before = run({**params, **batch})
    for key, value in batch.items():
        other = {"y": (value + 1) % _C, "present": 1 - value}.get(key, value * 0.5 + 0.1)
        after = run({**params, **batch, key: np.asarray(other, value.dtype)})
        assert after["loss"] != before["loss"], key
    alone = run({**params, **_batch(name, size=1)})
    assert all(np.isfinite(value).all() for value in alone.values())


@pytest.mark.slow
def test_two_passes_of_one_model_draw_separate_noise() -> None:
    """CDFL calls the model on both images: twice the noise of one pass."""
    torch.manual_seed(1)
    x = torch.zeros(4, 5)
    vectors, number = torch.zeros(4, 8), torch.zeros(())
    names = ("tau", "contrastive", "distillation", "clustering")
    example = {"x": x, "z": x, "y": torch.zeros(4, dtype=torch.int64)}
    example |= {"teacher": vectors, "centroids": vectors, **dict.fromkeys(names, number)}
    program = capture(Perceptron(), OBJECTIVES["cdfl"], example)
    assert [p.shape for p in program.inputs if p.role == "noise"] == [("batch", 8)] * 2
    check_parity(Perceptron(), program, to_onnx(program, name="train"), name="train")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Programs of a bundle with every objective, proved on the way, and its values."""
    path = tmp_path_factory.mktemp("objectives") / "a.pfb"
    torch.manual_seed(5)
    model = build_model("mlp_prototypes", inputs=_D, hidden=(_D,), classes=_C)
    model.decode = nn.Linear(_D, _D)
    export_bundle(model, _spec((_D,), _EVERY, _C), out=path, key=_KEY)
    bundle = Bundle.open(path, any_signer=True)
    return open_programs(bundle), bundle.model().network


@pytest.mark.slow
@pytest.mark.parametrize("name", _EVERY)
@pytest.mark.parametrize("kind", [float, np.float32, np.float64, np.array])
def test_a_number_may_come_in_any_form(device: Any, name: str, kind: Any) -> None:
    programs, network = device
    batch = _batch(name)
    expected = programs.grad_fns[name](network, batch, np.random.default_rng(0)).loss
    numbers = {k: kind(v) for k, v in batch.items() if np.ndim(v) == 0}
    step = programs.grad_fns[name](network, {**batch, **numbers}, np.random.default_rng(0))
    assert step.loss == pytest.approx(expected, rel=1e-6)


_WRONG: list[tuple[str, str, Any]] = [
    ("moon", "tau", np.ones(1, "f4")),
    ("moon", "tau", None),
    ("moon", "mu", "0.5"),
    ("moon", "mu", True),
    ("moon", "mu", 1j),
    ("moon", "positive", np.zeros((5, _D), "f4")),
    ("moon", "negative", np.zeros((6, _D + 1), "f4")),
    ("prototype_mse", "prototypes", np.zeros((_C - 1, _D), "f4")),
    ("prototype_mse", "prototypes", np.zeros((_C, _D))),
    ("prototype_mse", "present", np.ones(_C, bool)),
    ("prototype_mse", "present", 1.0),
    ("prototype_distance", "anchors", np.zeros((_D, _C), "f4")),
    ("cdfl", "z", np.zeros((6, _D, 1), "f4")),
    ("cdfl", "z", np.zeros((0, _D), "f4")),
    ("cdfl", "teacher", np.float32(0)),
    ("cdfl", "clustering", np.zeros((), "S3")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key", "value"), _WRONG)
def test_an_input_that_does_not_fit_is_named(device: Any, name: str, key: str, value: Any) -> None:
    programs, network = device
    batch = {**_batch(name), key: value}
    with pytest.raises(InputError, match=f"input '{key}': expected "):
        programs.grad_fns[name](network, batch, np.random.default_rng(0))


@pytest.mark.slow
def test_arrays_of_any_memory_order_serve_and_are_read_anew(device: Any) -> None:
    """Prototypes that change in place between calls change the loss."""
    programs, network = device
    batch = _batch("prototype_mse")
    batch["prototypes"] = np.asfortranarray(batch["prototypes"])
    batch["present"][:] = 1

    def loss() -> float:
        return programs.grad_fns["prototype_mse"](network, batch, np.random.default_rng(0)).loss

    before = loss()
    batch["prototypes"][:] += 1
    changed = loss()
    assert changed != before
    batch["prototypes"] = np.ascontiguousarray(batch["prototypes"])
    assert loss() == changed


class _Watched:
    """A model that notes what of it an objective asks for."""

    def __init__(self, model: Flat) -> None:
        self._model, self.asked = model, set()

    def __call__(self, x: Tensor) -> Tensor:
        return self._model(x)

    def head(self, features: Tensor) -> Tensor:
        return self._model.head(features)

    def __getattr__(self, name: str) -> object:
        self.asked.add(name)
        return torch.ones(_C, _D) if name == "prototypes" else getattr(self._model, name)


@pytest.mark.parametrize("name", sorted((*_CLASSIFIERS, *_WITH_TARGETS)))
def test_what_an_objective_needs_of_a_model_is_what_it_asks_for(name):
    """Else a model that lacks it is refused in the middle of the capture."""
    watched = _Watched(Flat())
    batch = {key: torch.from_numpy(value) for key, value in _batch(name).items()}
    OBJECTIVES[name].loss(watched, batch)
    needs = set(OBJECTIVES[name].needs)
    if "features" in OBJECTIVES[name].sizes:
        watched.asked.add("features")  # of that width are its inputs
    assert watched.asked == needs
