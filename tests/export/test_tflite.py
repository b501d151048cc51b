"""TFLite programs against PyTorch and ONNX Runtime, at any batch size, by LiteRT itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from torch import nn
from torch.nn import functional

from protofleet.errors import ExportError
from protofleet.export.capture import capture
from protofleet.export.models import build_model
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import check_parity
from protofleet.export.tflite import tflite_runner, to_tflite
from tests.export.toys import INPUT_SHAPES, Perceptron, batch

pytestmark = pytest.mark.slow(seconds=1)

_OBJECTIVE = OBJECTIVES["cross_entropy"]


def _check(model, program, name, sizes=(3, 8)):
    data = to_tflite({name: program})
    onnx = to_onnx(program, name=name)
    runners = {"LiteRT": tflite_runner(data, name)}
    return check_parity(model, program, onnx, name=name, runners=runners, batch_sizes=sizes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", INPUT_SHAPES, ids=lambda kind: kind.__name__)
def test_every_gradient_agrees_with_autograd(kind: type[nn.Module]) -> None:
    """Loss, gradients, statistics and logits at two batch sizes, with the same noise."""
    torch.manual_seed(1)
    model = kind()
    program = capture(model, _OBJECTIVE, batch(INPUT_SHAPES[kind]))
    assert _check(model, program, "train").by_runner["LiteRT"] < 2e-5


@pytest.mark.parametrize("kind", INPUT_SHAPES, ids=lambda kind: kind.__name__)
def test_inference_runs_at_any_batch_size(kind: type[nn.Module]) -> None:
    """One file serves 1, 2, 7 and 64 examples, in any order."""
    torch.manual_seed(1)
    model = kind()
    program = capture(model, None, {"x": batch(INPUT_SHAPES[kind])["x"]}, features=True)
    _check(model, program, "features", (1, 64, 2, 7))


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize(
    "variant",
    [
        "single_code",
        "paper_text",
        *(pytest.param(one, marks=pytest.mark.full_size) for one in ("bulk_code", "paper_pseudo")),
    ],
)
def test_the_plan_in_ordinary_operators_assigns_as_the_kernels_do(variant):
    """Batches below and above the numbers of prototypes: one row is taken, or several."""
    torch.manual_seed(0)
    model = build_model(
        "vit_digits", classes=4, alp_update=variant, prototypes=(8,), width=16, heads=2, depth=1
    )
    program = capture(model, _OBJECTIVE, batch((1, 8, 8)))
    assert _check(model, program, "train", (1, 5, 70)).by_runner["LiteRT"] < 1e-5


@pytest.mark.full_size
def test_objectives_with_further_inputs_agree():
    torch.manual_seed(0)
    model = build_model("mlp", inputs=6, classes=3, hidden=(8, 5))
    one = torch.zeros(4, 5)
    extra = {
        "moon": {"positive": one, "negative": one, "tau": torch.ones(()), "mu": torch.ones(())},
        "prototype_mse": {
            "prototypes": torch.zeros(3, 5),
            "present": torch.ones(3),
            "weight": torch.ones(()),
        },
    }
    extra["cdfl"] = {
        "z": torch.zeros(4, 6),
        "teacher": one,
        "centroids": one,
        **{key: torch.ones(()) for key in ("tau", "contrastive", "distillation", "clustering")},
    }
    extra["fedphp"] = {
        "teacher": one,
        "teacher_outputs": torch.zeros(4, 3),
        **{key: torch.ones(()) for key in ("local", "mmd", "kl")},
    }
    for name, inputs in extra.items():
        program = capture(model, OBJECTIVES[name], batch((6,)) | inputs)
        _check(model, program, "train", (1, 7))


def test_signatures_are_named_as_programs_and_ports():
    model = Perceptron()
    programs = {
        "infer": capture(model, None, {"x": batch((5,))["x"]}),
        "train": capture(model, _OBJECTIVE, batch((5,))),
    }
    interpreter = Interpreter(model_content=to_tflite(programs))
    found = interpreter.get_signature_list()
    assert found.keys() == programs.keys()
    for name, program in programs.items():
        assert sorted(found[name]["inputs"]) == sorted(p.name for p in program.inputs)
        assert sorted(found[name]["outputs"]) == sorted(p.name for p in program.outputs)
        details = interpreter.get_signature_runner(name).get_input_details()
        for port in program.inputs:
            assert details[port.name]["dtype"] == np.dtype(port.dtype)
            open_axes = [axis < 0 for axis in details[port.name]["shape_signature"]]
            assert open_axes == [isinstance(axis, str) for axis in port.shape]


def test_the_same_program_gives_the_same_bytes_and_holds_no_weights():
    model = nn.Sequential(nn.Flatten(), nn.Linear(400, 100), nn.ReLU(), nn.Linear(100, 3))
    programs = {"train": capture(model, _OBJECTIVE, batch((400,)))}
    data = to_tflite(programs)
    assert data == to_tflite(programs)
    assert len(data) < 4 * 400 * 100 / 10


class _Twice(nn.Module):
    """The same product twice, and one that nothing needs."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        torch.exp(x)
        return self.head(x) + self.head(x)


