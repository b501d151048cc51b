"""Laws that every strategy keeps."""

import dataclasses

import numpy as np
import pytest
from toy_model import SGD

from protofleet.strategies import DESCRIPTIONS, STRATEGIES, build
from protofleet.wire import blobs

_EXAMPLES = {
    "a": [[2, 4], [1, 3]],
    "b": [[6, 0], [6, 2], [7, 4]],
    "c": [[0.1, 0.7]],
    "nobody": [],
}

pytestmark = pytest.mark.parametrize("name", sorted(STRATEGIES))


def one_round(strategy, model, server, make_tools, clients):
    updates = []
    for client in clients:
        tools, _ = make_tools(client, _EXAMPLES[client])
        payload = strategy.downlink(server, client)
        updates.append(strategy.client_update(strategy.client_init(model), payload, tools)[1])
    return updates


def assert_same(one, two):
    assert one.round_id == two.round_id
    assert one.tensors.keys() == two.tensors.keys()
    for key, value in one.tensors.items():
        np.testing.assert_array_equal(value, two.tensors[key], err_msg=key)


def through_a_file(state):
    """Saved and loaded as the device's store and the ledger do."""
    tensors, _ = blobs.decode(blobs.encode(state.tensors, {}), max_bytes=1 << 20)
    return dataclasses.replace(state, tensors=tensors)


def test_one_client_gets_its_own_params_back(name, model, make_tools):
    strategy = build(name, SGD, model)
    server = strategy.server_init(model)
    (update,) = one_round(strategy, model, server, make_tools, ["b"])
    after = strategy.aggregate(server, [update])
    np.testing.assert_array_equal(after.tensors["params/w"], update.tensors["params/w"])


def test_permuted_updates_change_no_bit(name, model, make_tools):
    strategy = build(name, SGD, model)
    server = strategy.server_init(model)
    updates = one_round(strategy, model, server, make_tools, ["a", "b", "c"])
    expected = strategy.aggregate(server, updates)
    for order in ((2, 1, 0), (1, 2, 0), (2, 0, 1)):
        assert_same(strategy.aggregate(server, [updates[i] for i in order]), expected)


def test_a_client_without_examples_has_no_effect(name, model, make_tools):
    strategy = build(name, SGD, model)
    server = strategy.server_init(model)
    updates = one_round(strategy, model, server, make_tools, ["a", "b", "nobody"])
    assert updates[2].num_examples == 0
    assert np.isnan(updates[2].loss)
    assert_same(strategy.aggregate(server, updates), strategy.aggregate(server, updates[:2]))
    alone = strategy.aggregate(server, updates[2:])
    assert alone.round_id == 1
    for key, value in server.tensors.items():
        np.testing.assert_array_equal(alone.tensors[key], value)


def test_state_survives_save_and_load(name, model, make_tools):
    strategy = build(name, SGD, model)
    server = strategy.server_init(model)
    payload = strategy.downlink(server, "a")
    state, update = strategy.client_update(
        strategy.client_init(model), payload, make_tools("a", _EXAMPLES["a"])[0]
    )
    server = strategy.aggregate(server, [update])
    results = [
        strategy.client_update(kept, strategy.downlink(sent, "a"), make_tools("a", [[5, 5]])[0])
        for kept, sent in ((state, server), (through_a_file(state), through_a_file(server)))
    ]
    for one, two in zip(*results, strict=True):
        assert_same(one, two)
    for one, two in zip(
        strategy.server_model(server), strategy.server_model(through_a_file(server)), strict=True
    ):
        np.testing.assert_array_equal(one.buffer, two.buffer)


def test_the_same_rng_gives_the_same_bits(name, model, make_tools):
    strategy = build(name, {**SGD, "batch_size": 2}, model)
    server = strategy.server_init(model)
    once, again = (one_round(strategy, model, server, make_tools, ["b"]) for _ in range(2))
    assert_same(once[0], again[0])


def test_a_lazy_sequence_of_updates_is_read_once_and_in_order(name, model, make_tools):
    strategy = build(name, SGD, model)
    server = strategy.server_init(model)
    updates = one_round(strategy, model, server, make_tools, ["a", "b"])

    class Lazy:
        reads = 0

        def __len__(self):
            return len(updates)

        def __iter__(self):
            for update in updates:
                Lazy.reads += 1
                yield update

    assert_same(strategy.aggregate(server, Lazy()), strategy.aggregate(server, updates))
    assert Lazy.reads == 2


def test_the_record_says_what_its_description_says(name, model):
    strategy = build(name, {}, model)
    description = DESCRIPTIONS[name]
    for field in dataclasses.fields(description):
        assert getattr(strategy, field.name) == getattr(description, field.name)
