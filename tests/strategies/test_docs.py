"""The strategy printed in docs/strategies.md runs."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_model import SGD, frozen_map, new_rng, server_tools

from protofleet.strategies import DESCRIPTIONS, STRATEGIES
from protofleet.strategies.aggregation.median import MedianSettings
from protofleet.strategies.ala import Ala
from protofleet.strategies.common import parse_settings
from protofleet.strategies.methods import fedali, fedavg, fedprox
from protofleet.strategies.optimisers import Adam, Sgd
from protofleet.strategies.shared_model import ServerStep

_ROOT = Path(__file__).resolve().parents[2]
_DOCS = _ROOT / "docs" / "strategies.md"
_EACH = _ROOT / "docs" / "algorithms.md"


def _printed():
    """The page's two strategies: one of its own, and FedProx."""
    return re.findall(r"```python\n(.*?)```", _DOCS.read_text(), re.DOTALL)


def test_fedprox_is_printed_as_its_file_has_it():
    _, printed = _printed()
    source = Path(fedprox.__file__).read_text()
    assert source.endswith(f"\n\n{printed}")
    assert source.removesuffix(printed).rstrip().endswith("from __future__ import annotations")


@pytest.fixture
def fedper(model):
    code, _ = _printed()
    namespace = {}
    exec(compile(code, _DOCS, "exec"), namespace)  # noqa: S102 - our own documentation
    params = frozen_map({"w": [0, 0], "head.b": [7]})
    return namespace["FedPer"].build, replace(model, params=params, head=("head.b",))


def test_the_printed_strategy_averages_the_body_and_keeps_the_head(fedper, make_tools):
    build, model = fedper
    strategy = build(SGD, model)
    server = strategy.server_init(model, new_rng())
    updates = []
    for client, examples in (("a", [[2, 4]]), ("b", [[6, 0]])):
        tools, _ = make_tools(client, examples)
        payload = strategy.downlink(server, client)
        state, update = strategy.client_update(strategy.client_init(model), payload, tools)
        np.testing.assert_array_equal(state.tensors["params/head.b"], [7])
        updates.append(update)
    server = strategy.aggregate(server, updates, server_tools())
    assert set(server.tensors) == {"params/w"}
    np.testing.assert_allclose(server.tensors["params/w"], [2, 1])


def test_every_setting_is_documented_and_the_printed_ones_are_accepted():
    text = _DOCS.read_text() + _EACH.read_text()
    kinds = {one.settings_type() for one in STRATEGIES.values()}
    assert kinds >= {fedali.FedAliSettings, fedavg.FedAvgSettings}
    for kind in kinds | {Adam, Ala, MedianSettings, ServerStep, Sgd}:
        for name in kind.__struct_fields__:
            assert re.search(rf"`(optimiser|server)?\.?{name}`", text), f"{kind.__name__}.{name}"
    tables = [tomllib.loads(one) for one in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    (chosen,) = [one["strategy"]["settings"] for one in tables if "strategy" in one]
    training = parse_settings("fedavg", chosen, fedavg.FedAvgSettings)
    assert training.optimiser == Sgd(lr=0.05, momentum=0.9)


def test_the_strategies_that_a_browser_lacks_are_named():
    index = (_ROOT / "src" / "web" / "src" / "strategies" / "index.ts").read_text()
    there = set(re.findall(r'^  \["(\w+)", \w+\.build\]', index, re.MULTILINE))
    (lacking,) = re.findall(r"It has all but\s(.*?)\.\n", _DOCS.read_text(), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", lacking)) == DESCRIPTIONS.keys() - there


def test_the_strategies_that_take_no_aggregation_rule_are_named():
    texts = {
        _DOCS: r"description has `combines` other than `.each.`: all but (.*?), where nothing",
        _ROOT / "docs" / "aggregation.md": r"\n- (`fedsub`, which fuses.*?) have no use for a rule",
    }
    for path, where in texts.items():
        (said,) = re.findall(where, path.read_text(), re.DOTALL)
        without = {name for name, one in DESCRIPTIONS.items() if not one.takes_rule}
        assert set(re.findall(r"`(\w+)`", said)) == without


def test_the_strategies_that_show_devices_each_other_s_models_are_named():
    text = (_ROOT / "docs" / "privacy.md").read_text()
    (said,) = re.findall(r"- \*\*(.*?) send devices other devices' parameters as they are", text)
    downs = {name: " ".join(one.travels.down) for name, one in DESCRIPTIONS.items()}
    showing = {name for name, down in downs.items() if "other clients" in down}
    assert set(re.findall(r"`(\w+)`", said)) == showing


def test_the_five_systems_page_says_what_travels():
    text = (_ROOT / "docs" / "systems.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (.+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    assert [name for name, *_ in rows] == ["FedAli", "FedHP", "CDFL", "FedALA", "FedSub"]
    for name, *said in rows:
        travels = DESCRIPTIONS[name.lower()].travels
        assert said == [", ".join(one) for one in (travels.down, travels.up, travels.personal)]
