"""The trial of a learning rate on a device's own data."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from protofleet.cli._trial_text import to_text
from protofleet.datasets import load_device_data
from protofleet.edge import LocalData, try_bundle
from protofleet.edge.join import open_learner
from protofleet.errors import InputError
from protofleet.federation.outcomes.calibration import choose, try_rates
from protofleet.strategies import build
from protofleet.strategies.optimisers import LADDERS


def _try(world, optimiser=None, **changes):
    own = load_device_data(world.data(1))
    data = LocalData(own=replace(own, **changes) if changes else own)
    told = []
    trial = try_bundle(
        world.bundle,
        data,
        optimiser=optimiser,
        threads=1,
        backend="onnx",
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(number, len(trial.ratios)) for number in range(1, len(trial.tried) + 1)]
    return trial


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_it_is_one_device_s_part_of_a_calibration(world, kind):
    """The same ratios as a device tells the coordinator, and what it would choose is advised."""
    trial = _try(world, kind)
    assert set(LADDERS[kind]) <= trial.ratios.keys()
    rates = tuple(trial.ratios)
    chosen = choose(kind, rates, [np.array(list(trial.ratios.values()))], otherwise=1.0)
    assert trial.learning_rate == chosen.lr
    assert trial.learning_rate in trial.tried
    assert rates[len(rates) // 2] in trial.tried
    data = LocalData(own=load_device_data(world.data(1)))
    learner = open_learner(world.bundle, data, threads=1, device_id="trial")
    declared = world.bundle.manifest.strategy
    strategy = learner.strategy(declared.name, {**declared.settings, "optimiser": {"kind": kind}})
    server = strategy.server_init(learner.model, np.random.default_rng(0))
    told = try_rates(
        learner.rate_tester(1),
        strategy,
        strategy.downlink(server, "trial"),
        seed=0,
        rates=tuple(trial.ratios),
    )
    np.testing.assert_allclose(list(trial.ratios.values()), told, atol=1e-6)
    assert (trial.kind, trial.examples, trial.strategy) == (kind, 40, "fedavg")
    assert 8 <= trial.held_out <= 10
    assert trial.step_ms.p50 > 0
    assert trial.round_s > 0
    assert trial.peak_rss_bytes > 1_000_000


def test_the_last_lines_are_settings_that_the_strategy_takes(world):
    trial = _try(world)
    text = to_text(trial)
    table = tomllib.loads(text[text.index("# into") :])["strategy"]["settings"]
    assert table == {"optimiser": {"kind": trial.kind, "lr": trial.learning_rate}}
    build("fedavg", table, world.bundle.model())
    assert text.count("<- advised") == 1
    shown = re.findall(r"^ +([\d.e-]+)  +(?:[\d.]+)", text, re.MULTILINE)
    assert tuple(map(float, shown)) == trial.tried
    untried = re.findall(r"^ +([\d.e-]+)  not tried", text, re.MULTILINE)
    assert {*map(float, untried)} == set(trial.ratios) - set(trial.tried)


def test_data_that_no_rate_can_learn_from_are_named(world):
    own = load_device_data(world.data(1))
    with pytest.raises(InputError, match="check the data's scale and labels"):
        _try(world, x_train=np.full_like(own.x_train, 3e38))
    for count in (0, 3):
        with pytest.raises(InputError, match=f"one is held out, got {count} in all"):
            _try(world, x_train=own.x_train[:count], y_train=own.y_train[:count])
