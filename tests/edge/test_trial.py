"""The trial of a learning rate on a device's own data."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from protofleet.cli._trial_text import to_text
from protofleet.datasets import load_device_data
from protofleet.edge import LocalData, try_bundle
from protofleet.edge.trial import COMPARED_STEPS, RANGE_STEPS
from protofleet.errors import InputError
from protofleet.strategies import build


def _try(world, optimiser=None, **changes):
    own = load_device_data(world.data(1))
    data = LocalData(own=replace(own, **changes) if changes else own)
    steps = []
    trial = try_bundle(
        world.bundle,
        data,
        optimiser=optimiser,
        threads=1,
        backend="onnx",
        progress=lambda done, _total: steps.append(done),
    )
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) <= RANGE_STEPS + 5 * COMPARED_STEPS
    return trial


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_the_advised_rate_is_the_smallest_that_gains_almost_as_much_as_the_best(world, kind):
    trial = _try(world, kind)
    gains = {rate: trial.start_loss - loss for rate, loss in trial.compared.items()}
    enough = [rate for rate, gain in gains.items() if gain >= 0.8 * max(gains.values())]
    assert trial.learning_rate == min(enough)
    assert gains[trial.learning_rate] > 0.1
    assert (trial.kind, trial.examples, trial.objective) == (kind, 40, "cross_entropy")
    assert trial.step_ms.p50 > 0
    assert trial.peak_rss_bytes > 1_000_000


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_small_rest_of_examples_does_not_decide(world, kind):
    """With one batch of 64 and one of 2, the luck of the second made tiny rates look good."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(66, 4)).astype(np.float32), rng.integers(0, 3, 66)
    trial = _try(world, kind, x_train=x, y_train=y)
    assert trial.learning_rate > 1e-2
    assert all(loss < trial.start_loss for loss in trial.compared.values())


def test_the_last_lines_are_settings_that_the_strategy_takes(world):
    trial = _try(world)
    text = to_text(trial)
    table = tomllib.loads(text[text.index("# into") :])["strategy"]["settings"]
    assert table == {"optimiser": {"kind": trial.kind, "lr": trial.learning_rate}}
    build("fedavg", table, world.bundle.model())


def test_the_same_data_give_the_same_advice(world):
    first, second = _try(world), _try(world)
    assert (first.curve, first.compared) == (second.curve, second.compared)


def test_data_that_no_rate_can_learn_from_are_named(world):
    own = load_device_data(world.data(1))
    with pytest.raises(InputError, match=r"check (the|their) "):
        _try(world, x_train=np.full_like(own.x_train, 3e38))
    with pytest.raises(InputError, match="expected training examples to try, got none"):
        _try(world, x_train=own.x_train[:0], y_train=own.y_train[:0])
