"""Weighted means and optimisers against PyTorch, closed forms and exact sums."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import optimisers as oracle

from protofleet.errors import InputError
from protofleet.kernels import WeightedMean, adam_step, sgd_step

pytestmark = pytest.mark.usefixtures("backend")
_SIZE = 70_000  # more than two blocks of the NumPy path
examples = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
numbers = st.floats(0.0, 1.0)


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


def test_numba_and_numpy_steps_have_the_same_bits(monkeypatch):
    results = []
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        start = gradients(1)[0]
        stepped = run_sgd(start, gradients(), lr=0.1, momentum=0.9, weight_decay=0.01)
        results.append((stepped, run_adam(start, gradients(), lr=0.1, weight_decay=0.01)))
    for numba, numpy in zip(*results, strict=True):
        np.testing.assert_array_equal(numba, numpy)


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
    with pytest.raises(InputError, match=r"m: expected a writable, contiguous \(3,\)"):
        adam_step(params, grads, grads[:2], grads, step=1, lr=1.0)
    with pytest.raises(InputError, match="expected a step from 1"):
        adam_step(params, grads, params.copy(), params.copy(), step=0, lr=1.0)


@examples
@given(st.lists(st.tuples(floats, st.integers(0, 10**6)), min_size=1, max_size=8))
def test_the_mean_is_the_exact_one_rounded_once(terms):
    mean = WeightedMean(1)
    for value, weight in terms:
        mean.add(np.array([value], np.float32), weight)
    total = sum(weight for _, weight in terms)
    if not total:
        with pytest.raises(InputError, match="expected a positive weight"):
            mean.result()
        return
    exact = sum(Fraction(float(np.float32(v))) * w for v, w in terms) / total
    size = max(abs(float(np.float32(v))) for v, _ in terms)
    assert float(mean.result()[0]) == pytest.approx(
        float(exact), rel=1e-6, abs=size * 1e-14 + 2e-45
    )


@examples
@given(floats, st.integers(1, 2**29))
def test_the_mean_of_one_is_itself_to_the_bit(value, weight):
    buffer = np.full(3, value, np.float32)
    buffer.flags.writeable = False
    mean = WeightedMean(3)
    mean.add(buffer, weight)
    np.testing.assert_array_equal(mean.result(), buffer)


def test_weight_zero_is_not_looked_at():
    mean = WeightedMean(2)
    mean.add(np.array([1, 2], np.float32), 3)
    mean.add(np.array([np.nan, np.inf], np.float32), 0)
    np.testing.assert_array_equal(mean.result(), [1, 2])


def test_a_refused_buffer_leaves_the_mean_as_it_was():
    mean = WeightedMean(2)
    mean.add(np.array([1, 2], np.float32), 1)
    with pytest.raises(InputError, match="expected finite numbers, got nan"):
        mean.add(np.array([5, np.nan], np.float32), 1)
    with pytest.raises(InputError, match="expected 2 values, got 3"):
        mean.add(np.zeros(3, np.float32), 1)
    with pytest.raises(InputError, match="expected a weight of at least 0"):
        mean.add(np.zeros(2, np.float32), -1)
    np.testing.assert_array_equal(mean.result(), [1, 2])
