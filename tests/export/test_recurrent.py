"""Recurrent layers: one operator for each, with PyTorch's own numbers in both runtimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.errors import ExportError
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.capture import CapturedProgram, capture
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import check_parity
from protofleet.export.parity.reference import Reference, run_in_double
from protofleet.export.sweep.cases import SweepCase, classifier
from protofleet.export.sweep.recurrent import CASES, Recurrent, Sequential
from protofleet.export.tflite import tflite_runner, to_tflite
from protofleet.runtime import open_classifier
from tests.export.toys import batch

pytestmark = pytest.mark.slow(seconds=3)

_OBJECTIVE = OBJECTIVES["cross_entropy"]
_CASES = {case.name: case for case in CASES}
_PROVED = (
    "LSTM, 2 layers with dropout",
    "LSTM, initial states from the window",
    "GRU, initial states from the window",
    "GRU, without biases",
    "RNN, 2 layers with dropout",
    "RNN, ReLU, 2 layers, bidirectional",
    "LSTMCell in a loop, 12 steps",
)


def _operators(program: CapturedProgram) -> Counter[str]:
    """Operators of our own by name."""
    found = (node.target for node in program.graph.graph.nodes if node.op == "call_function")
    return Counter(
        str(target).split(".")[1]
        for target in found
        if getattr(target, "namespace", "") == "protofleet"
    )


def _agrees(model: nn.Module, program: CapturedProgram, name: str) -> float:
    runners = {"LiteRT": tflite_runner(to_tflite({name: program}), name)}
    data = to_onnx(program, name=name)
    record = check_parity(model, program, data, name=name, runners=runners, batch_sizes=(3, 8))
    return max(record.by_runner.values())


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize(
    "name",
    [*_PROVED, pytest.param("GRUCell in a loop, 12 steps", marks=pytest.mark.full_size)],
)
def test_every_gradient_agrees_with_autograd(name: str) -> None:
    """Loss and gradients at two batch sizes in ONNX Runtime and LiteRT, with the same noise."""
    case: SweepCase = _CASES[name]
    model = classifier(case)
    program = capture(model, _OBJECTIVE, batch(case.input_shape))
    assert _agrees(model, program, "train") < 2e-5


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_inference_is_the_standard_operator(kind: str) -> None:
    """A layer without a gradient is the operator for which runtimes have kernels; no loop."""
    model = classifier(
        SweepCase(
            name=kind,
            group="",
            build=lambda: Recurrent(kind, batch_first=True, bidirectional=True, result="both"),
            input_shape=(9, 6),
        )
    )
    program = capture(model, None, {"x": torch.zeros(4, 9, 6)})
    assert _operators(program) == {kind.lower(): 2}
    assert _agrees(model, program, "infer") < 1e-5
    written = onnx.load_from_string(to_onnx(program, name="infer"))
    inner = Counter(node.op_type for function in written.functions for node in function.node)
    assert (inner[kind], inner["Scan"]) == (2, 0)


def test_the_number_of_steps_costs_no_operators() -> None:
    """A program of 128 steps has the nodes of one of 12, and its ONNX file the same size."""
    sizes = []
    for steps in (12, 128):
        program = capture(Sequential(hidden=8), _OBJECTIVE, batch((steps, 6)))
        assert _operators(program) == {"lstm_forward": 1, "lstm_backward": 1}
        sizes.append((len(program.graph.graph.nodes), len(to_onnx(program, name="train"))))
    (nodes, size), (more_nodes, more_size) = sizes
    assert nodes == more_nodes
    assert abs(size - more_size) < 200  # numbers with more digits


def test_dropout_between_layers_draws_from_noise() -> None:
    """One array for each layer but the last, of its output's shape, steps first as in PyTorch."""
    model = nn.Sequential(Recurrent("GRU", num_layers=3, dropout=0.2, batch_first=True))
    model.append(nn.Flatten()).append(nn.Linear(5 * 16, 3))
    program = capture(model, _OBJECTIVE, batch((5, 6)))
    noise = [port.shape for port in program.inputs if port.role == "noise"]
    assert noise == [(5, "batch", 16)] * 2


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_captured_graph_runs_in_double_precision(kind: str) -> None:
    """What the parity check falls back to where single precision decides nothing."""
    model = Sequential(kind=kind, hidden=8)
    program = capture(model, _OBJECTIVE, batch((7, 6)))
    reference = Reference(model, program, dtype=torch.float64)
    feed = reference.draw(4, np.random.default_rng(0))
    expected, _ = reference(feed)
    for name, value in run_in_double(program, feed).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-12)


def test_frozen_layers_need_no_gradient() -> None:
    """Where nothing before or in a layer is trained, its forward pass is all."""
    model = Sequential(hidden=8)
    model.rnn.requires_grad_(requires_grad=False)
    assert _operators(capture(model, _OBJECTIVE, batch((7, 6)))) == {"lstm": 1}


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), 3)
        return self.gru(pack_padded_sequence(x, lengths, batch_first=True))[1][0]


class _BatchAsTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (_Packed, r"module 'inner' .*_Packed.*packed sequences: .*mask its output"),
        (lambda: Recurrent("LSTM", proj_size=4, batch_first=True), r"'inner.rnn' .*proj_size"),
        (_BatchAsTime, r"'inner.gru' .*batch_first=True"),
    ],
)
def test_refusals_name_the_module_and_the_remedy(build: Callable[[], nn.Module], said: str) -> None:
    """What has no program is told with module, line and what to do instead."""

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build()
            self.head = nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Any:
            return self.head(self.inner(x).flatten(1))

    with pytest.raises(ExportError, match=said) as raised:
        capture(Wrapped(), _OBJECTIVE, batch((5, 6)))
    assert "recurrent.py:" in str(raised.value)


@pytest.mark.slow(seconds=8)
def test_a_bundle_classifies_with_its_model_inside(signing_key, tmp_path) -> None:
    """``open_classifier`` puts the weights into both runtimes' programs."""
    torch.manual_seed(0)
    model = Sequential(kind="GRU", hidden=8)
    spec = BundleSpec(
        name="gru",
        strategy="fedavg",
        classes=("a", "b", "c"),
        preprocessing=Preprocessing(input_shape=(12, 6)),
    )
    export_bundle(model, spec, out=tmp_path / "gru.pfb", key=signing_key[0])
    bundle = Bundle.open(tmp_path / "gru.pfb", any_signer=True)
    x = np.random.default_rng(0).normal(size=(5, 12, 6)).astype(np.float32)
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(x)).numpy()
    for backend in ("onnx", "litert"):
        found = open_classifier(bundle, backend=backend).predict(x)
        np.testing.assert_allclose(found, expected, atol=1e-5)
