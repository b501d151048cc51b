"""ALP nodes: the graph's own function, or the kernels through a custom operator."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from onnx import helper

from protofleet import kernels
from protofleet.bundle.manifest import Program
from protofleet.errors import InputError
from protofleet.runtime import KernelError, open_programs
from protofleet.tensors import Network, TensorMap

_ATTRIBUTES: dict[str, Any] = {"epsilon": 0.05, "iterations": 3}
_TRAIN: dict[str, Any] = {"variant": "bulk_code", "gamma": 0.999, **_ATTRIBUTES}


def _function(name: str, inputs: list[str], results: dict[str, str], attributes: Any) -> Any:
    """A stand-in that negates, so that a test sees who computed a node."""
    nodes = [helper.make_node("Neg", [source], [result]) for result, source in results.items()]
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_function(
        "protofleet", name, inputs, list(results), nodes, opsets, list(attributes)
    )


@pytest.fixture
def alp_bundle(bundle: Any, make_port: Any) -> Any:
    """``infer``: the mean of AlpInfer's tokens; ``train``: AlpTrain, whose state it keeps."""
    bundle.state = {"local": (6, 3), "global": (6, 3)}
    local, global_ = (make_port(name, "state", (6, 3)) for name in ("local", "global"))
    x = make_port("x", "input", ("batch", 2, 3))
    infer = Program(
        file="programs/infer.onnx",
        inputs=(local, x),
        outputs=(make_port("logits", "output", ("batch", 3)),),
    )
    bundle.add(
        "infer",
        infer,
        [
            helper.make_node("AlpInfer", ["x", "local"], ["c"], domain="protofleet", **_ATTRIBUTES),
            helper.make_node("ReduceMean", ["c"], ["logits"], axes=[1], keepdims=0),
        ],
        [_function("AlpInfer", ["x", "local"], {"chosen": "x"}, _ATTRIBUTES)],
    )
    train = Program(
        file="programs/train.onnx",
        inputs=(local, global_, x),
        outputs=(
            make_port("loss", "loss", ()),
            make_port("moved", "state", (6, 3), key="local"),
        ),
        objective="toy",
    )
    names = ["x", "local", "global"]
    bundle.add(
        "train",
        train,
        [
            helper.make_node("AlpTrain", names, ["c", "moved"], domain="protofleet", **_TRAIN),
            helper.make_node("ReduceSum", ["c"], ["loss"], keepdims=0),
        ],
        [_function("AlpTrain", ["x", "local", "g"], {"chosen": "x", "new": "local"}, _TRAIN)],
    )
    del bundle.programs["features"]
    return bundle


@pytest.fixture
def network(alp_bundle: Any) -> Network:
    params, buffers = (TensorMap.zeros(layout) for layout in alp_bundle.layouts)
    buffers.buffer[...] = np.random.default_rng(0).normal(size=buffers.buffer.size)
    return Network(params=params, buffers=buffers)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float32)


def test_the_graph_computes_its_own_function(alp_bundle, network, x):
    programs = open_programs(alp_bundle, kernels="graph")
    np.testing.assert_allclose(programs.predict(network, x), -x.mean(1), rtol=1e-5)


def test_the_kernel_takes_the_place_of_the_inference_function(alp_bundle, network, x):
    programs = open_programs(alp_bundle, kernels="custom")
    expected = kernels.alp_infer(x, network.buffers["local"], epsilon=0.05, iterations=3).mean(1)
    np.testing.assert_allclose(programs.predict(network, x), expected, rtol=1e-5)


def test_the_kernel_takes_the_place_of_the_training_function(alp_bundle, network, x):
    grad_fn = open_programs(alp_bundle, kernels="custom").grad_fns["toy"]
    step = grad_fn(network, {"x": x}, np.random.default_rng(0))
    chosen, moved = kernels.alp_train(
        x, network.buffers["local"], network.buffers["global"], **_TRAIN
    )
    assert step.loss == pytest.approx(float(chosen.sum()), rel=1e-5)
    np.testing.assert_allclose(step.buffers["local"], moved, rtol=1e-6)
    np.testing.assert_array_equal(step.buffers["global"], network.buffers["global"])


