"""What a capture says about a model's tensors, and whom it blames when it cannot go on."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from protofleet.errors import ExportError
from protofleet.export.capture import capture, model_tensors
from protofleet.export.capture.source import place_of
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import check_parity
from tests.export.toys import Perceptron, batch

pytestmark = pytest.mark.slow(seconds=1)

_OBJECTIVE = OBJECTIVES["cross_entropy"]


def test_ports_of_a_training_program() -> None:
    """Only what is read goes in, only state that changes comes out, noise says its shape."""
    program = capture(Perceptron(), _OBJECTIVE, batch((5,)))
    ports = {(port.role, port.key): port for port in program.inputs + program.outputs}
    assert ports["noise", "0"].shape == ("batch", 8)
    assert ports["noise", "0"].distribution == "uniform"
    assert ports["input", "x"].shape == ("batch", 5)
    assert ports["input", "y"].dtype == "int64"
    assert ports["loss", "loss"].shape == ()
    changed = {port.key for port in program.outputs if port.role == "state"}
    assert changed == {"norm.running_mean", "norm.running_var"}
    assert ports["param", "first.weight"].shape == (8, 5)


def test_evaluation_needs_no_noise_and_changes_no_state() -> None:
    """Dropout is off and statistics are read only."""
    program = capture(Perceptron(), None, {"x": torch.zeros(3, 5)}, features=True)
    assert {port.role for port in program.inputs} == {"param", "state", "input"}
    assert [port.key for port in program.outputs] == ["features", "logits"]
    assert program.outputs[0].shape == ("batch", 8)


def test_noise_of_a_multiple_of_the_batch() -> None:
    """Tokens folded into the batch axis ask for batch*4 rows."""

    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            rows = x.reshape(-1, 2)
            rows = rows + torch.randn_like(rows) * torch.rand(rows.shape[0], 1)
            return self.head(rows.reshape(-1, 4, 2).mean(1))

    program = capture(Folded(), _OBJECTIVE, batch((8,)))
    noise = [(p.shape, p.distribution) for p in program.inputs if p.role == "noise"]
    assert sorted(noise, key=str) == [
        (("batch*4", 1), "uniform"),
        (("batch*4", 2), "normal"),
    ]


def test_frozen_parameters_are_state() -> None:
    """A parameter that is not trained travels as state and gets no gradient."""
    model = Perceptron()
    model.first.weight.requires_grad_(requires_grad=False)
    assert "first.weight" in model_tensors(model).buffers
    program = capture(model, _OBJECTIVE, batch((5,)))
    assert ("state", "first.weight") in {(p.role, p.key) for p in program.inputs}
    assert "grad.first.weight" not in {p.name for p in program.outputs}


def test_capture_leaves_the_model_as_it_was() -> None:
    """Neither mode, values nor gradients change."""
    model = Perceptron().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture(model, _OBJECTIVE, batch((5,)))
    assert not model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())


class _Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class _Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 5:
            return x
        return -x


class _Rounding(nn.Module):
    """A number of Python by one of its ways."""

    def __init__(self, take: Callable[[Tensor], float]) -> None:
        super().__init__()
        self.take = take

    def forward(self, x: Tensor) -> Tensor:
        return x * self.take(x.mean())


class _Reshaping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1) / len(self.__dict__) + x.sum() / len(x)


class _Choosing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


class _Shuffling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.randperm(5)]


class _Exotic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.airy_ai(x)


class _ExoticBackward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (
            torch.nn.functional.grid_sample(
                x.reshape(-1, 1, 1, 5),
                x.reshape(-1, 1, 1, 5)[..., :2],
                mode="bicubic",
                align_corners=False,
            )
            .reshape(-1, 1)
            .expand(-1, 5)
        )


def _with(part: nn.Module) -> nn.Module:
    """A model in which ``part`` sits deep inside, after trained layers."""
    return nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.ReLU(), part), nn.Linear(5, 3))


def _line(part: nn.Module, text: str) -> str:
    lines, start = inspect.getsourcelines(type(part))
    offset = next(i for i, line in enumerate(lines) if text in line)
    return f"{__file__}:{start + offset}"


@pytest.mark.parametrize(
    ("part", "text", "reason"),
    [
        (_Branching(), "if x.sum()", "used as a Python number"),
        (_Rounding(float), "self.take(", "used as a Python number"),
        (_Rounding(Tensor.item), "self.take(", "used as a Python number"),
        (_Rounding(Tensor.tolist), "self.take(", "values leave PyTorch"),
        (_Rounding(Tensor.numpy), "self.take(", "values leave PyTorch"),
        (_Choosing(), "return x[x", "depends on the data"),
        (_Shuffling(), "randperm", "has no explicit form"),
        (_Exotic(), "airy", "has no ONNX form"),
    ],
)
def test_errors_name_module_and_line(part: nn.Module, text: str, reason: str) -> None:
    """The path in the module tree, the class, the user's file and line, and the reason."""
    with pytest.raises(ExportError) as raised:
        to_onnx(capture(_with(part), _OBJECTIVE, batch((5,))), name="train")
    message = str(raised.value)
    assert message.startswith("module '1.1' (")
    assert type(part).__name__ in message
    assert _line(part, text) in message
    assert reason in message
    assert "\n" not in message


