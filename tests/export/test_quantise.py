"""Quantised programs: what they compute, how large they are, and what stays in float32."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from ai_edge_litert.interpreter import Interpreter
from torch import nn

from protofleet.datasets import DeviceData
from protofleet.datasets.ucihar import CLASSES, load_ucihar
from protofleet.datasets.windows import normalise
from protofleet.errors import ExportError, InputError
from protofleet.export.models import build_model
from protofleet.export.quantise import check_loss, measure, quantise
from protofleet.export.quantise.graph import TfliteGraph
from protofleet.export.quantise.tflite import bake
from protofleet.runtime import open_classifier
from tests.export.conftest import fitted
from tests.export.quantise_bundles import infer_bundle

pytestmark = pytest.mark.slow(seconds=1)

_BACKENDS = ("onnx", "litert")


@pytest.fixture(scope="module")
def digits_draft(digits_bundle, digits):
    bundle, _ = digits_bundle
    return quantise(bundle, bundle.model(), digits.x_train[:256])


@pytest.fixture(scope="module")
def activity(data_root) -> DeviceData:
    """Two thousand windows of UCI-HAR to train on; five people who are not among them to score."""
    loaded = load_ucihar(data_root)
    chosen = loaded.windows.x[~loaded.is_test]
    windows = normalise(loaded.windows, chosen.mean((0, 1)), chosen.std((0, 1)))
    train, test = (np.flatnonzero(m) for m in (~loaded.is_test, loaded.is_test))
    train = np.random.default_rng(0).permutation(train)[:2000]
    return DeviceData(
        x_train=windows.x[train],
        y_train=windows.y[train],
        x_test=windows.x[test[::3]],
        y_test=windows.y[test[::3]],
        classes=CLASSES,
    )


@pytest.fixture(scope="module")
def hart_bundle(activity, signing_key, tmp_path_factory):
    """A small HART of one block with ALP."""
    torch.manual_seed(0)
    model = build_model(
        "hart_alp", prototypes=[24], kernels=[3], width=32, head_width=32, dropout=0.0
    )
    fitted(model, activity, epochs=6)
    path = tmp_path_factory.mktemp("bundle") / "hart.pfb"
    return infer_bundle(model, (128, 6), CLASSES, path, signing_key[0])


@pytest.fixture(scope="module")
def hart_draft(hart_bundle, activity):
    return quantise(hart_bundle, hart_bundle.model(), activity.x_train[:256])


@pytest.mark.slow
def test_digits_are_recognised_as_well_with_fewer_bits(digits_draft, digits):
    """Half and less than 0.4 of the bytes, at most one point of macro-F1, in both runtimes."""
    rows = measure(digits_draft, digits.x_test, digits.y_test)
    check_loss(rows, 1.0)
    assert {(r.precision, r.backend) for r in rows} == {
        (p, b) for p in ("float32", "float16", "int8") for b in _BACKENDS
    }
    assert all(row.macro_f1 > 0.93 and row.agreement > 0.98 for row in rows)
    weights = 4 * digits_draft.values.params.layout.size
    by_name = {(r.precision, r.backend): r.file_bytes for r in rows}
    for backend in _BACKENDS:
        assert by_name["float32", backend] > weights
        assert by_name["float16", backend] < by_name["float32", backend] - 0.4 * weights


@pytest.mark.slow
def test_activities_are_recognised_as_well_with_fewer_bits(hart_draft, activity):
    """The same for a transformer with ALP."""
    rows = measure(hart_draft, activity.x_test, activity.y_test)
    check_loss(rows, 1.0)
    assert all(row.macro_f1 > 0.8 and row.agreement > 0.97 for row in rows)


@pytest.mark.parametrize("backend", _BACKENDS)
def test_half_precision_gives_nearly_float32s_logits(digits_draft, digits, backend):
    x = digits.x_test[:64]
    exact = open_classifier(digits_draft, backend=backend).predict(x, batch_size=64)
    half = open_classifier(digits_draft, precision="float16", backend=backend)
    assert np.abs(half.predict(x, batch_size=64) - exact).max() < 2e-3 * np.abs(exact).max()


@pytest.mark.parametrize("backend", _BACKENDS)
def test_eight_bits_are_coarser_but_close(digits_draft, digits, backend):
    """Rounding is visible, so 8 bits are in use, and small."""
    x = digits.x_test[:64]
    exact = open_classifier(digits_draft, backend=backend).predict(x, batch_size=64)
    coarse = open_classifier(digits_draft, precision="int8", backend=backend)
    difference = np.abs(coarse.predict(x, batch_size=64) - exact).max() / np.abs(exact).max()
    assert 1e-3 < difference < 0.1


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("backend", _BACKENDS)
def test_the_batch_does_not_matter(digits_draft, digits, precision, backend):
    """Alone, in batches of 7 with a partial last one, and all together."""
    x = digits.x_test[:33]
    one = open_classifier(digits_draft, precision=precision, backend=backend)
    together = one.predict(x, batch_size=33)
    np.testing.assert_allclose(one.predict(x, batch_size=7), together, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(one.predict(x), together, rtol=1e-4, atol=1e-4)


def test_equal_input_gives_equal_bytes(digits_bundle, digits, digits_draft):
    bundle, _ = digits_bundle
    again = quantise(bundle, bundle.model(), digits.x_train[:256])
    assert again.files == digits_draft.files


@pytest.mark.slow(seconds=2)
def test_a_quantised_program_takes_x_and_nothing_else(hart_draft):
    for precision in ("float16", "int8"):
        program = hart_draft.manifest.programs[f"infer_{precision}"]
        assert [(p.role, p.key) for p in program.inputs] == [("input", "x")]
        assert [(p.role, p.key) for p in program.outputs] == [("output", "logits")]
        assert program.precision == precision


@pytest.mark.slow(seconds=2)
def test_layers_have_8_bits_per_channel_and_alp_stays_a_float_node(hart_draft):
    """Every weight of a dense layer is int8 with one scale per output; ALP reads float32."""
    model = onnx.load_from_string(hart_draft.read("programs/infer_int8.onnx"))
    sizes = {tensor.name: tensor for tensor in model.graph.initializer}
    weights = [
        n
        for n in model.graph.node
        if n.op_type == "DequantizeLinear"
        and n.input[0] in sizes
        and sizes[n.input[0]].data_type == onnx.TensorProto.INT8
    ]
    assert len(weights) == 16  # 2 patches, 11 and a light convolution in the block, 2 in the head
    assert all(len(sizes[n.input[1]].dims) == 1 and sizes[n.input[1]].dims[0] > 1 for n in weights)
    assert [n.op_type for n in model.graph.node].count("AlpInfer") == 1
    assert [function.name for function in model.functions] == ["AlpInfer"]
    made_by = {output: n for n in model.graph.node for output in n.output}
    for node in (n for n in model.graph.node if n.op_type == "AlpInfer"):
        assert made_by[node.input[0]].op_type == "LayerNormalization"
        assert made_by[node.input[1]].op_type == "Cast"


@pytest.mark.slow(seconds=2)
def test_prototypes_lie_in_a_tflite_file_once(hart_bundle, hart_draft):
    """Their unit vectors are computed, not stored beside them."""
    graph = TfliteGraph(hart_draft.read("programs/infer_float16.tflite"), "infer_float16")
    for name, value in hart_bundle.model().buffers.items():
        if name.endswith("local_prototypes"):
            assert [c.shape for c in graph.constants.values()].count(value.shape) == 1


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("size", [1, 3])
def test_simplifying_changes_no_number(hart_bundle, activity, size):
    """Folding and fusing are exact up to rounding, whatever the batch."""
    bundle = hart_bundle
    infer, model = bundle.manifest.programs["infer"], bundle.model()
    values = {
        p.name: (model.params if p.role == "param" else model.buffers)[p.key]
        for p in infer.inputs
        if p.role != "input"
    }
    graph = bake(bundle.read("programs/programs.tflite"), "infer", values)
    runner = Interpreter(model_content=graph.pack("baked")).get_signature_runner("baked")
    x = activity.x_test[:size]
    exact = open_classifier(bundle, backend="litert").predict(x, batch_size=size)
    np.testing.assert_allclose(runner(x=x)["logits"], exact, rtol=1e-4, atol=1e-4)
    added = [one for one in graph.operations if one.name == "ADD"]
    assert len(added) < 15


def test_a_sum_over_places_is_no_bias(signing_key, tmp_path):
    """What is added to each token differs from place to place, so no layer takes it in."""

    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 4)
            self.places = nn.Parameter(torch.randn(5, 4))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head((self.first(x) + self.places).mean(1))

    torch.manual_seed(0)
    bundle = infer_bundle(Places(), (5, 3), ("a", "b"), tmp_path / "b.pfb", signing_key[0])
    x = np.random.default_rng(0).normal(size=(64, 5, 3)).astype(np.float32)
    draft = quantise(bundle, bundle.model(), x, ("float16",))
    exact = open_classifier(bundle, backend="onnx").predict(x)
    half = open_classifier(draft, precision="float16", backend="litert").predict(x)
    np.testing.assert_allclose(half, exact, rtol=5e-3, atol=5e-3)


def test_values_too_large_or_too_small_for_half_precision_stay_in_float32(signing_key, tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.fill_(1e6)
        model[1].weight.mul_(1e-6)
    bundle = infer_bundle(model, (3,), ("a", "b"), tmp_path / "b.pfb", signing_key[0])
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    draft = quantise(bundle, bundle.model(), x, ("float16",))
    for backend in _BACKENDS:
        found = open_classifier(draft, precision="float16", backend=backend).predict(x)
        expected = open_classifier(bundle, backend=backend).predict(x)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_bundle_without_tflite_is_quantised_for_onnx_alone(
    digits_model, digits, signing_key, tmp_path
):
    path = tmp_path / "b.pfb"
    bundle = infer_bundle(
        digits_model, (1, 8, 8), digits.classes, path, signing_key[0], tflite=False
    )
    draft = quantise(bundle, bundle.model(), digits.x_train[:64], ("int8",))
    assert draft.manifest.programs["infer_int8"].tflite is None
    rows = measure(draft, digits.x_test[:50], digits.y_test[:50])
    assert [(r.precision, r.backend) for r in rows] == [("float32", "onnx"), ("int8", "onnx")]


def test_a_model_without_layers_has_nothing_for_8_bits(signing_key, tmp_path):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.scale

    bundle = infer_bundle(Scaled(), (2,), ("a", "b"), tmp_path / "b.pfb", signing_key[0])
    with pytest.raises(ExportError, match="expected a dense or convolutional layer"):
        quantise(bundle, bundle.model(), np.zeros((4, 2), np.float32), ("int8",))


def test_no_windows_no_calibration(digits_bundle, digits):
    bundle, _ = digits_bundle
    with pytest.raises(InputError, match="calibration: expected at least one window"):
        quantise(bundle, bundle.model(), digits.x_train[:0])


class Varied(nn.Module):
    """Convolutions with padding, stride, dilation, groups and one axis, (B, 2, 13, 12) → (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.strided = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.dilated = nn.Conv2d(4, 6, (3, 2), stride=(1, 2), dilation=(2, 1))
        self.grouped = nn.Conv2d(6, 6, 2, groups=2)
        self.line = nn.Conv1d(6, 5, 2)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = self.dilated(self.strided(x).relu()).relu()
        return self.head(self.line(self.grouped(x).flatten(2)).mean(2))


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_every_kind_of_convolution_computes_the_same(signing_key, tmp_path, precision):
    """Two shifted-image products become convolutions; the others stay, and all give the numbers."""
    torch.manual_seed(0)
    bundle = infer_bundle(Varied(), (2, 13, 12), ("a", "b", "c"), tmp_path / "b", signing_key[0])
    x = np.random.default_rng(0).normal(size=(40, 2, 13, 12)).astype(np.float32)
    draft = quantise(bundle, bundle.model(), x, (precision,))
    exact = open_classifier(bundle, backend="onnx").predict(x, batch_size=7)
    tolerance = {"float16": 2e-3, "int8": 0.1}[precision]
    for backend in _BACKENDS:
        one = open_classifier(draft, precision=precision, backend=backend)
        difference = np.abs(one.predict(x, batch_size=7) - exact).max()
        assert difference < tolerance * np.abs(exact).max()


def test_convolutions_are_found_among_shifted_images(digits_draft):
    """A constant filter is fast in TFLite's own operator, which an input is not."""
    graph = TfliteGraph(digits_draft.read("programs/infer_float16.tflite"), "infer_float16")
    names = [one.name for one in graph.operations]
    assert names.count("CONV_2D") == 2
    assert not {"STRIDED_SLICE", "ADD", "RELU", "BATCH_MATMUL"} & set(names)
