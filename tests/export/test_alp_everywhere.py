"""One ALP, three computations: kernels, PyTorch operators, and the definition in plain ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from oracles import alp as oracle

from protofleet import kernels
from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.models import alp
from protofleet.export.onnx.alp import define_functions
from protofleet.runtime import open_programs

Arrays = dict[str, np.ndarray]

_GAMMA, _EPSILON, _ITERATIONS = 0.9, 0.05, 3
_CLEAR = 1e-3  # relative distance of plan values that no order of float32 operations reverses

# Batch, tokens, prototypes, width; bulk_code takes k = B // G embeddings: 2, 1 and 1.
_SIZES = [(128, 8, 64, 192), (64, 8, 256, 48), (3, 5, 7, 16)]


def _arrays(size: tuple[int, int, int, int]) -> Arrays:
    batch, tokens, count, width = size
    rng = np.random.default_rng(batch)
    shapes = {"x": (batch, tokens, width), "local": (count, width), "global_": (count, width)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def _plan(x: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    """The paper's listing in float64."""
    rows, columns = (
        a / np.linalg.norm(a, axis=1, keepdims=True)
        for a in (x.reshape(-1, x.shape[2]).astype(np.float64), prototypes.astype(np.float64))
    )
    plan = np.exp(rows @ columns.T / _EPSILON)
    for _ in range(_ITERATIONS):
        plan /= plan.sum(1, keepdims=True)
        plan /= plan.sum(0, keepdims=True)
    return plan


def _clear(values: np.ndarray, k: int) -> np.ndarray:
    """Columns whose k-th and next largest value differ clearly."""
    ordered = -np.sort(-values, axis=0)
    return ordered[k] < ordered[k - 1] * (1 - _CLEAR)


