"""Programs on LiteRT: the same numbers as ONNX Runtime gives, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tflite_by_hand import Graph, tflite_bytes

from protofleet.bundle.manifest import MAX_TFLITE_BATCH
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime import _litert, open_classifier, open_programs
from protofleet.tensors import Model, Network, TensorMap

FILE = "programs/programs.tflite"
_NAMES = ("train", "infer", "features")


def infer_graph(program: Any) -> Graph:
    """As conftest's ``infer_program``: rows minus the batch's sum, times w."""
    graph = Graph(program.inputs, program.outputs, {"axis": np.array([0], np.int32)})
    reducer = {"options": "ReducerOptions", "keepDims": True}
    graph.add("SUM", ["x", "axis"], "total", (1, 3), **reducer)
    graph.add("SUB", ["x", "total"], "centred", ("batch", 3), options="SubOptions")
    graph.add("MUL", ["centred", "w"], program.outputs[0].name, ("batch", 3), options="MulOptions")
    return graph


def train_graph(program: Any) -> Graph:
    """As conftest's ``train_program``."""
    constants = {"axis": np.array([0], np.int32), "one": np.array(1, np.float32)}
    constants |= {"row": np.array([1], np.int32), "both": np.array([0, 1], np.int32)}
    graph = Graph(program.inputs, program.outputs, constants)
    reducer = {"options": "ReducerOptions", "keepDims": False}
    graph.add("MEAN", ["x", "axis"], "dw", (3,), **reducer)
    graph.add("MUL", ["w", "dw"], "wx", (3,), options="MulOptions")
    graph.add("SUM", ["wx", "axis"], "loss", (), **reducer)
    graph.add("SUM", ["u", "both"], "sum_u", (), **reducer)
    graph.add("SUM", ["n", "axis"], "sum_n", (), **reducer)
    graph.add("RESHAPE", ["sum_u", "row"], "u1", (1,))
    graph.add("RESHAPE", ["sum_n", "row"], "n1", (1,))
    graph.add("CONCATENATION", ["u1", "n1"], "dv", (2,), options="ConcatenationOptions")
    graph.add("ADD", ["s", "one"], "s_new", (4,), options="AddOptions")
    return graph


_GRAPHS = {"train": train_graph, "infer": infer_graph, "features": infer_graph}


@pytest.fixture
def both(bundle: Any) -> Any:
    """The hand-made bundle with its three programs also in one TFLite file."""
    for name in _NAMES:
        bundle.programs[name] = msgspec.structs.replace(bundle.programs[name], tflite=FILE)
    bundle.files[FILE] = tflite_bytes(
        {name: _GRAPHS[name](bundle.programs[name]) for name in _NAMES}
    )
    return bundle


@pytest.fixture
def network(bundle: Any) -> Network:
    params, buffers = (TensorMap.zeros(layout) for layout in bundle.layouts)
    params["w"][...] = [1, 2, 3]
    buffers["s"][...] = [5, 6, 7, 8]
    buffers["t"][...] = [9, 10]
    return Network(params=params, buffers=buffers)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(75, 3)).astype(np.float32)


def test_evaluation_agrees_for_any_batch(both, network, x):
    """Batches of several sizes follow one another, partial ones among them."""
    onnx, litert = (open_programs(both, backend=name) for name in ("onnx", "litert"))
    assert (onnx.backend, litert.backend) == ("onnx", "litert")
    for size in (32, 1, 7, 75):
        np.testing.assert_allclose(
            litert.predict(network, x, batch_size=size),
            onnx.predict(network, x, batch_size=size),
            rtol=1e-4,
            atol=1e-5,
        )
    assert litert.predict(network, x[:0]).shape == (0, 3)


def test_training_agrees_for_full_and_partial_batches(both, network, x):
    """Loss, gradients, drawn noise, and a state of which the program writes a part."""
    fns = [open_programs(both, backend=name).grad_fns["toy"] for name in ("onnx", "litert")]
    now = network
    for rows in (slice(0, 32), slice(32, 64), slice(64, 75)):
        batch = {"x": x[rows], "y": np.zeros(len(x[rows]), np.int64)}
        want, got = (fn(now, batch, np.random.default_rng(1)) for fn in fns)
        np.testing.assert_allclose(got.loss, want.loss, rtol=1e-5)
        np.testing.assert_allclose(got.grads.buffer, want.grads.buffer, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got.buffers.buffer, want.buffers.buffer)
        now = replace(network, buffers=want.buffers.copy())
    np.testing.assert_array_equal(now.buffers["s"], [8, 9, 10, 11])
    np.testing.assert_array_equal(now.buffers["t"], [9, 10])


