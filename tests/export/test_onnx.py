"""Written programs against PyTorch: gradients, batch sizes, noise, ALP's definitions."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from protofleet.errors import ExportError
from protofleet.export.capture import capture
from protofleet.export.models import alp
from protofleet.export.objectives import OBJECTIVES, Objective
from protofleet.export.onnx import to_onnx
from protofleet.export.onnx.alp import define_functions
from protofleet.export.parity import check_parity, stock_runner
from tests.export.toys import INPUT_SHAPES, Perceptron, batch

pytestmark = pytest.mark.slow(seconds=1)

_OBJECTIVE = OBJECTIVES["cross_entropy"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", INPUT_SHAPES, ids=lambda kind: kind.__name__)
def test_every_gradient_agrees_with_autograd(kind: type[nn.Module]) -> None:
    """Loss, gradients, statistics and logits at two batch sizes, with the same noise."""
    torch.manual_seed(1)
    model = kind()
    program = capture(model, _OBJECTIVE, batch(INPUT_SHAPES[kind]))
    record = check_parity(model, program, to_onnx(program, name="train"), name="train")
    assert record.worst_error < 2e-5
    grads = {port.key for port in program.outputs if port.role == "grad"}
    assert grads == dict(model.named_parameters()).keys()


@pytest.mark.parametrize("kind", INPUT_SHAPES, ids=lambda kind: kind.__name__)
def test_inference_runs_at_any_batch_size(kind: type[nn.Module]) -> None:
    """The symbolic batch is symbolic: 1, 2, 7 and 64 examples."""
    torch.manual_seed(1)
    model = kind()
    program = capture(model, None, {"x": batch(INPUT_SHAPES[kind])["x"]}, features=True)
    data = to_onnx(program, name="features")
    check_parity(model, program, data, name="features", batch_sizes=(1, 2, 7, 64))


@pytest.mark.parametrize("objective", [None, _OBJECTIVE], ids=["infer", "train"])
def test_the_batch_axis_is_called_batch(objective: Objective | None) -> None:
    """Axes have the sizes and names of the ports, not the symbols of a trace."""
    examples = batch((5,)) if objective else {"x": batch((5,))["x"]}
    program = capture(Perceptron(), objective, examples)
    graph = onnx.load_from_string(to_onnx(program, name="p")).graph
    for value, port in zip(
        (*graph.input, *graph.output), (*program.inputs, *program.outputs), strict=True
    ):
        axes = value.type.tensor_type.shape.dim
        assert tuple(axis.dim_param or axis.dim_value for axis in axes) == port.shape


def test_training_runs_at_any_batch_size() -> None:
    """Batch normalisation needs two examples; everything else one."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Dropout(0.2), nn.Linear(4, 3))
    program = capture(model, _OBJECTIVE, batch((2, 3)))
    data = to_onnx(program, name="train")
    check_parity(model, program, data, name="train", batch_sizes=(1, 2, 7, 64))


def test_same_noise_gives_same_bits_and_other_noise_another_loss() -> None:
    """Randomness enters only through the noise ports."""
    model = Perceptron()
    program = capture(model, _OBJECTIVE, batch((5,)))
    run = stock_runner(to_onnx(program, name="train"))
    rng = np.random.default_rng(0)
    feed = {p.name: _array(p, rng) for p in program.inputs}
    first, again = run(feed), run(feed)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    feed["noise.0"] = 1 - feed["noise.0"]
    assert run(feed)["loss"] != first["loss"]


def test_a_tampered_program_is_refused_with_the_tensor() -> None:
    """A gradient scaled by 1.001 is named."""
    model = Perceptron()
    program = capture(model, _OBJECTIVE, batch((5,)))
    data = scaled_gradient(to_onnx(program, name="train"), "grad.first.weight", 1.001)
    with pytest.raises(ExportError, match=r"tensor 'grad\.first\.weight'.*1\.0\de-03"):
        check_parity(model, program, data, name="train")


def test_no_weights_and_no_origins_inside() -> None:
    """A program holds neither parameters nor paths of the exporting machine."""
    model = Perceptron()
    program = capture(model, _OBJECTIVE, batch((5,)))
    data = to_onnx(program, name="train")
    read = onnx.load_from_string(data)
    assert max(len(t.dims) and int(np.prod(t.dims)) for t in read.graph.initializer) < 8
    assert __file__.encode() not in data
    assert [i.name for i in read.graph.input] == [p.name for p in program.inputs]
    assert [i.name for i in read.graph.output] == [p.name for p in program.outputs]