def test_a_branch_on_the_batch_size_is_refused() -> None:
    """It would be frozen for the example's batch size."""
    part = _Counting()
    with pytest.raises(ExportError, match="batch size decides") as raised:
        capture(_with(part), _OBJECTIVE, batch((5,)))
    assert _line(part, "if len(x)") in str(raised.value)


def test_a_length_is_the_batch_size_as_a_symbol() -> None:
    """In the model's own file ``len`` of a tensor is its first size, and itself again after."""
    model = _with(_Reshaping())
    program = capture(model, _OBJECTIVE, batch((5,)))
    check_parity(model, program, to_onnx(program, name="train"), name="train", batch_sizes=(2, 7))
    assert "len" not in globals()


def test_an_operator_that_only_backward_needs_blames_the_forward_line() -> None:
    """The backward operator carries the place of the forward operator that caused it."""
    part = _ExoticBackward()
    with pytest.raises(ExportError, match=r"module '1\.1'") as raised:
        to_onnx(capture(_with(part), _OBJECTIVE, batch((5,))), name="train")
    assert "backward" in str(raised.value)
    assert f"{__file__}:" in str(raised.value)


def test_a_large_constant_must_be_state() -> None:
    """A weight hidden in a plain attribute would be embedded in the program."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.randn(5, 10_000)
            self.head = nn.Linear(10_000, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x @ self.table)

    with pytest.raises(ExportError, match="persistent float32 buffer"):
        capture(Hidden(), _OBJECTIVE, batch((5,)))


def test_parameters_must_be_float32() -> None:
    """The message names the parameter."""
    with pytest.raises(ExportError, match=r"parameter 'first\.weight'.*float64"):
        capture(Perceptron().double(), _OBJECTIVE, batch((5,)))


class _Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        x = x.sin()
        x = x.tanh()
        return x.sigmoid()


def test_backward_operators_carry_the_line_of_their_own_forward_operator() -> None:
    model = nn.Sequential(_Several(), nn.Linear(4, 3))
    example = {"x": torch.zeros(2, 4), "y": torch.zeros(2, dtype=torch.int64)}
    program = capture(model, OBJECTIVES["cross_entropy"], example)
    lines = {
        node.target: place_of(node).rpartition(":")[2]
        for node in program.graph.graph.nodes
        if node.op == "call_function"
    }
    assert lines[torch.ops.aten.cos.default] == lines[torch.ops.aten.sin.default]


class _AlwaysRandom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.2)


def test_randomness_in_evaluation_is_refused_with_its_line() -> None:
    model = _with(_AlwaysRandom())
    line = _line(_AlwaysRandom(), "dropout")
    with pytest.raises(ExportError, match=f"{line}: draws random numbers in evaluation too"):
        capture(model, None, {"x": batch((5,))["x"]})
