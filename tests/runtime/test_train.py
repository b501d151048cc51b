"""A training program as a gradient function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from protofleet.errors import InputError, ProvisionError
from protofleet.runtime import open_programs
from protofleet.strategies.types import GradFn, Step
from protofleet.tensors import Layout, Network, TensorMap, address


@pytest.fixture
def grad_fn(bundle: Any) -> GradFn:
    return open_programs(bundle).grad_fns["toy"]


@pytest.fixture
def network(bundle: Any) -> Network:
    params, buffers = (TensorMap.zeros(layout) for layout in bundle.layouts)
    params["w"][...] = [1, 2, 3]
    buffers["t"][...] = [8, 9]
    return Network(params=params, buffers=buffers)


def batch_of(size: int, seed: int = 0) -> dict[str, Any]:
    x = np.random.default_rng(seed).normal(size=(size, 3)).astype(np.float32)
    return {"x": x, "y": np.zeros(size, np.int64)}


def call(grad_fn: GradFn, network: Network, size: int = 5) -> Step:
    return grad_fn(network, batch_of(size), np.random.default_rng(7))


def test_loss_gradients_and_state_are_the_closed_form(grad_fn, network):
    step = call(grad_fn, network)
    mean = batch_of(5)["x"].mean(0)
    assert step.loss == pytest.approx(float(mean @ network.params["w"]), rel=1e-5)
    np.testing.assert_allclose(step.grads["w"], mean, rtol=1e-5)
    np.testing.assert_array_equal(step.buffers["s"], [1, 1, 1, 1])


def test_noise_is_drawn_in_port_order_from_the_generator(grad_fn, network):
    step = call(grad_fn, network)
    rng = np.random.default_rng(7)
    uniform = rng.random((10, 3), dtype=np.float32)
    normal = rng.standard_normal(5, dtype=np.float32)
    np.testing.assert_allclose(step.grads["v"], [uniform.sum(), normal.sum()], rtol=1e-4)


def test_state_that_the_program_does_not_write_is_carried_over(grad_fn, network):
    np.testing.assert_array_equal(call(grad_fn, network).buffers["t"], [8, 9])


def test_parameters_are_read_where_they_lie(grad_fn, network):
    """A write into the bound buffer, with no new map, changes the next loss: nothing was copied."""
    before = call(grad_fn, network).loss
    network.params.buffer[:3] *= 2
    assert call(grad_fn, network).loss == pytest.approx(2 * before, rel=1e-5)


def test_gradients_are_written_where_they_stay(grad_fn, network):
    """ONNX Runtime's own output pointers are the addresses inside the gradient map."""
    first = call(grad_fn, network)
    start = address(first.grads.buffer)
    (binding,) = grad_fn._source.runner._bindings.values()
    pointers = {value.data_ptr() for value in binding.get_outputs()}
    assert {start, start + 3 * 4} <= pointers
    assert address(call(grad_fn, network).grads.buffer) == start


def test_a_step_can_read_the_state_that_the_step_before_wrote(grad_fn, network):
    now = network
    for _ in range(7):
        step = grad_fn(now, batch_of(4), np.random.default_rng(0))
        now = replace(network, buffers=step.buffers)
    np.testing.assert_array_equal(now.buffers["s"], [7, 7, 7, 7])
    np.testing.assert_array_equal(network.buffers["s"], [0, 0, 0, 0])


def test_bindings_are_made_once_per_address_and_batch_size(grad_fn, network):
    now = network

    def step(size):
        made = grad_fn(now, batch_of(size), np.random.default_rng(0))
        return replace(network, buffers=made.buffers)

    for size in (4, 3, 4, 3, 4, 3, 4, 3):
        now = step(size)
    made = set(grad_fn._source.runner._bindings)
    for size in (4, 3, 4, 3):
        now = step(size)
    assert set(grad_fn._source.runner._bindings) == made


def test_a_larger_batch_after_a_smaller_one_is_read_whole(grad_fn, network):
    """Staging memory that grew is bound anew."""
    for size in (2, 9, 2, 30):
        step = grad_fn(network, batch_of(size), np.random.default_rng(0))
        np.testing.assert_allclose(step.grads["w"], batch_of(size)["x"].mean(0), rtol=1e-4)


