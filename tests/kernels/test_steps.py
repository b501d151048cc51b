"""Optimisers, control variates, mixing weights and clipping against PyTorch and float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracles import optimisers as oracle

from protofleet.errors import InputError
from protofleet.kernels import adam_step, ala_step, clip_by_norm, control_update, sgd_step
from protofleet.kernels import steps as kernel_steps
from protofleet.kernels.native import pool

pytestmark = pytest.mark.usefixtures("backend")
_SIZE = 2_500  # more than two blocks of the compiled path
examples = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
numbers = st.floats(0.0, 1.0)
_SIZES = st.sampled_from([0, 1, 15, 64, 129])


def gradients(steps=4, size=_SIZE):
    rng = np.random.default_rng(0)
    made = rng.standard_normal((steps, size)).astype(np.float32)
    made.flags.writeable = False
    return made


def run_sgd(params, grads, **settings_):
    params, velocity = params.copy(), np.zeros_like(params)
    for gradient in grads:
        sgd_step(params, gradient, velocity, **settings_)
    return params


def run_adam(params, grads, **settings_):
    params = params.copy()
    m, v = np.zeros_like(params), np.zeros_like(params)
    for step, gradient in enumerate(grads, 1):
        adam_step(params, gradient, m, v, step=step, **settings_)
    return params


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 1e-2)])
def test_sgd_is_pytorch_s(momentum, weight_decay):
    torch = pytest.importorskip("torch")
    start = gradients(1)[0]
    theirs = torch.nn.Parameter(torch.tensor(start))
    settings_ = {"lr": 0.05, "momentum": momentum, "weight_decay": weight_decay}
    optimiser = torch.optim.SGD([theirs], **settings_)
    for gradient in gradients():
        theirs.grad = torch.tensor(gradient)
        optimiser.step()
    mine = run_sgd(start, gradients(), **settings_)
    np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_adam_is_pytorch_s(weight_decay):
    torch = pytest.importorskip("torch")
    start = gradients(1)[0]
    theirs = torch.nn.Parameter(torch.tensor(start))
    optimiser = torch.optim.Adam([theirs], lr=1e-2, weight_decay=weight_decay)
    for gradient in gradients():
        theirs.grad = torch.tensor(gradient)
        optimiser.step()
    mine = run_adam(start, gradients(), lr=1e-2, weight_decay=weight_decay)
    np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


@examples
@given(lr=numbers, momentum=numbers, weight_decay=numbers, values=st.lists(floats, max_size=5))
def test_sgd_follows_its_formula(lr, momentum, weight_decay, values):
    settings_ = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
    start, grads = np.array(values, np.float32) / np.float32(1e4), gradients(3, len(values))
    expected = oracle.sgd(start, grads, **settings_)
    size = np.abs(start).max(initial=1)
    np.testing.assert_allclose(run_sgd(start, grads, **settings_), expected, atol=1e-5 * size)


@pytest.mark.parametrize("eps_form", ["torch", "keras"])
@pytest.mark.parametrize("eps", [1e-7, 1e-1])
def test_adam_adds_eps_where_the_form_says(eps_form, eps):
    """With eps of the gradients' size the two forms differ visibly from the first step on."""
    settings_ = {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": eps, "weight_decay": 0.1}
    start, grads = gradients(1, 500)[0], gradients(3, 500)
    mine = run_adam(start, grads, **settings_, eps_form=eps_form)
    expected = oracle.adam(start, grads, **settings_, eps_form=eps_form)
    np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


def test_the_first_adam_step_has_the_length_of_the_learning_rate():
    params = run_adam(np.zeros(3, np.float32), np.array([[5, -0.1, 0]], np.float32), lr=0.5)
    np.testing.assert_allclose(params, [-0.5, 0.5, 0], rtol=1e-6)


@examples
@given(
    size=st.sampled_from([0, 1, 7, 1024, 1025]),
    mu=st.none() | numbers,
    corrected=st.booleans(),
    momentum=st.sampled_from([0.0, 0.9]),
    weight_decay=st.sampled_from([0.0, 0.1]),
)
def test_added_terms_are_those_of_their_formula(size, mu, corrected, momentum, weight_decay):
    start, reference, correction, *grads = gradients(5, size)
    terms = {"proximal": None if mu is None else (mu, reference)}
    terms["correction"] = correction if corrected else None
    theirs = {"mu": mu or 0, "reference": reference, "correction": correction * corrected}
    settings_ = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    mine = run_sgd(start, grads, **settings_, **terms)
    expected = oracle.sgd(start, grads, **settings_, **theirs)
    np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)
    settings_ = {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 1e-3, "weight_decay": weight_decay}
    mine = run_adam(start, grads, **settings_, **terms)
    expected = oracle.adam(start, grads, **settings_, **theirs, eps_form="torch")
    np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4)