def _session(kind: str, attributes: dict[str, Any]) -> onnxruntime.InferenceSession:
    """A model of one node, which stock ONNX Runtime runs by the definition it carries."""
    trains = kind.endswith("Train")
    inputs = ["x", "local", "global_"] if trains else ["x", "local"]
    outputs = ["chosen", "new_local"] if trains else ["chosen"]

    def value(name: str) -> onnx.ValueInfoProto:
        rank = 3 if name in {"x", "chosen"} else 2
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * rank)

    node = onnx.helper.make_node(kind, inputs, outputs, domain="protofleet", **attributes)
    graph = onnx.helper.make_graph([node], "alp", [*map(value, inputs)], [*map(value, outputs)])
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("protofleet", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    define_functions(model)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def _by_kernels(arrays: Arrays, variant: Any) -> tuple[np.ndarray, np.ndarray]:
    return kernels.alp_train(**arrays, variant=variant, gamma=_GAMMA)


def _by_torch(arrays: Arrays, variant: str) -> tuple[np.ndarray, np.ndarray]:
    tensors = [torch.from_numpy(array) for array in arrays.values()]
    chosen, moved = alp.alp_train(*tensors, variant, _GAMMA, _EPSILON, _ITERATIONS)
    return chosen.numpy(), moved.numpy()


def _by_onnx(arrays: Arrays, variant: str) -> tuple[np.ndarray, np.ndarray]:
    numbers = {"gamma": _GAMMA, "epsilon": _EPSILON, "iterations": _ITERATIONS}
    chosen, moved = _session("AlpTrain", {"variant": variant, **numbers}).run(None, arrays)
    return chosen, moved


def _ablated_by_torch(arrays: Arrays, **how: str) -> tuple[np.ndarray, np.ndarray]:
    tensors = [torch.from_numpy(array) for array in arrays.values()]
    chosen, moved = alp.alp_ablation_train(*tensors, *how.values(), _GAMMA, _EPSILON, _ITERATIONS)
    return chosen.numpy(), moved.numpy()


def _ablated_by_onnx(arrays: Arrays, **how: str) -> tuple[np.ndarray, np.ndarray]:
    numbers = {"gamma": _GAMMA, "epsilon": _EPSILON, "iterations": _ITERATIONS}
    chosen, moved = _session("AlpAblationTrain", {**how, **numbers}).run(None, arrays)
    return chosen, moved


def _infer_by_onnx(x: np.ndarray, local: np.ndarray) -> np.ndarray:
    session = _session("AlpInfer", {"epsilon": _EPSILON, "iterations": _ITERATIONS})
    (chosen,) = session.run(None, {"x": x, "local": local})
    return chosen


def _infer_by_torch(x: np.ndarray, local: np.ndarray) -> np.ndarray:
    tensors = (torch.from_numpy(x), torch.from_numpy(local))
    return alp.alp_infer(*tensors, _EPSILON, _ITERATIONS).numpy()


def _count(variant: str, size: tuple[int, int, int, int]) -> int:
    batch, tokens, count, _ = size
    return max(1, batch // count) if variant == "bulk_code" else -(-batch * tokens // count)


@pytest.mark.parametrize("numba", ["1", "0"])
@pytest.mark.parametrize("variant", alp.ALP_UPDATES)
@pytest.mark.parametrize("size", _SIZES, ids=str)
def test_training_is_the_same_in_kernels_torch_and_plain_onnx(size, variant, numba, monkeypatch):
    """Every clear choice is the same, and every prototype whose members are clear."""
    monkeypatch.setenv("PROTOFLEET_NUMBA", numba)
    arrays = _arrays(size)
    results = [way(arrays, variant) for way in (_by_kernels, _by_torch, _by_onnx)]
    plan = _plan(arrays["x"], np.concatenate((arrays["local"], arrays["global_"])))
    mine, theirs = plan[:, : size[2]], plan[:, size[2] :]
    sure_rows = _clear(theirs.T, 1).reshape(size[:2])
    if variant == "single_code":
        clear = _clear(mine.T, 1)
        best = mine.argmax(1)
        sure = ~np.isin(np.arange(size[2]), best[~clear])
    else:
        sure = _clear(mine, _count(variant, size))
    assert sure_rows.mean() > 0.9
    assert sure.mean() > 0.6
    expected = theirs.argmax(1).reshape(size[:2])
    for chosen, moved in results:
        np.testing.assert_array_equal(chosen[sure_rows], arrays["global_"][expected][sure_rows])
        np.testing.assert_allclose(moved[sure], results[0][1][sure], rtol=2e-5, atol=2e-6)
        assert not np.array_equal(moved, arrays["local"])


@pytest.mark.parametrize("size", _SIZES, ids=str)
def test_inference_is_the_same_in_kernels_torch_and_plain_onnx(size):
    arrays = _arrays(size)
    x, local = arrays["x"], arrays["local"]
    plan = _plan(x, local)
    sure = _clear(plan.T, 1).reshape(size[:2])
    assert sure.mean() > 0.9
    expected = local[plan.argmax(1)].reshape(x.shape)
    for way in (kernels.alp_infer, _infer_by_torch, _infer_by_onnx):
        np.testing.assert_array_equal(way(x, local)[sure], expected[sure])


@pytest.mark.parametrize("assignment", get_args(alp.Assignment))
@pytest.mark.parametrize("banks", get_args(alp.Banks))
@pytest.mark.parametrize("variant", ["bulk_code", "single_code", "paper_text"])
def test_the_rows_of_table_4_are_an_oracle_s_in_torch_and_plain_onnx(variant, banks, assignment):
    """12 examples of 2 tokens, 5 prototypes: k = 2, and 5 by tokens. No decision is close."""
    arrays = _arrays((12, 2, 5, 16))
    how = {"variant": variant, "banks": banks, "assignment": assignment}
    expected = oracle.ablated(**arrays, **how, gamma=_GAMMA)
    for way in (_ablated_by_torch, _ablated_by_onnx):
        chosen, moved = way(arrays, **how)
        np.testing.assert_array_equal(chosen, expected[0])
        np.testing.assert_allclose(moved, expected[1], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("assignment", ["cosine", "euclidean"])
def test_inference_without_a_plan_takes_the_nearest_prototype_alone_as_in_a_batch(assignment):
    arrays = _arrays((32, 3, 8, 16))
    x, local = arrays["x"], arrays["local"]
    best = oracle.scores(x.reshape(-1, 16), local, assignment).argmax(axis=1)
    session = _session("AlpAblationInfer", {"assignment": assignment})
    by_torch = alp.alp_ablation_infer(torch.from_numpy(x), torch.from_numpy(local), assignment)
    (by_onnx,) = session.run(None, {"x": x, "local": local})
    for chosen in (by_torch.numpy(), by_onnx):
        np.testing.assert_array_equal(chosen.reshape(-1, 16), local[best])
    (alone,) = session.run(None, {"x": x[:1], "local": local})
    np.testing.assert_array_equal(alone, by_onnx[:1])


class _Aligned(torch.nn.Module):
    """Vectors or rows of tokens of 6 channels, aligned, and a linear layer on their mean."""

    def __init__(self, config: alp.AlignmentConfig) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.align = alp.Alignment(8, 4, config)
        self.register_buffer("beta", torch.tensor(0.5))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.align(self.first(x), self.beta).mean(1))


@pytest.fixture(scope="module")
def aligned_bundle(tmp_path_factory, signing_key):
    """A bundle in both formats, whose export compares PyTorch, ONNX Runtime and LiteRT."""

    def make(tokens: int, **settings: Any) -> Bundle:
        torch.manual_seed(4)
        spec = BundleSpec(
            name="aligned",
            strategy="fedali",
            classes=("a", "b", "c"),
            preprocessing=Preprocessing(input_shape=(tokens, 6)),
            formats=("onnx", "tflite"),
        )
        path = tmp_path_factory.mktemp("aligned") / "aligned.pfb"
        model = _Aligned(alp.AlignmentConfig(**settings))
        export_bundle(model, spec, out=path, key=signing_key[0])
        return Bundle.open(path, any_signer=True)

    return make


_RUNTIMES = (("onnx", "custom"), ("onnx", "graph"), ("litert", "auto"))


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize(
    "settings",
    [
        {"alp_banks": "global", "alp_assignment": "cosine", "alp_update": "paper_text"},
        {"alp_banks": "local", "alp_assignment": "euclidean", "alp_glu": False},
    ],
)
def test_layers_of_table_4_run_in_every_runtime(settings, aligned_bundle):
    bundle = aligned_bundle(3, **settings)
    x = np.random.default_rng(2).standard_normal((9, 3, 6)).astype(np.float32)
    network = bundle.model().network
    assert ("align.glu.weight" in network.params) == settings.get("alp_glu", True)
    found = []
    for backend, kind in _RUNTIMES:
        programs = open_programs(bundle, backend=backend, kernels=kind)
        batch = {"x": x, "y": np.arange(9) % 3}
        step = programs.grad_fns["cross_entropy"](network, batch, np.random.default_rng(0))
        local = step.buffers["align.local_prototypes"].copy()
        assert not np.array_equal(local, network.buffers["align.local_prototypes"])
        found.append((local, programs.predict(network, x)))
    for local, logits in found[1:]:
        np.testing.assert_allclose(local, found[0][0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(logits, found[0][1], rtol=1e-4, atol=1e-5)


def _with_the_first(values: Arrays, x: np.ndarray, bank: str) -> tuple[np.ndarray, np.ndarray]:
    """The aligned embedding of one example (6,) before it is aligned, and logits with row 0."""
    hidden = values["first.weight"] @ x + values["first.bias"]
    row = values[f"align.{bank}_prototypes"][0]
    value, gate = np.split(values["align.glu.weight"] @ row + values["align.glu.bias"], 2)
    mixed = 0.5 * value / (1 + np.exp(-gate)) + 0.5 * hidden
    unit = mixed / np.linalg.norm(mixed)
    return hidden, values["head.weight"] @ unit + values["head.bias"]


@pytest.mark.slow(seconds=12)
def test_a_single_embedding_takes_the_first_prototype_in_every_runtime(aligned_bundle):
    """Its columns sum to one, so all are equal but for rounding, which differs."""
    bundle = aligned_bundle(1, alp_update="single_code")
    network = bundle.model().network
    values = {**network.params, **network.buffers}
    model = _Aligned(alp.AlignmentConfig(alp_update="single_code"))
    programs = [open_programs(bundle, backend=one, kernels=kind) for one, kind in _RUNTIMES]
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal((1, 1, 6)).astype(np.float32)
        hidden, logits = _with_the_first(values, x[0, 0], "local")
        _, trained = _with_the_first(values, x[0, 0], "global")
        loss = np.log(np.exp(trained).sum()) - trained[0]
        moved = values["align.local_prototypes"].copy()
        moved[0] = 0.999 * moved[0] + 0.001 * hidden
        model.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
        np.testing.assert_allclose(
            model.eval()(torch.from_numpy(x))[0].detach(), logits, rtol=1e-4, atol=1e-5
        )
        for one in programs:
            np.testing.assert_allclose(one.predict(network, x)[0], logits, rtol=1e-4, atol=1e-5)
            batch = {"x": x, "y": np.zeros(1, np.int64)}
            step = one.grad_fns["cross_entropy"](network, batch, np.random.default_rng(0))
            assert step.loss == pytest.approx(loss, rel=1e-4)
            got = step.buffers["align.local_prototypes"]
            np.testing.assert_allclose(got, moved, rtol=1e-5, atol=1e-6)
        model.train()(torch.from_numpy(x))
        np.testing.assert_allclose(model.align.local_prototypes, moved, rtol=1e-5, atol=1e-6)


def test_every_prototype_s_column_of_the_plan_sums_to_one_and_rows_only_roughly():
    """Rows are divided first and columns last."""
    arrays = _arrays((16, 4, 8, 16))
    rows = torch.from_numpy(arrays["x"].reshape(-1, 16))
    plan = alp.transport_plan(rows, torch.from_numpy(arrays["local"]), _EPSILON, _ITERATIONS)
    torch.testing.assert_close(plan.sum(0), torch.ones(8))
    even = torch.full((64,), 8 / 64)
    assert not torch.allclose(plan.sum(1), even, rtol=1e-2)
    np.testing.assert_allclose(plan.numpy(), _plan(arrays["x"], arrays["local"]), rtol=1e-4)


@pytest.mark.parametrize("way", [kernels.alp_infer, _infer_by_torch, _infer_by_onnx])
def test_inference_alone_differs_from_inference_in_a_batch(way: Callable[..., np.ndarray]):
    """The columns couple all samples that are scored together."""
    arrays = _arrays((32, 8, 64, 192))
    x, local = arrays["x"], arrays["local"]
    alone = np.concatenate([way(sample[None], local) for sample in x])
    changed = (alone != way(x, local)).any(axis=2)
    assert 0.1 < changed.mean() < 0.95


@pytest.mark.parametrize("variant", ["bulk_code", "paper_text"])
def test_equal_values_go_to_the_lowest_index_in_kernels_and_onnx(variant):
    """Multiples of one embedding tie in every column; equal prototypes tie in every row."""
    scale = np.array([4, 1, 2, 8], np.float32)[:, None, None]
    x = scale * np.ones((4, 1, 4), np.float32)
    local = np.ones((2, 4), np.float32)
    global_ = np.array([[2], [1]], np.float32) * local
    arrays = {"x": x, "local": local, "global_": global_}
    for way in (_by_kernels, _by_onnx):
        chosen, moved = way(arrays, variant)
        np.testing.assert_array_equal(chosen, 2 * np.ones_like(x))
        # k = 2: the embeddings 4 and 1 count alike.
        np.testing.assert_allclose(moved, _GAMMA * local + (1 - _GAMMA) * 2.5, rtol=1e-6)
