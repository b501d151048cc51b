"""A bundle's own model at a precision."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import helper

from protofleet.errors import InputError, ProvisionError
from protofleet.runtime import open_classifier, open_programs
from protofleet.runtime._freeze import onnx_messages
from protofleet.tensors import Model, Network, TensorMap


@pytest.fixture
def model_bundle(bundle: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hand-made bundle with w = 1, 2, 3, and an int8 program that doubles."""
    params, buffers = (TensorMap.zeros(layout) for layout in bundle.layouts)
    params["w"][...] = [1, 2, 3]
    model = Model(params=params, buffers=buffers, num_classes=3, input_shape=(3,))
    monkeypatch.setattr(type(bundle), "model", lambda _self: model, raising=False)
    infer = bundle.programs["infer"]
    baked = msgspec.structs.replace(
        infer,
        file="programs/infer_int8.onnx",
        inputs=tuple(port for port in infer.inputs if port.role == "input"),
        precision="int8",
    )
    bundle.add("infer_int8", baked, [helper.make_node("Add", ["x", "x"], ["logits"])])
    return bundle


def _network(bundle: Any) -> Network:
    network: Network = bundle.model().network
    return network


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(7, 3)).astype(np.float32)


def test_float32_is_the_program_with_the_bundles_parameters(model_bundle, x):
    """Batches as asked: the hand-made program subtracts its batch's sum."""
    classifier = open_classifier(model_bundle)
    assert (classifier.backend, classifier.precision) == ("onnx", "float32")
    np.testing.assert_array_equal(classifier.predict(x), np.zeros_like(x))
    expected = np.concatenate([(part - part.sum(0)) * [1, 2, 3] for part in (x[:4], x[4:])])
    np.testing.assert_allclose(classifier.predict(x, batch_size=4), expected, rtol=1e-5, atol=1e-6)


def test_its_values_are_those_of_its_opening(model_bundle, x):
    params, buffers = (TensorMap.zeros(layout) for layout in model_bundle.layouts)
    params["w"][...] = [4, 5, 6]
    classifier = open_classifier(model_bundle, model=Network(params=params, buffers=buffers))
    expected = (x - x.sum(0)) * np.float32([4, 5, 6])
    np.testing.assert_allclose(classifier.predict(x, batch_size=7), expected, rtol=1e-5, atol=1e-6)
    params["w"][...] = 0
    np.testing.assert_allclose(classifier.predict(x, batch_size=7), expected, rtol=1e-5, atol=1e-6)


def test_a_rule_scores_features_in_the_place_of_the_head(model_bundle, x):
    program = model_bundle.programs["features"]
    want = open_programs(model_bundle).features(_network(model_bundle), x, batch_size=4)
    classifier = open_classifier(model_bundle, score=lambda features: -2 * features)
    assert program.outputs[0].key == "features"
    np.testing.assert_allclose(classifier.predict(x, batch_size=4), -2 * want, rtol=1e-6)


def test_a_model_of_another_shape_is_refused(model_bundle):
    buffers = _network(model_bundle).buffers
    other = TensorMap.pack({"w": np.zeros(4, np.float32)})
    with pytest.raises(InputError, match=r"expected param 'w' of \(3,\), got \(4,\)"):
        open_classifier(model_bundle, model=Network(params=other, buffers=buffers))
    with pytest.raises(InputError, match=r"expected param 'w' of \(3,\), got nothing"):
        open_classifier(model_bundle, model=Network(params=buffers, buffers=buffers))


def test_a_program_with_values_of_its_own_takes_no_others(model_bundle):
    for more in ({"model": _network(model_bundle)}, {"score": np.negative}):
        with pytest.raises(InputError, match="'int8': its program has values and a head of its"):
            open_classifier(model_bundle, precision="int8", **more)


def test_a_file_that_contradicts_the_manifest_is_refused(model_bundle, x):
    """As a program whose values come with every call: the model inside hides nothing."""
    ports = model_bundle.programs["infer"]
    for shape, words in (((2,), r"port 'w': expected \(3,\), got \(2,\)"), (None, "not in the")):
        inputs = [p for p in ports.inputs if shape or p.role == "input"]
        inputs = [msgspec.structs.replace(p, shape=shape) if p.key == "w" else p for p in inputs]
        other = msgspec.structs.replace(ports, inputs=tuple(inputs))
        model_bundle.add("infer", other, [helper.make_node("Neg", ["x"], [ports.outputs[0].name])])
        model_bundle.programs["infer"] = ports
        with pytest.raises(ProvisionError, match=words):
            open_classifier(model_bundle).predict(x)


def test_without_protobuf_the_remedy_is_named(model_bundle, x, monkeypatch):
    onnx_messages.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(InputError, match="protobuf is not installed: pip install protobuf"):
        open_classifier(model_bundle).predict(x)


@pytest.mark.parametrize("backend", ["onnx", "litert"])
def test_a_damaged_file_is_an_error_with_its_name(model_bundle, backend):
    infer = model_bundle.programs["infer"]
    model_bundle.programs["infer"] = msgspec.structs.replace(infer, tflite="programs/p.tflite")
    model_bundle.files[infer.file] = model_bundle.files["programs/p.tflite"] = b"\xff" * 40
    with pytest.raises(ProvisionError, match=r"programs/(logits\.onnx|p\.tflite)"):
        open_classifier(model_bundle, backend=backend).predict(np.zeros((1, 3), np.float32))


def test_another_precision_is_a_program_with_its_own_values(model_bundle, x):
    classifier = open_classifier(model_bundle, precision="int8")
    assert classifier.precision == "int8"
    np.testing.assert_array_equal(classifier.predict(x, batch_size=3), 2 * x)


def test_a_precision_that_the_bundle_lacks_is_named(model_bundle):
    with pytest.raises(ProvisionError, match="'hand-made': has no float16 program 'infer_float16'"):
        open_classifier(model_bundle, precision="float16")


def test_a_number_of_threads_below_one_is_refused(model_bundle):
    with pytest.raises(InputError, match="threads: expected at least 1, got 0"):
        open_classifier(model_bundle, threads=0)