def test_fused_terms_have_the_bits_of_terms_added_beforehand():
    start, reference, correction, grads = gradients(4)
    mu, decay = np.float32(0.3), np.float32(0.01)
    whole = grads + mu * (start - reference) + correction + decay * start
    fused = {"weight_decay": 0.01, "proximal": (0.3, reference), "correction": correction}
    for run in (run_sgd, run_adam):
        expected = run(start, [whole], lr=0.1)
        np.testing.assert_array_equal(run(start, [grads], lr=0.1, **fused), expected)


def test_a_velocity_is_left_alone_without_momentum():
    velocity = np.full(3, np.nan, np.float32)
    params = np.ones(3, np.float32)
    sgd_step(params, np.ones(3, np.float32), velocity, lr=0.5)
    np.testing.assert_array_equal(params, [0.5, 0.5, 0.5])
    assert np.isnan(velocity).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_visible(bad):
    grads = np.array([[1, bad, 1]], np.float32)
    start = np.zeros(3, np.float32)
    for run in (run_sgd, run_adam):
        np.testing.assert_array_equal(np.isfinite(run(start, grads, lr=0.1)), [True, False, True])


@pytest.mark.jit
def test_neither_threads_nor_compiler_change_a_bit_of_a_step(monkeypatch):
    start, reference, correction, *grads = gradients(6, 70_001)  # blocks of either, an odd end
    terms = {"weight_decay": 0.01, "proximal": (0.1, reference), "correction": correction}
    results = set()
    monkeypatch.setattr(kernel_steps, "_WORTH_THREADS", 1)
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        for threads in (1, 2, 3):
            monkeypatch.setattr(pool._Setting, "threads", threads)
            stepped = run_sgd(start, grads, lr=0.1, momentum=0.9, **terms)
            results.add((stepped.tobytes(), run_adam(start, grads, lr=0.1, **terms).tobytes()))
    assert len(results) == 1


def test_buffers_that_cannot_be_written_or_do_not_fit_are_named():
    params, grads = np.zeros(3, np.float32), np.zeros(3, np.float32)
    frozen = params.copy()
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="params: expected a writable"):
        sgd_step(frozen, grads, None, lr=1.0)
    with pytest.raises(InputError, match=r"momentum 0\.9 needs a velocity buffer"):
        sgd_step(params, grads, None, lr=1.0, momentum=0.9)
    with pytest.raises(InputError, match=r"grads: expected \(3,\) float32"):
        sgd_step(params, grads[:2], None, lr=1.0)
    with pytest.raises(InputError, match=r"proximal reference: expected \(3,\) float32"):
        sgd_step(params, grads, None, lr=1.0, proximal=(0.1, grads[:2]))
    with pytest.raises(InputError, match=r"correction: expected a float32 array"):
        adam_step(params, grads, params, params, step=1, lr=1.0, correction=np.zeros(3))
    with pytest.raises(InputError, match=r"m: expected a writable, contiguous \(3,\)"):
        adam_step(params, grads, grads[:2], grads, step=1, lr=1.0)
    with pytest.raises(InputError, match="expected a step from 1"):
        adam_step(params, grads, params.copy(), params.copy(), step=0, lr=1.0)


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
    control_update(mine, server_control, server_params, params, steps=steps, lr=lr)
    expected = oracle.control(*made, steps=steps, lr=lr)
    size = np.abs(made).max(initial=1) * max(1, 1 / (steps * lr))
    np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6 * size)


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
def test_neither_threads_nor_compiler_change_a_bit_of_an_update(monkeypatch):
    """But for the compiler's norm, whose sums have an order of their own."""
    first, second, third, fourth = normal(4, 70_001)  # blocks of either, an odd end
    results, norms = set(), []
    monkeypatch.setattr(kernel_steps, "_WORTH_THREADS", 1)
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        for threads in (1, 2, 3):
            monkeypatch.setattr(pool._Setting, "threads", threads)
            control, weights = third.copy(), first.copy()
            mixed = np.empty_like(first)
            control_update(control, first, second, third, steps=3, lr=0.1)
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
    with pytest.raises(InputError, match="control: expected a writable"):
        control_update(frozen, good, good, good, steps=1, lr=1.0)
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