def test_inputs_that_are_not_contiguous_or_writable_serve(grad_fn, network):
    x = np.asfortranarray(batch_of(6)["x"])
    x.flags.writeable = False
    network.params.buffer.flags.writeable = False
    step = grad_fn(network, {"x": x, "y": np.zeros(6, np.int64)}, np.random.default_rng(0))
    np.testing.assert_allclose(step.grads["w"], x.mean(0), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((5, 2), np.float32)}, r"'x': expected \(5, 3\) float32, got \(5, 2\)"),
        ({"x": np.zeros((5, 3))}, r"'x': expected \(5, 3\) float32, got \(5, 3\) float64"),
        ({"x": np.zeros((5, 3), ">f4")}, "'x': expected .* got .* >f4"),
        ({"x": np.zeros((0, 3), np.float32)}, "batch of at least 1"),
        ({"x": np.float32(1)}, "got float32"),
        ({"x": np.array(1, np.float32)}, r"got \(\) float32"),
        ({"x": [[1.0, 2.0, 3.0]]}, "got list"),
        ({"y": np.zeros(4, np.int64)}, r"'y': expected \(5,\) int64, got \(4,\)"),
        ({"y": np.zeros(5, np.int32)}, "'y': expected .* got .* int32"),
        ({"y": None}, "got nothing"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_before_any_pointer_is_passed(
    grad_fn, network, changes, message
):
    with pytest.raises(InputError, match=message):
        grad_fn(network, {**batch_of(5), **changes}, np.random.default_rng(0))


def test_parameters_of_another_layout_are_refused(grad_fn, network):
    other = TensorMap.zeros(Layout.of({"w": (3,), "v": (1,)}))
    with pytest.raises(InputError, match="params: expected the bundle's 2 tensors"):
        grad_fn(replace(network, params=other), batch_of(5), np.random.default_rng(0))


@pytest.mark.parametrize("buffer", [np.zeros(4, np.float32), np.zeros(5), np.zeros(10, "f4")[::2]])
def test_a_buffer_swapped_for_a_smaller_or_strided_one_is_refused(grad_fn, network, buffer):
    network.params.buffer = buffer
    with pytest.raises(InputError, match="params: expected"):
        grad_fn(network, batch_of(5), np.random.default_rng(0))


def test_gradients_cannot_be_the_parameters_of_the_next_call(grad_fn, network):
    grads = call(grad_fn, network).grads
    with pytest.raises(InputError, match=r"got Step\.grads"):
        grad_fn(replace(network, params=grads), batch_of(5), np.random.default_rng(0))


def test_a_program_without_state_outputs_returns_the_state_it_got(bundle, network, make_train):
    program, nodes = make_train()
    outputs = tuple(p for p in program.outputs if p.role != "state")
    bundle.add("train", msgspec.structs.replace(program, outputs=outputs), nodes)
    step = call(open_programs(bundle).grad_fns["toy"], network)
    assert step.buffers is network.buffers


def test_a_manifest_that_contradicts_the_program_is_refused(bundle, network, make_port):
    """The program's file says (3,) where the manifest now says (2,)."""
    program = bundle.programs["train"]
    wrong = tuple(
        make_port("dw", "grad", (2,), key="v") if p.name == "dw" else p for p in program.outputs
    )
    bundle.programs["train"] = msgspec.structs.replace(program, outputs=wrong)
    with pytest.raises(ProvisionError, match=r"port 'dw': expected \(2,\), got \(3,\)"):
        call(open_programs(bundle).grad_fns["toy"], network)


def test_a_program_whose_result_has_another_shape_than_declared_writes_nothing(
    bundle, network, make_port, make_train
):
    """Shapes that only show at run time (here a symbolic one) cannot overrun a gradient."""
    program, nodes = make_train()
    outputs = tuple(
        make_port("dw", "grad", ("batch",), key="w") if p.name == "dw" else p
        for p in program.outputs
    )
    symbolic = msgspec.structs.replace(program, outputs=outputs)
    nodes[0].attribute[0].ints[:] = [1]
    nodes[1].input[1] = "one"
    bundle.add("train", symbolic, nodes)
    bundle.programs["train"] = program
    grad_fn = open_programs(bundle).grad_fns["toy"]
    with pytest.raises(ProvisionError, match="dw"):
        call(grad_fn, network, size=50)


@pytest.mark.parametrize("field", ["shape", "key"])
def test_a_port_that_is_no_tensor_of_the_bundle_is_refused(bundle, make_port, field):
    program = bundle.programs["train"]
    wrong = make_port("w", "param", (3, 3)) if field == "shape" else make_port("z", "param", (3,))
    bundle.programs["train"] = msgspec.structs.replace(program, inputs=(wrong, *program.inputs[1:]))
    with pytest.raises(ProvisionError, match="param"):
        open_programs(bundle)


def test_bytes_that_are_no_program_are_refused(bundle, network):
    bundle.files["programs/train.onnx"] = b"no protobuf"
    grad_fn = open_programs(bundle).grad_fns["toy"]
    for _ in range(2):  # whoever tries again learns it again
        with pytest.raises(ProvisionError, match=r"programs/train\.onnx.*does not load"):
            call(grad_fn, network)


def test_results_do_not_depend_on_what_ran_before(bundle, network):
    used, fresh = (open_programs(bundle).grad_fns["toy"] for _ in range(2))
    for size in (3, 8, 5):
        call(used, network, size)
    first, second = call(used, network), call(fresh, network)
    assert first.loss == second.loss
    np.testing.assert_array_equal(first.grads.buffer, second.grads.buffer)
