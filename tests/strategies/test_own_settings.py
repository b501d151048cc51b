"""A law: what a method has among its settings changes what a federation computes.

A term that is read from the settings and then forgotten changes no bit. Three rounds of four
clients, and the fit after them, with each setting at another value.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
from laws.cases import Case, case_of
from toy_model import SGD, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import STRATEGIES, build
from protofleet.strategies.optimisers import Adam, Sgd
from protofleet.strategies.shared_model import SharedTraining

_CLIENTS = {"a": [[0, 0], [4, 2]], "b": [[2, 6]], "c": [[8, 8], [1, 3], [5, 5]], "nobody": []}

_BEHIND_A_TOY = {
    "cdfl": {
        "factor",
        "pixelise",
        "server_batch_size",
        "tau",
        "validation",
        "value_range",
    },
    "fedali": {"kmeans_empty", "kmeans_max_iter", "kmeans_tol"},
    "fedfomo": {"epsilon", "validation"},
    "fedhkd": {"noise_draw", "prediction_weight"},
    "fedhome": {"neighbours"},
    "fedhp": {"anchor_weight", "regulariser"},
    "fedpac": {"head"},
    "fedphp": {"transfer"},
    "fedsub": {"literal_shares", "neighbours", "restarts", "subnetworks"},
    "local": {"keep_best"},
    "partialfed": {"loaded", "min_temperature", "mode"},
    "perfedavg": {"delta"},
    "protohar": {"head"},
}
"""What models, programs and data this small do not show; each has a test in its method's file."""


def _values(hint, value):
    """Others that a setting may have, the legal ones among them."""
    choices = [
        one
        for part in (hint, *get_args(hint))
        if get_origin(part) is Literal
        for one in get_args(part)
    ]
    if choices:
        return [one for one in choices if one != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, Adam | Sgd):
        return [{"kind": "sgd", "lr": 0.37}]
    if isinstance(value, msgspec.Struct):  # of the server
        return [{"lr": 0.5}, {"population": 50}]
    if isinstance(value, int | float):
        return [type(value)(other) for other in (0, value * 2, value / 2, value + 1)]
    return [1, 1.5, 0.5, "w"]


def _computed(name, case):
    """All tensors and losses of three rounds and the fit after them."""
    strategy = build(name, case.settings, case.model)
    server, states, found = strategy.server_init(case.model, new_rng()), {}, []
    for round_id in (1, 2, 3, 4):
        updates = []
        for client, examples in _CLIENTS.items():
            tools, _ = case.make_tools(client, examples)
            state = states.get(client) or strategy.client_init(case.model)
            payload = dataclasses.replace(strategy.downlink(server, client), final=round_id == 4)
            states[client], update = strategy.client_update(state, payload, tools)
            updates.append(case.update(update, tools))
            found += [states[client].tensors, update.tensors, {"loss": np.array(update.loss)}]
        server = strategy.aggregate(server, updates, case.server_tools())
        found.append(server.tensors)
    return found


def _equal(one, other):
    return all(
        mine.keys() == theirs.keys()
        and all(mine[key].tobytes() == theirs[key].tobytes() for key in mine)
        for mine, theirs in zip(one, other, strict=True)
    )


def _moves(name, case, before, setting, value):
    changed = dataclasses.replace(case, settings={**case.settings, setting: value})
    try:
        return not _equal(before, _computed(name, changed))
    except (InputError, TypeError):  # no legal value, or a toy without the program
        return False


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_setting_of_a_method_changes_what_is_computed(name, model, make_tools):
    toy = Case(model=model, settings=SGD, make_tools=make_tools, server_tools=server_tools)
    case = case_of(name, make_tools, toy)
    case = dataclasses.replace(case, settings={**case.settings, "epochs": 3})
    kind, before = STRATEGIES[name].settings_type(), _computed(name, case)
    assert _equal(before, _computed(name, case))
    hints, chosen = get_type_hints(kind), build(name, case.settings, case.model).settings
    own = set(kind.__struct_fields__) - set(SharedTraining.__struct_fields__)
    still = {
        setting
        for setting in own
        if not any(
            _moves(name, case, before, setting, value)
            for value in _values(hints[setting], getattr(chosen, setting))
        )
    }
    assert still == _BEHIND_A_TOY.get(name, set())