def test_the_node_s_attributes_reach_the_kernel(alp_bundle, network, x, monkeypatch):
    seen: dict[str, Any] = {}

    def spy(x: Any, local: Any, _global: Any, **attributes: Any) -> tuple[Any, Any]:
        seen.update(attributes)
        return x, local

    monkeypatch.setattr(kernels, "alp_train", spy)
    grad_fn = open_programs(alp_bundle, kernels="custom").grad_fns["toy"]
    grad_fn(network, {"x": x}, np.random.default_rng(0))
    assert seen == pytest.approx(_TRAIN)


def test_an_exception_in_the_kernel_is_a_clear_error_and_the_next_call_works(
    alp_bundle, network, x, monkeypatch
):
    programs = open_programs(alp_bundle, kernels="custom")
    monkeypatch.setattr(kernels, "alp_infer", _boom)
    with pytest.raises(KernelError, match="ValueError: boom"):
        programs.predict(network, x)
    monkeypatch.undo()
    assert np.isfinite(programs.predict(network, x)).all()


def _boom(*_: Any, **__: Any) -> Any:
    raise ValueError("boom")


def test_a_kernel_s_result_of_another_shape_is_an_error(alp_bundle, network, x, monkeypatch):
    monkeypatch.setattr(kernels, "alp_infer", lambda x, *_, **__: x[:1])
    programs = open_programs(alp_bundle, kernels="custom")
    with pytest.raises(KernelError, match=r"expected a result of \(5, 2, 3\)"):
        programs.predict(network, x)


def test_ctrl_c_inside_a_kernel_is_a_keyboard_interrupt_after_the_call(
    alp_bundle, network, x, monkeypatch
):
    """Raised inside the callback it would end the process with a core dump."""

    def interrupted(x: Any, *_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return x

    monkeypatch.setattr(kernels, "alp_infer", interrupted)
    programs = open_programs(alp_bundle, kernels="custom")
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        programs.predict(network, x)
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_kernel_runs_in_a_thread_that_is_not_the_main_one(alp_bundle, network, x):
    programs = open_programs(alp_bundle, kernels="custom")
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(programs.predict(network, x)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(results[0], programs.predict(network, x))


def test_without_the_extensions_the_graph_runs(alp_bundle, network, x, monkeypatch):
    _hide_extensions(monkeypatch)
    programs = open_programs(alp_bundle)
    assert not programs.uses_kernels
    np.testing.assert_allclose(programs.predict(network, x), -x.mean(1), rtol=1e-5)


def test_kernels_that_cannot_be_registered_are_refused(alp_bundle, monkeypatch):
    _hide_extensions(monkeypatch)
    with pytest.raises(InputError, match="needs onnxruntime-extensions"):
        open_programs(alp_bundle, kernels="custom")


def _hide_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == "onnxruntime_extensions" else found(name),
    )


def test_numpy_kernels_are_not_chosen_over_the_faster_graph(alp_bundle, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_NUMBA", "0")
    assert not open_programs(alp_bundle).uses_kernels
    assert open_programs(alp_bundle, kernels="custom").uses_kernels


def test_a_program_without_alp_needs_no_kernels(bundle):
    assert not open_programs(bundle, kernels="custom").uses_kernels


def test_the_operators_load_neither_torch_nor_onnx():
    """Both are installed beside the tests; the extensions would load them."""
    code = (
        "import sys; from protofleet.runtime import _alp; _alp.library_with_alp();"
        "print([m for m in ('torch', 'onnx', 'numba') if sys.modules.get(m)])"
    )
    assert _printed(code) == "[]"


def test_a_runtime_without_a_program_loads_no_torch_no_numba_and_no_session():
    code = (
        "import sys, protofleet.runtime;"
        "print([m for m in ('torch', 'onnx', 'numba', 'onnxruntime') if m in sys.modules])"
    )
    assert _printed(code) == "[]"


def _printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
