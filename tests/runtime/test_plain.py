"""A model as a plain file: stock runtimes give the numbers that our own classifier gives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from tflite_by_hand import Graph, tflite_bytes

from protofleet.bundle.manifest import Preprocessing
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime import open_classifier, plain_model
from protofleet.strategies.prototypes import NearestPrototype
from protofleet.tensors import Network, TensorMap

_FILE = "programs/programs.tflite"
_INPUTS = Preprocessing(input_shape=(3,), mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 0.5))


def _graph(program: Any) -> Graph:
    """As conftest's ``infer_program``: rows minus the batch's sum, times w."""
    graph = Graph(program.inputs, program.outputs, {"axis": np.array([0], np.int32)})
    reducer = {"options": "ReducerOptions", "keepDims": True}
    graph.add("SUM", ["x", "axis"], "total", (1, 3), **reducer)
    graph.add("SUB", ["x", "total"], "centred", ("batch", 3), options="SubOptions")
    graph.add("MUL", ["centred", "w"], program.outputs[0].name, ("batch", 3), options="MulOptions")
    return graph


@pytest.fixture
def made(bundle: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hand-made bundle with both formats, and its input on a scale of its own."""
    names = ("infer", "features")
    for name in names:
        bundle.programs[name] = msgspec.structs.replace(bundle.programs[name], tflite=_FILE)
    bundle.files[_FILE] = tflite_bytes({name: _graph(bundle.programs[name]) for name in names})
    manifest = msgspec.structs.replace(bundle.manifest, preprocessing=_INPUTS, classes=("a", "b"))
    monkeypatch.setattr(type(bundle), "manifest", manifest)
    return bundle


@pytest.fixture
def network(bundle: Any) -> Network:
    params, buffers = (TensorMap.zeros(layout) for layout in bundle.layouts)
    params["w"][...] = [1, -2, 0.5]
    return Network(params=params, buffers=buffers)


_RULE = NearestPrototype(
    np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32), np.array([1, 0, 1, 1])
)


def _run_onnx(data: bytes, x: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    names = [one.name for one in session.get_outputs()]
    return {"in": entry.name, **dict(zip(names, session.run(None, {entry.name: x}), strict=True))}


def _run_tflite(data: bytes, x: np.ndarray) -> dict[str, np.ndarray]:
    interpreter = Interpreter(model_content=data)
    ((name,),) = [one["inputs"] for one in interpreter.get_signature_list().values()]
    return {"in": name, **interpreter.get_signature_runner("serving_default")(**{name: x})}


_STOCK = {"onnx": _run_onnx, "tflite": _run_tflite}
_BACKENDS = {"onnx": "onnx", "tflite": "litert"}


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("rule", [None, _RULE], ids=["head", "rule"])
@pytest.mark.parametrize("format_", sorted(_STOCK))
def test_a_stock_runtime_gives_the_same_probabilities(made, network, format_, rule, raw):
    x = np.random.default_rng(3).normal(size=(5, 3)).astype(np.float32)
    data = plain_model(made, format_, model=network, score=rule, raw=raw, provenance={})
    found = _STOCK[format_](data, x)
    assert found.pop("in") == ("readings" if raw else "x")
    shown = "logits" if rule is None else "scores"
    assert found.keys() == {"probabilities", shown}
    taken = (x - np.float32(_INPUTS.mean)) / np.float32(_INPUTS.std) if raw else x
    classifier = open_classifier(made, model=network, score=rule, backend=_BACKENDS[format_])
    scores = classifier.predict(taken, batch_size=len(x)).astype(np.float64)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        found["probabilities"], powers / powers.sum(axis=1, keepdims=True), atol=2e-6
    )
    if rule is not None:
        assert (found["probabilities"][:, 1] == 0).all()
        scores += np.square(made_features(made, network, taken)).sum(axis=1, keepdims=True)
    known = np.isfinite(scores)
    np.testing.assert_allclose(found[shown][known], scores[known], rtol=1e-4, atol=1e-3)


def made_features(made: Any, network: Network, x: np.ndarray) -> np.ndarray:
    return open_classifier(made, model=network, score=lambda features: features).predict(
        x, batch_size=len(x)
    )


@pytest.mark.parametrize("raw", [False, True])
def test_the_metadata_say_what_the_numbers_mean(made, network, raw):
    def plain(format_: str) -> bytes:
        return plain_model(made, format_, model=network, raw=raw, provenance={"round_id": 7})

    session = onnxruntime.InferenceSession(plain("onnx"), providers=["CPUExecutionProvider"])
    onnx = session.get_modelmeta().custom_metadata_map
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(plain("tflite")))
    tflite = {
        one.name.decode(): bytes(model.buffers[one.buffer].data).decode() for one in model.metadata
    }
    assert onnx == tflite
    assert (json.loads(onnx["task"]), json.loads(onnx["outputs"])) == ("classification", ["a", "b"])
    inputs = json.loads(onnx["preprocessing"])
    assert inputs["input_shape"] == [3]
    assert inputs["mean"] == ([0.0] if raw else [1.0, 2.0, 3.0])
    assert json.loads(onnx["provenance"]) == {"bundle": "hand-made", "round_id": 7}


@pytest.mark.parametrize("format_", sorted(_STOCK))
def test_labels_have_probabilities_of_their_own_and_a_regression_none(
    made, network, monkeypatch, format_
):
    x = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)
    logits = open_classifier(made, model=network).predict(x, batch_size=4)
    for task in ("multilabel", "regression"):
        manifest = msgspec.structs.replace(made.manifest, task=task, classes=(), targets=("t",))
        monkeypatch.setattr(type(made), "manifest", manifest)
        found = _STOCK[format_](plain_model(made, format_, model=network, provenance={}), x)
        np.testing.assert_allclose(found["logits"], logits, atol=1e-5)
        shares = found.get("probabilities")
        assert (shares is None) == (task == "regression")
        if shares is not None:
            np.testing.assert_allclose(shares, 1 / (1 + np.exp(-logits)), atol=1e-5)


def test_a_rule_that_no_program_can_stand_for_is_refused(made, network):
    with pytest.raises(InputError, match="classifies by a rule that no program can stand for"):
        plain_model(made, "onnx", model=network, score=np.negative, provenance={})


def test_a_format_that_the_bundle_lacks_is_named(made, network):
    infer = made.programs["infer"]
    made.programs["infer"] = msgspec.structs.replace(infer, tflite=None)
    with pytest.raises(ProvisionError, match="'hand-made': has no program 'infer' as tflite"):
        plain_model(made, "tflite", model=network, provenance={})
    with pytest.raises(InputError, match="expected onnx or tflite, got 'pt'"):
        plain_model(made, "pt", model=network, provenance={})


def test_tokens_are_not_normalised(made, network, monkeypatch):
    tokens = Preprocessing(input_shape=(3,), tokens=9)
    manifest = msgspec.structs.replace(made.manifest, preprocessing=tokens)
    monkeypatch.setattr(type(made), "manifest", manifest)
    with pytest.raises(InputError, match="tokens, which are not normalised"):
        plain_model(made, "onnx", model=network, raw=True, provenance={})
