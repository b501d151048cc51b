"""Control variates, mixing weights and clipping against PyTorch and float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracles import optimisers as oracle

from protofleet.errors import InputError
from protofleet.kernels import (
    _pool,
    _updates,
    ala_step,
    clip_by_norm,
    control_update,
    sgd_step,
)

pytestmark = pytest.mark.usefixtures("backend")
examples = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
_SIZES = st.sampled_from([0, 1, 15, 64, 129])


@st.composite
def buffers(draw, count, bound=1e3):
    size = draw(_SIZES)
    values = st.floats(-bound, bound, width=32)
    made = [draw(arrays(np.float32, size, elements=values)) for _ in range(count)]
    for buffer in made:
        buffer.flags.writeable = False
    return made


def normal(count, size):
    made = np.random.default_rng(0).standard_normal((count, size), np.float32)
    made.flags.writeable = False
    return made


@examples
@given(buffers(4), st.integers(1, 50), st.floats(1e-3, 1))
def test_a_control_variate_is_scaffold_s(made, steps, lr):
    control, server_control, server_params, params = made
    mine = control.copy()
    moved = control_update(mine, server_control, server_params, params, steps=steps, lr=lr)
    expected = oracle.control(*made, steps=steps, lr=lr)
    size = np.abs(made).max(initial=1) * max(1, 1 / (steps * lr))
    np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6 * size)
    np.testing.assert_array_equal(control + moved, mine)


def test_a_control_variate_becomes_the_mean_of_the_gradients():
    """What option II is for: corrected steps cancel in it."""
    server_params, server_control, control, *grads = normal(8, 100)
    params, new = server_params.copy(), control.copy()
    correction = server_control - control
    for gradient in grads:
        sgd_step(params, gradient, None, lr=0.1, correction=correction)
    control_update(new, server_control, server_params, params, steps=len(grads), lr=0.1)
    np.testing.assert_allclose(new, np.mean(grads, axis=0), atol=1e-5)


@examples
@given(buffers(4, bound=4), st.floats(0, 3))
def test_a_step_of_mixing_weights_is_fedala_s(made, eta):
    weights, local, global_, grads = made
    mine, mixed = weights.copy(), np.empty_like(weights)
    ala_step(mine, local, global_, grads, mixed, eta=eta)
    expected, expected_mixed = oracle.ala(weights, local, global_, grads, eta)
    np.testing.assert_allclose(mine, expected, atol=1e-4)
    np.testing.assert_allclose(mixed, expected_mixed, atol=1e-3)
    assert ((mine >= 0) & (mine <= 1)).all()


def test_nan_gradients_leave_nan_weights():
    weights, mixed = np.ones(2, np.float32), np.zeros(2, np.float32)
    grads = np.array([np.nan, 0.25], np.float32)
    ala_step(weights, np.zeros(2, np.float32), np.ones(2, np.float32), grads, mixed)
    np.testing.assert_array_equal(weights, [np.nan, 0.75])
    np.testing.assert_array_equal(mixed, [np.nan, 0.75])


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 9000])
@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e6])
def test_clipping_is_pytorch_s(size, max_norm):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Parameter(torch.zeros(size))
    theirs.grad = torch.tensor(normal(1, size)[0])
    norm = torch.nn.utils.clip_grad_norm_([theirs], max_norm)
    mine = normal(1, size)[0].copy()
    assert clip_by_norm(mine, max_norm) == pytest.approx(float(norm), rel=1e-5)
    np.testing.assert_allclose(mine, theirs.grad.numpy(), rtol=1e-5)


def test_norms_beyond_float32_are_clipped_and_nan_stays():
    grads = np.full(100, 3e38, np.float32)
    assert clip_by_norm(grads, 1.0) == pytest.approx(3e39)
    np.testing.assert_allclose(grads, 0.1, rtol=1e-5)
    grads[7] = np.nan
    before = grads.copy()
    assert np.isnan(clip_by_norm(grads, 1e-3))
    np.testing.assert_array_equal(grads, before)


@pytest.mark.jit
def test_neither_threads_nor_compiler_change_a_bit(monkeypatch):
    """But for the compiler's norm, whose sums have an order of their own."""
    first, second, third, fourth = normal(4, 70_001)  # blocks of either, an odd end
    results, norms = set(), []
    monkeypatch.setattr(_updates, "_WORTH_THREADS", 1)
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        for threads in (1, 2, 3):
            monkeypatch.setattr(_pool._Setting, "threads", threads)
            control, weights = third.copy(), first.copy()
            mixed = control_update(control, first, second, third, steps=3, lr=0.1)
            ala_step(weights, second, third, fourth, mixed)
            results.add(b"".join(a.tobytes() for a in (control, weights, mixed)))
            clipped = first.copy()
            norms.append((clip_by_norm(clipped, 1.0), clipped.tobytes()))
    assert len(results) == 1
    assert len(set(norms[:3])) == len(set(norms[3:])) == 1
    assert norms[0][0] == pytest.approx(norms[3][0], rel=1e-14)


def test_what_does_not_fit_is_named():
    good, short = np.ones(3, np.float32), np.ones(2, np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    with pytest.raises(InputError, match=r"server_params: expected \(3,\) float32, got \(2,\)"):
        control_update(good, good, short, good, steps=1, lr=1.0)
    with pytest.raises(InputError, match="out: expected a writable"):
        control_update(good, good, good, good, steps=1, lr=1.0, out=frozen)
    with pytest.raises(InputError, match="expected steps >= 1, got 0"):
        control_update(good, good, good, good, steps=0, lr=1.0)
    with pytest.raises(InputError, match="expected a positive lr, got 0"):
        control_update(good, good, good, good, steps=1, lr=0.0)
    with pytest.raises(InputError, match="weights: expected a writable"):
        ala_step(frozen, good, good, good, good.copy())
    with pytest.raises(InputError, match="grads: expected"):
        ala_step(good, good, good, short, good.copy())
    with pytest.raises(InputError, match="expected a positive norm, got nan"):
        clip_by_norm(good, np.nan)
