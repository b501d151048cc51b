"""Differential privacy by arithmetic, and the noise that a real strategy's real state gets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from toy_model import SGD, array, frozen_map, new_rng, server_tools
from toy_prototypes import prototype_model

from protofleet.federation.noise import Noise
from protofleet.strategies import build
from protofleet.strategies.privacy import CLIP, Mechanism, PrivateStrategy, Quantile
from protofleet.strategies.types import ServerState, Update
from protofleet.tensors import Model, TensorMap

_WIDE = 40_000


def _strategy(name="fedavg", model=None, *, width=2, **mechanism):
    if model is None:
        params = frozen_map({"w": np.zeros(width)})
        model = Model(params=params, buffers=TensorMap.pack({}), num_classes=2, input_shape=(2,))
    made = build(name, SGD, model)
    chosen = {"noise_multiplier": 1.0, "clip": 1.0, "devices": 4, **mechanism}
    return PrivateStrategy(made, made.private, Mechanism(**chosen)), model


def _update(client_id, w, num_examples=5):
    tensors = {"params/w": array(w)}
    return Update(client_id=client_id, round_id=1, num_examples=num_examples, tensors=tensors)


def _next(strategy, state, updates, noise=np.zeros):
    return strategy.aggregate(state, updates, replace(server_tools(), noise=noise))


def test_differences_are_clipped_as_a_whole_and_divided_by_the_expected_devices():
    """(3, 4) has norm 5 and becomes (0.6, 0.8); examples do not weigh; nobody is 0 of 4."""
    strategy, model = _strategy()
    state = replace(strategy.server_init(model, new_rng()), tensors={"params/w": array([1, 1])})
    updates = [_update("a", [4, 5], 1000), _update("b", [1, 0.5]), _update("c", [9, 9], 0)]
    after = _next(strategy, state, updates)
    np.testing.assert_allclose(after.tensors["params/w"], [1 + 0.6 / 4, 1 + 0.3 / 4], rtol=1e-6)
    alone = _next(strategy, state, [])
    np.testing.assert_array_equal(alone.tensors["params/w"], [1, 1])


def test_a_missing_device_divides_by_as_many_as_ever():
    strategy, model = _strategy()
    state = strategy.server_init(model, new_rng())
    one = _next(strategy, state, [_update("a", [0.6, 0])])
    np.testing.assert_allclose(one.tensors["params/w"], [0.15, 0], rtol=1e-6)


@pytest.mark.parametrize("updates", [[], [_update("a", np.full(_WIDE, 0.1))]], ids=["none", "one"])
def test_the_state_that_devices_get_has_the_noise_of_the_clip(updates):
    """Standard deviation z S / m on every number, also of a round to which nobody answers."""
    strategy, model = _strategy(width=_WIDE, noise_multiplier=3.0, clip=0.5, devices=10)
    state = strategy.server_init(model, new_rng())
    noised = _next(strategy, state, updates, Noise(b"n" * 32)).tensors["params/w"]
    quiet = _next(strategy, state, updates).tensors["params/w"]
    noise = noised.astype(np.float64) - quiet
    expected = 3.0 * 0.5 / 10
    assert abs(noise.std() / expected - 1) < 5 / math.sqrt(2 * _WIDE)
    assert abs(noise.mean()) < 5 * expected / math.sqrt(_WIDE)


def test_the_norm_follows_the_quantile_and_costs_its_part():
    """Two of four are within S: the share is a half, and S moves by exp(0.2 (0.8 - 0.5))."""
    adaptive = Quantile(quantile=0.8, rate=0.2, budget=0.05)
    strategy, model = _strategy(adaptive=adaptive, clip=2.0)
    state = strategy.server_init(model, new_rng())
    assert float(state.tensors[CLIP]) == 2.0
    assert CLIP not in strategy.downlink(state, "a").tensors
    updates = [_update(name, [norm, 0]) for name, norm in zip("abcd", (1, 1.5, 3, 9), strict=True)]
    after = _next(strategy, state, updates)
    assert float(after.tensors[CLIP]) == pytest.approx(2.0 * math.exp(0.2 * 0.3))
    np.testing.assert_allclose(after.tensors["params/w"], [(1 + 1.5 + 2 + 2) / 4, 0], rtol=1e-6)
    assert strategy.server_model(after).params["w"][0] == after.tensors["params/w"][0]


def test_the_noises_of_a_round_have_the_multiplier_that_was_asked_for():
    """1 / z² is the sum over the sum's, the counts' and the quantile's, read from what they add."""
    model = prototype_model()
    adaptive = Quantile(quantile=0.5, rate=1.0, budget=0.2)
    strategy, _ = _strategy(
        "fedproto", model, adaptive=adaptive, noise_multiplier=0.01, devices=1000
    )
    states = []
    for place in range(3):
        drawn = iter(np.eye(3)[place])
        noise = lambda size: np.full(size, next(drawn))  # noqa: B023, E731 - one after the other
        state = strategy.server_init(model, new_rng())
        updates = [_classes(f"{n:03}", [[0, 0], [0, 0]], [1, 1]) for n in range(1000)]
        states.append(_next(strategy, state, updates[:500], noise))
    quiet = _next(strategy, strategy.server_init(model, new_rng()), updates[:500])
    z_sum = float(states[0].tensors["prototypes"][0, 0]) * 500
    z_clip = 2 * 1000 * abs(math.log(float(states[2].tensors[CLIP] / quiet.tensors[CLIP])))
    z_counts = 0.01 / math.sqrt(0.1 * 0.8)
    assert z_sum**-2 + z_counts**-2 + z_clip**-2 == pytest.approx(0.01**-2, rel=1e-3)


def _classes(client_id, rows, counts):
    return Update(
        client_id=client_id,
        round_id=1,
        num_examples=sum(counts),
        tensors={"prototypes": array(rows)},
        class_counts=np.array(counts),
    )


def test_rows_of_classes_are_divided_by_how_many_have_them():
    """Rows of classes that a client lacks add nothing, whatever stands in them."""
    strategy, model = _strategy("fedproto", prototype_model(), noise_multiplier=0.01, clip=10.0)
    state = strategy.server_init(model, new_rng())
    updates = [
        _classes("a", [[1, 2], [9, 9]], [3, 0]),
        _classes("b", [[3, 4], [0, 1]], [1, 1]),
    ]
    after = _next(strategy, state, updates)
    np.testing.assert_allclose(after.tensors["prototypes"], [[2, 3], [0, 1]], rtol=1e-6)
    np.testing.assert_array_equal(after.tensors["present"], [1, 1])


def test_a_class_whose_count_drowns_in_its_noise_keeps_its_prototype():
    strategy, _ = _strategy("fedproto", prototype_model(), noise_multiplier=1.0)
    tensors = {"prototypes": array([[1, 2], [3, 4]]), "present": np.array([0, 1], np.uint8)}
    state = ServerState(round_id=1, tensors=tensors)
    after = _next(strategy, state, [_classes("a", [[1, 1], [5, 5]], [1, 1])])
    np.testing.assert_array_equal(after.tensors["prototypes"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(after.tensors["present"], [0, 1])