def test_a_batch_beyond_what_programs_are_written_for_is_refused(both, network):
    many = np.zeros((MAX_TFLITE_BATCH + 1, 3), np.float32)
    programs = open_programs(both, backend="litert")
    with pytest.raises(InputError, match=r"at most 257 examples in a batch, got 258.*'onnx'"):
        programs.predict(network, many, batch_size=len(many))
    assert programs.predict(network, many, batch_size=MAX_TFLITE_BATCH).shape == many.shape


def test_a_repeated_step_gives_the_same_bits(both, network, x):
    fn, other = (open_programs(both, backend="litert").grad_fns["toy"] for _ in range(2))
    batch = {"x": x, "y": np.zeros(len(x), np.int64)}
    first = fn(network, batch, np.random.default_rng(1)).grads.buffer.copy()
    second = fn(network, batch, np.random.default_rng(1)).grads.buffer
    np.testing.assert_array_equal(first, second)
    third = other(network, batch, np.random.default_rng(1)).grads.buffer
    np.testing.assert_array_equal(first, third)


def test_the_classifier_runs_on_litert(both, network, x, monkeypatch):
    model = Model(params=network.params, buffers=network.buffers, num_classes=3, input_shape=(3,))
    monkeypatch.setattr(type(both), "model", lambda _self: model, raising=False)
    onnx, litert = (open_classifier(both, backend=name) for name in ("onnx", "litert"))
    assert litert.backend == "litert"
    for size in (32, 1, 7):
        got, want = (one.predict(x, batch_size=size) for one in (litert, onnx))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    fixed = litert.predict(x)
    network.params["w"][...] = 0
    np.testing.assert_array_equal(litert.predict(x), fixed)


def test_a_bundle_without_tflite_says_how_to_get_it(bundle):
    message = "'hand-made': its program 'train' has no TFLite file; export the model anew"
    with pytest.raises(ProvisionError, match=message):
        open_programs(bundle, backend="litert")


def test_kernels_are_refused_and_not_used(both):
    assert not open_programs(both, backend="litert").uses_kernels
    with pytest.raises(InputError, match="LiteRT cannot call them"):
        open_programs(both, backend="litert", kernels="custom")


def test_an_unknown_backend_is_refused(both):
    with pytest.raises(InputError, match="expected auto, onnx or litert, got 'torch'"):
        open_programs(both, backend="torch")


@pytest.mark.parametrize(
    ("missing", "package", "extra"),
    [("onnx", "onnxruntime", "edge"), ("litert", "ai_edge_litert", "litert")],
)
def test_a_backend_that_is_not_installed_names_its_extra(
    both, monkeypatch, missing, package, extra
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else name)
    with pytest.raises(InputError, match=rf"{package} is not installed: .*protofleet\[{extra}\]"):
        open_programs(both, backend=missing)


def test_auto_takes_litert_only_where_onnx_runtime_is_absent(both, monkeypatch):
    assert open_programs(both).backend == "onnx"
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "onnxruntime" else name
    )
    assert open_programs(both).backend == "litert"


def test_a_classifier_misses_its_signature_or_input_by_name(both, network, x, monkeypatch):
    model = Model(params=network.params, buffers=network.buffers, num_classes=3, input_shape=(3,))
    monkeypatch.setattr(type(both), "model", lambda _self: model, raising=False)
    infer = both.programs["infer"]
    both.files[FILE] = tflite_bytes({"train": train_graph(both.programs["train"])})
    with pytest.raises(ProvisionError, match=r":infer': the file has the signatures \['train'\]"):
        open_classifier(both, backend="litert").predict(x)
    wider = [msgspec.structs.replace(p, shape=(1, 3)) if p.key == "w" else p for p in infer.inputs]
    both.files[FILE] = tflite_bytes(
        {"infer": infer_graph(msgspec.structs.replace(infer, inputs=tuple(wider)))}
    )
    with pytest.raises(ProvisionError, match=r"port 'w': expected \(3,\), got \(1, 3\)"):
        open_classifier(both, backend="litert").predict(x)


def test_a_missing_signature_is_named(both, network, x):
    graphs = {"train": train_graph(both.programs["train"])}
    both.files[FILE] = tflite_bytes(graphs)
    with pytest.raises(ProvisionError, match=r"tflite:infer': the file has .*\['train'\] only"):
        open_programs(both, backend="litert").predict(network, x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, "no port for its input 'other'"),
        ({"dtype": "int32"}, "expected float32, got int32"),
        ({"shape": ("batch", 4)}, r"expected \('batch', 3\), got \(None, 4\)"),
    ],
)
def test_ports_that_contradict_the_file_are_refused(both, network, x, change, message):
    """The file's input x is not as the manifest has it."""
    program = both.programs["infer"]
    w, port = program.inputs
    graph = Graph((w, msgspec.structs.replace(port, **change)), program.outputs)
    graph.add("ADD", [w.name, w.name], "logits", ("batch", 3), options="AddOptions")
    both.files[FILE] = tflite_bytes({"infer": graph})
    with pytest.raises(ProvisionError, match=message):
        open_programs(both, backend="litert").predict(network, x)