@pytest.mark.parametrize("variant", alp.ALP_UPDATES)
@pytest.mark.parametrize("size", [1, 3, 16])
def test_alp_definition_equals_the_operator(variant: str, size: int) -> None:
    """All update variants, fewer and more samples than prototypes, in plain ONNX Runtime."""
    torch.manual_seed(size)
    x, local, global_ = torch.randn(size, 4, 6), torch.randn(5, 6), torch.randn(5, 6)
    attributes = {"variant": variant, "gamma": 0.9, "epsilon": 0.05, "iterations": 3}
    session = _alp_session("AlpTrain", ["x", "local", "global_"], 2, attributes)
    feed = {"x": x.numpy(), "local": local.numpy(), "global_": global_.numpy()}
    chosen, moved = session.run(None, feed)
    expected = alp.alp_train(x, local, global_, *attributes.values())
    np.testing.assert_array_equal(chosen, expected[0].numpy())
    np.testing.assert_allclose(moved, expected[1].numpy(), rtol=1e-5, atol=1e-6)


def test_alp_inference_definition_equals_the_operator() -> None:
    """Assignment to local prototypes."""
    torch.manual_seed(0)
    x, local = torch.randn(3, 4, 6), torch.randn(5, 6)
    session = _alp_session("AlpInfer", ["x", "local"], 1, {"epsilon": 0.05, "iterations": 3})
    (chosen,) = session.run(None, {"x": x.numpy(), "local": local.numpy()})
    np.testing.assert_array_equal(chosen, alp.alp_infer(x, local, 0.05, 3).numpy())


def test_one_model_has_one_variant() -> None:
    """A definition fits one variant; two in one model are refused."""
    shared = {"gamma": 0.9, "epsilon": 0.05, "iterations": 3}
    nodes = [
        onnx.helper.make_node(
            "AlpTrain", ["x", "l", "g"], [v, v + "_new"], domain="protofleet", variant=v, **shared
        )
        for v in ("bulk_code", "single_code")
    ]
    graph = onnx.helper.make_graph(nodes, "two", [], [])
    with pytest.raises(ExportError, match=r"agree .* got bulk_code, both, transport, 3 and sin"):
        define_functions(onnx.helper.make_model(graph))


def scaled_gradient(data: bytes, name: str, factor: float) -> bytes:
    """The program with one output multiplied."""
    model = onnx.load_from_string(data)
    for node in model.graph.node:
        for index, output in enumerate(node.output):
            if output == name:
                node.output[index] = "before_tampering"
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.float32(factor), "tampering_factor")
    )
    model.graph.node.append(
        onnx.helper.make_node("Mul", ["before_tampering", "tampering_factor"], [name])
    )
    tampered: bytes = model.SerializeToString()
    return tampered


def _array(port: object, rng: np.random.Generator) -> np.ndarray:
    shape = [6 if dim == "batch" else dim for dim in port.shape]
    if port.dtype == "int64":
        return rng.integers(0, 3, shape)
    return np.asarray(rng.random(shape), np.float32)


def _alp_session(
    kind: str, inputs: list[str], outputs: int, attributes: dict[str, object]
) -> onnxruntime.InferenceSession:
    names = [f"out{i}" for i in range(outputs)]
    node = onnx.helper.make_node(kind, inputs, names, domain="protofleet", **attributes)

    def value(name: str, rank: int) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * rank)

    graph = onnx.helper.make_graph(
        [node],
        "alp",
        [value(name, 3 if name == "x" else 2) for name in inputs],
        [value(name, 3 - index) for index, name in enumerate(names)],
    )
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("protofleet", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    define_functions(model)
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


class _ZerosWin(nn.Module):
    """Zeros around numbers that are all below, of which the largest are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(5)), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        below = -1 - (self.scale * x).square()
        padded = nn.functional.pad(below[:, None, :, None], (0, 0, 1, 1))
        return self.head(nn.functional.max_pool2d(padded, (3, 1), 2).flatten(1))


def test_zeros_before_a_pool_stay_zeros() -> None:
    """ONNX Runtime would make them the pool's own padding, which is never the largest."""
    model = _ZerosWin()
    program = capture(model, None, {"x": batch((5,))["x"]})
    check_parity(model, program, to_onnx(program, name="infer"), name="infer")
