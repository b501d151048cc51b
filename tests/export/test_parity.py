"""What counts as a difference where a gradient is a step, and what never passes."""

from __future__ import annotations

import flatbuffers
import numpy as np
import onnx
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from torch import Tensor, nn

from protofleet.errors import ExportError
from protofleet.export.capture import CapturedProgram, capture
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import check, check_parity, failures_told
from protofleet.export.parity.inputs import draw_inputs
from protofleet.export.tflite import tflite_runner, to_tflite
from tests.export.test_onnx import scaled_gradient
from tests.export.toys import Perceptron, batch

pytestmark = pytest.mark.slow(seconds=2)


class Brink(nn.Module):
    """Every unit of its ReLU lies on the step: the difference of one sum in two orders."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(600, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        other = x[:, ::2] @ self.weight[::2] + x[:, 1::2] @ self.weight[1::2]
        return self.head(torch.relu(x @ self.weight - other.detach()))


@pytest.fixture(scope="module")
def brink() -> tuple[Brink, CapturedProgram, bytes]:
    torch.manual_seed(0)
    model = Brink()
    program = capture(model, OBJECTIVES["cross_entropy"], batch((600,)))
    return model, program, to_onnx(program, name="train")


def test_gradients_on_a_step_are_proved_in_double_precision(brink) -> None:
    """Single precision turns units on and off at random; the record says that it did."""
    model, program, data = brink
    record = check_parity(model, program, data, name="train")
    assert record.worst_error <= 1e-4
    assert record.gradient_noise > 1e-2


def test_a_steady_program_has_no_gradient_noise() -> None:
    model = Perceptron()
    program = capture(model, OBJECTIVES["cross_entropy"], batch((5,)))
    record = check_parity(model, program, to_onnx(program, name="train"), name="train")
    assert record.gradient_noise == 0


@pytest.mark.parametrize(
    ("tensor", "factor"), [("loss", 1.001), ("logits", 1.001), ("grad.weight", 50.0)]
)
def test_a_wrong_program_does_not_hide_behind_a_step(brink, tensor: str, factor: float) -> None:
    """Results without steps must agree as ever; gradients may be off by their noise only."""
    model, program, data = brink
    with pytest.raises(ExportError, match=f"tensor '{tensor}'"):
        check_parity(model, program, scaled_gradient(data, tensor, factor), name="train")


def test_a_wrong_capture_does_not_hide_behind_a_step(brink) -> None:
    """A gradient of the graph off by a thousandth shows in double precision."""
    model, program, data = brink
    graph = program.graph.graph
    (output,) = graph.find_nodes(op="output")
    place = next(i for i, port in enumerate(program.outputs) if port.name == "grad.weight")
    results = list(output.args[0])
    with graph.inserting_before(output):
        wrong = graph.call_function(torch.ops.aten.mul.Tensor, (results[place], 1.001))
    kept, results[place] = output.args, wrong
    output.args = (tuple(results),)
    program.graph.recompile()
    try:
        with pytest.raises(
            ExportError, match=r"'grad\.weight': the captured graph differs.*double"
        ):
            check_parity(model, program, data, name="train")
    finally:
        output.args = kept
        graph.eliminate_dead_code()
        program.graph.recompile()


def test_inputs_exercise_every_term() -> None:
    """Numbers away from zero, flags of both kinds, two classes, words of the vocabulary."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(5, 4))
    model.features, model.head = model[0].forward, model[1].forward
    objective = OBJECTIVES["prototype_mse"]
    example = {
        **batch((5,)),
        "prototypes": torch.zeros(4, 5),
        "present": torch.zeros(4),
        "weight": torch.zeros(()),
    }
    program = capture(model, objective, example)
    initial = {name: value.detach().numpy() for name, value in model.named_parameters()}
    for seed in range(20):
        feed = draw_inputs(program, initial, 3, np.random.default_rng(seed), vocabulary=50)
        assert 0.1 <= feed["weight"] <= 1
        assert set(feed["present"].tolist()) == set(feed["y"].tolist()) == {0, 1}
        assert set(feed["x"].ravel().tolist()) <= set(range(50))
        assert feed["prototypes"].std() > 0.3