def test_an_output_of_another_batch_is_refused(both, network, x):
    """Its last axes fit; that it has one row whatever the batch shows only when it runs."""
    program = both.programs["infer"]
    graph = Graph(program.inputs, program.outputs, {"axis": np.array([0], np.int32)})
    reducer = {"options": "ReducerOptions", "keepDims": True}
    graph.add("SUM", ["x", "axis"], "logits", ("batch", 3), **reducer)
    both.files[FILE] = tflite_bytes({"infer": graph})
    with pytest.raises(ProvisionError, match=r"'logits': expected \(32, 3\), got \(1, 3\)"):
        open_programs(both, backend="litert").predict(network, x)


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b[::-1], lambda b: bytes(len(b))]
)
def test_a_broken_file_is_refused(both, network, x, damage):
    """LiteRT checks the file's structure before it reads it."""
    both.files[FILE] = damage(both.files[FILE])
    with pytest.raises(ProvisionError, match=r"tflite:infer'"):
        open_programs(both, backend="litert").predict(network, x)


def test_a_device_on_litert_loads_no_onnx_runtime(both, tmp_path):
    """Nor onnx, torch or TensorFlow; the file is read in a process of its own."""
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(both.manifest))
    (tmp_path / "programs").mkdir()
    (tmp_path / FILE).write_bytes(both.files[FILE])
    code = """
import sys, pathlib, msgspec, numpy as np
from protofleet.edge.join import open_learner
from protofleet.runtime import open_programs
from protofleet.bundle.manifest import Manifest
from protofleet.tensors import Layout, Network, TensorMap
folder = pathlib.Path(sys.argv[1])
class Bundle:
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)
    def read(self, name):
        return (folder / name).read_bytes()
programs = open_programs(Bundle(), backend="litert")
params, buffers = (
    TensorMap.zeros(Layout.of({d.name: d.shape for d in decls}))
    for decls in (Bundle.manifest.params, Bundle.manifest.state)
)
network = Network(params=params, buffers=buffers)
x, y = np.ones((2, 3), np.float32), np.zeros(2, np.int64)
programs.grad_fns["toy"](network, {"x": x, "y": y}, np.random.default_rng(0))
programs.predict(network, x)
print(sorted({m.partition(".")[0] for m in sys.modules}
    & {"onnxruntime", "onnxruntime_extensions", "onnx", "torch", "tensorflow", "numba"}))
"""
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(tmp_path),
    )
    assert out.stdout.strip() == "[]"


def test_litert_says_nothing_of_its_delegate_and_what_else_is_said_is_heard(capfd):
    """The model of a sum has been made with LiteRT's own schema."""
    code = (
        "import sys\n"
        "from protofleet.runtime import _litert\n"
        "from ai_edge_litert.interpreter import Interpreter\n"
        "_litert._say_banner()\n"
        "one = Interpreter(model_content=_litert.SUM)\n"
        "one.allocate_tensors()\n"
        "print('heard', file=sys.stderr)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert capfd.readouterr().err == "heard\n"


def test_the_model_that_is_opened_first_is_a_sum():
    flatbuffers = pytest.importorskip("flatbuffers")
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    model, graph, code = schema.ModelT(), schema.SubGraphT(), schema.OperatorCodeT()
    tensors = [schema.TensorT(), schema.TensorT()]
    for tensor, name in zip(tensors, "xy", strict=True):
        tensor.shape, tensor.type, tensor.name = [1], schema.TensorType.FLOAT32, name
    add = schema.OperatorT()
    add.inputs, add.outputs = [0, 0], [1]
    add.builtinOptionsType, add.builtinOptions = (
        schema.BuiltinOptions.AddOptions,
        schema.AddOptionsT(),
    )
    graph.tensors, graph.inputs, graph.outputs, graph.name = tensors, [0], [1], "g"
    graph.operators = [add]
    model.version, model.buffers, model.subgraphs = 3, [schema.BufferT()], [graph]
    code.version, model.operatorCodes = 1, [code]
    builder = flatbuffers.Builder(256)
    builder.Finish(model.Pack(builder), b"TFL3")
    assert bytes(builder.Output()) == _litert.SUM