def test_what_is_equal_is_computed_once_and_what_nobody_needs_never():
    data = to_tflite({"infer": capture(_Twice(), None, {"x": batch((4,))["x"]})})
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    (graph,) = model.subgraphs
    codes = [model.operatorCodes[operator.opcodeIndex].builtinCode for operator in graph.operators]
    assert codes.count(schema.BuiltinOperator.BATCH_MATMUL) == 1
    assert schema.BuiltinOperator.EXP not in codes


class _Pooled(nn.Module):
    """Windows that overlap, leave gaps, stand over the border, or are dilated."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.head = nn.Linear(3 * 5 * 4, 3)

    def forward(self, x):
        x = functional.max_pool2d(self.first(x), 3, 2, 1)
        return self.head(x.flatten(1))


@pytest.mark.slow
def test_overlapping_pooling_agrees():
    torch.manual_seed(0)
    model = _Pooled()
    program = capture(model, _OBJECTIVE, batch((2, 18, 16)))
    assert _check(model, program, "train", (1, 3)).by_runner["LiteRT"] < 1e-5


class _Ranges(nn.Module):
    """Places made of a range of numbers that are not whole."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x * torch.cos(torch.arange(4.0) / 3) + torch.arange(0, 1, 0.25))


def test_a_range_keeps_its_kind_of_numbers():
    model = _Ranges()
    _check(model, capture(model, None, {"x": batch((4,))["x"]}), "infer")


class _Distances(nn.Module):
    """Scores that a table adds by how far places lie apart, as T5's."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(4, 1), nn.Linear(4, 3)

    def forward(self, x):
        places = torch.arange(4)
        bias = self.table(torch.abs(places[None] - places[:, None])).squeeze(-1)
        return self.linear((x @ bias).tanh())


def test_whole_numbers_have_sizes():
    model = _Distances()
    _check(model, capture(model, _OBJECTIVE, batch((4,))), "train")


class _Rows(nn.Module):
    def forward(self, x):
        return x + torch.arange(x.shape[0])[:, None]


def test_a_range_as_long_as_the_batch_is_refused_with_its_place():
    expected = r"test_tflite\.py:\d+.*arange.*a range as long as the batch"
    with pytest.raises(ExportError, match=expected):
        to_tflite({"infer": capture(_Rows(), None, {"x": batch((4,))["x"]})})


class _Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


def test_an_operator_without_tflite_form_is_named_with_its_place():
    expected = r"TFLite program 'infer': .*test_tflite\.py:\d+.*bessel_j0"
    with pytest.raises(ExportError, match=expected):
        to_tflite({"infer": capture(_Bessel(), None, {"x": batch((4,))["x"]})})
