"""The hyperspherical loss against PyTorch, finite differences and loops."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import sphere as oracle

from protofleet.errors import InputError
from protofleet.kernels import hyperspherical_prototypes, set_threads, sphere, uniform_loss
from protofleet.kernels.native import pool

pytestmark = pytest.mark.usefixtures("backend")
examples = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def normal(shape, seed=0, scale=1.0):
    made = (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)
    made.flags.writeable = False
    return made


def pytorch_loss(prototypes):
    torch = pytest.importorskip("torch")
    leaf = torch.tensor(prototypes, requires_grad=True)
    products = leaf @ leaf.T - 2.0 * torch.eye(len(prototypes))
    loss = products.max(dim=1)[0].mean()
    loss.backward()
    return loss.item(), leaf.grad.numpy()


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (10, 32), (48, 40), (49, 33), (100, 64)])
@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_loss_and_gradient_are_pytorch_s(shape, scale):
    """At scale 1 the diagonal is often the largest entry, at 0.05 never."""
    prototypes = normal(shape, 1, scale)
    loss, gradient = uniform_loss(prototypes)
    expected_loss, expected_gradient = pytorch_loss(prototypes)
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.jit
def test_a_thousand_classes_are_pytorch_s():
    prototypes = normal((1000, 128), 2, 0.1)
    loss, gradient = uniform_loss(prototypes)
    expected_loss, expected_gradient = pytorch_loss(prototypes)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-7)


def test_equal_prototypes_pull_where_pytorch_s_do():
    """Of equal entries the first counts."""
    prototypes = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
    loss, gradient = uniform_loss(prototypes)
    assert loss == 1.0
    np.testing.assert_array_equal(gradient, pytorch_loss(prototypes)[1])
    np.testing.assert_allclose(gradient, oracle.gradient(prototypes), rtol=1e-6)


def test_the_gradient_is_the_slope():
    prototypes = normal((7, 5), 3)
    _, gradient = uniform_loss(prototypes)
    slopes = np.zeros(prototypes.shape)
    for place in np.ndindex(prototypes.shape):
        step = np.zeros(prototypes.shape)
        step[place] = 1e-6
        slopes[place] = (oracle.loss(prototypes + step) - oracle.loss(prototypes - step)) / 2e-6
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-6)


@examples
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 70),
    width=st.integers(1, 20),
    scale=st.sampled_from([1e-20, 0.1, 1.0, 1e15]),
)
def test_loops_find_the_same(seed, count, width, scale):
    prototypes = normal((count, width), seed, scale)
    loss, gradient = uniform_loss(prototypes)
    size = max(scale, 1e-30)
    assert loss == pytest.approx(oracle.loss(prototypes), rel=1e-5, abs=1e-6 * size**2 + 1e-37)
    _, best = oracle_margin(prototypes)
    if best:
        expected = oracle.gradient(prototypes)
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5 * size)


def oracle_margin(prototypes):
    """The products, and whether every row's two largest differ by more than rounding."""
    rows = prototypes.astype(np.float64)
    products = rows @ rows.T - 2 * np.eye(len(rows))
    if len(rows) == 1:
        return products, True
    top = np.sort(products, axis=1)[:, -2:]
    size = np.square(rows).sum(axis=1).max() + 2
    return products, bool((top[:, 1] - top[:, 0] > 1e-5 * size).all())


def test_blocks_of_rows_give_what_one_gives(monkeypatch):
    prototypes = normal((101, 16), 4)
    loss, gradient = uniform_loss(prototypes)
    for block in (1, 7, 100):
        monkeypatch.setattr(sphere, "_BLOCK_VALUES", 101 * block)
        blocked_loss, blocked_gradient = uniform_loss(prototypes)
        assert blocked_loss == pytest.approx(loss, rel=1e-6)
        np.testing.assert_array_equal(gradient, blocked_gradient)


def test_ten_classes_end_where_the_authors_do():
    """The steps oscillate above the ideal of -1/9."""
    ends = []
    for seed, width in enumerate((32, 48)):
        made = hyperspherical_prototypes(10, width, rng=np.random.default_rng(seed))
        np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, rtol=1e-6)
        cosines = made @ made.T - 2 * np.eye(10, dtype=np.float32)
        ends.append(cosines.max(axis=1).mean())
    assert np.mean(ends) == pytest.approx(-0.07, abs=0.015)


@pytest.mark.parametrize("steps", [0, 1, 12])
def test_its_steps_are_the_formula_s(steps):
    """Momentum remembers, and scaling is no part of the gradient; later, ties fall otherwise."""
    settings_ = {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.02}
    made = hyperspherical_prototypes(6, 9, steps=steps, rng=np.random.default_rng(7), **settings_)
    start = np.random.default_rng(7).random((6, 9), dtype=np.float32)
    np.testing.assert_allclose(made, oracle.started(start, steps, **settings_), atol=1e-5)


def test_its_steps_are_pytorch_s():
    torch = pytest.importorskip("torch")
    made = hyperspherical_prototypes(10, 24, steps=15, rng=np.random.default_rng(3))
    start = np.random.default_rng(3).random((10, 24), dtype=np.float32)
    leaf = torch.nn.Parameter(torch.tensor(start))
    optimiser = torch.optim.SGD([leaf], lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(15):
        with torch.no_grad():
            leaf.div_(leaf.norm(dim=1, keepdim=True))
        optimiser.zero_grad()
        (leaf @ leaf.T - 2.0 * torch.eye(10)).max(dim=1)[0].mean().backward()
        optimiser.step()
    expected = torch.nn.functional.normalize(leaf.detach()).numpy()
    np.testing.assert_allclose(made, expected, atol=1e-5)


def test_threads_change_no_bit(monkeypatch):
    prototypes, results = normal((200, 48), 5, 0.1), []
    monkeypatch.setattr(sphere, "_BLOCK_VALUES", 200 * 30)
    before = pool.threads()
    for threads in (1, 2):
        set_threads(threads)
        made = hyperspherical_prototypes(10, 40, steps=20, rng=np.random.default_rng(1))
        loss, gradient = uniform_loss(prototypes)
        results.append((loss, gradient, made))
    set_threads(before)
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_numba_and_numpy_give_the_same_gradient(monkeypatch):
    results = []
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        results.append(uniform_loss(normal((60, 21), 6)))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_named(bad):
    rows = normal((60, 7)).copy()
    rows[2, 3] = bad
    with pytest.raises(InputError, match=r"prototypes: expected finite .* at \(2, 3\)"):
        uniform_loss(rows)


def test_wrong_inputs_are_named():
    with pytest.raises(InputError, match="products within float32"):
        uniform_loss(normal((4, 3), scale=1e30))
    with pytest.raises(InputError, match=r"expected at least one, got shape \(0, 3\)"):
        uniform_loss(np.zeros((0, 3), np.float32))
    with pytest.raises(InputError, match="float32 array of 2 dimensions, got float64"):
        uniform_loss(np.zeros((2, 3)))
    for classes, width, steps in ((0, 3, 1), (3, 0, 1), (3, 3, -1)):
        with pytest.raises(InputError, match="at least 1 class"):
            hyperspherical_prototypes(classes, width, steps=steps, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="expected steps that stay within float32"):
        hyperspherical_prototypes(3, 3, momentum=1e9, steps=9, rng=np.random.default_rng(0))