def test_a_draw_that_never_has_clear_assignments_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MIN_MARGIN", 2.0)
    model = Perceptron()
    program = capture(model, None, {"x": batch((5,))["x"]})
    with pytest.raises(ExportError, match="no input among 75 has clear prototype assignments"):
        check_parity(model, program, to_onnx(program, name="infer"), name="infer")


def test_a_difference_where_assignments_are_near_a_tie_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runner that once chose the other side passes; one that always differs does not."""
    monkeypatch.setattr(check, "_CLEAR_MARGIN", 2.0)
    torch.manual_seed(0)
    model = Perceptron()
    program = capture(model, OBJECTIVES["cross_entropy"], batch((5,)))
    data = to_onnx(program, name="train")
    stock, calls = check.stock_runner(data), []

    def once(feed):
        calls.append(feed)
        results = dict(stock(feed))
        return results | {"loss": results["loss"] + 1} if len(calls) == 1 else results

    check_parity(model, program, data, name="train", runners={"once": once})
    assert len(calls) == 3
    with pytest.raises(ExportError, match="tensor 'loss': always differs"):
        check_parity(
            model,
            program,
            data,
            name="train",
            runners={"always": lambda feed: stock(feed) | {"loss": np.float32(9)}},
        )


class _Views(nn.Module):
    """Reshapes on a line of its own, (B, 6) → (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.body(x))
        x = x.view(-1, 2, 3)
        return self.head(x.amax(1))


@pytest.fixture(scope="module")
def views() -> tuple[_Views, CapturedProgram]:
    model = _Views()
    return model, capture(model, None, {"x": torch.zeros(4, 6)})


_FAILS = (
    r"^program 'infer' in {}: {}.*test_parity.py:\d+: operator aten.{}.default fails: "
    r".*docs/results/operators.md.*\.squeeze\(-1\) and \.flatten\(1\)$"
)


@pytest.mark.parametrize(
    ("sizes", "module", "operator"),
    [([-1, 2, 5], "module 'head'", "addmm"), ([2, 2, 3], "model", "view")],
    ids=["while it loads", "while it runs"],
)
def test_what_onnx_runtime_cannot_run_names_the_line_of_the_model(
    views, sizes, module, operator
) -> None:
    model, program = views
    written = onnx.load_from_string(to_onnx(program, name="infer"))
    (view,) = (node for node in written.graph.node if node.op_type == "Reshape")
    written.graph.initializer.append(onnx.numpy_helper.from_array(np.array(sizes), "wrong"))
    view.input[1] = "wrong"
    said = _FAILS.format("ONNX Runtime", module, operator)
    with pytest.raises(ExportError, match=said) as told:
        check_parity(model, program, written.SerializeToString(), name="infer")
    assert "\n" not in str(told.value)
    assert "ONNXRuntimeError" not in str(told.value)


def test_what_litert_cannot_run_names_the_line_of_the_model(views) -> None:
    model, program = views
    written = schema.ModelT.InitFromPackedBuf(to_tflite({"infer": program}), 0)
    sizes = np.array([-1, 2, 3], np.int32).tobytes()
    (shape,) = (one for one in written.buffers if one.data is not None and bytes(one.data) == sizes)
    shape.data = np.frombuffer(np.array([-1, 2, 5], np.int32).tobytes(), np.uint8)
    builder = flatbuffers.Builder(1024)
    builder.Finish(written.Pack(builder), file_identifier=b"TFL3")
    runner = tflite_runner(bytes(builder.Output()), "infer")
    with pytest.raises(ExportError, match=_FAILS.format("LiteRT", "model", "view")) as told:
        check_parity(model, program, None, name="infer", runners={"LiteRT": runner})
    assert "\n" not in str(told.value)


def test_a_failure_that_names_no_operator_is_told_as_it_is(views) -> None:
    _, program = views
    with (
        pytest.raises(ExportError, match=r"^program 'infer' in LiteRT: fails: the model is not"),
        failures_told(program, "infer", "LiteRT"),
    ):
        raise ValueError("the model is not a file\nof any kind")
