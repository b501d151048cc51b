"""Tensors beside the shared parameters, the server's step, and who is counted."""

from functools import partial

import numpy as np
import pytest
from toy_model import array, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import fedavg
from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.averaging import (
    Extra,
    Participants,
    ServerStep,
    SharedTraining,
    add_over_population,
    averaging,
    share_all,
)
from protofleet.strategies.types import ServerTools, Update
from protofleet.tensors import Layout, TensorMap


def _strategy(model, *extras, **step):
    sharing = share_all(
        fedavg.DESCRIPTION, SharedTraining(), model, tuple(extras), ServerStep(**step)
    )
    return averaging(sharing, fedavg.client_update)


def _update(client, w, n=1, **extra):
    tensors = {"params/w": array(w), **{f"{key}/w": array(v) for key, v in extra.items()}}
    return Update(client_id=client, round_id=1, num_examples=n, tensors=tensors)


def _merge(seen, old, mean, among):
    seen.append((old.buffer.tolist(), mean.buffer.tolist(), among))
    return TensorMap(old.layout, old.buffer + 10 * mean.buffer)


def test_extras_go_down_as_the_server_keeps_them_and_up_to_their_own_rule(model):
    """Two extras: the first has one prefix down and another up, the second another shape."""
    seen = []
    first = Extra.beside(model, down="h/", up="dh/")
    second = Extra(
        down=Layout.of({"k/w": (1,)}), up=Layout.of({"dk/w": (1,)}), merge=partial(_merge, seen)
    )
    strategy = _strategy(model, first, second)
    server = strategy.server_init(model, new_rng())
    assert {n: v.tolist() for n, v in strategy.downlink(server, "a").tensors.items()} == {
        "params/w": [0, 0],
        "h/w": [0, 0],
        "k/w": [0],
    }
    updates = [
        _update("a", [2, 4], 9, dh=[1, 0], dk=[1]),
        _update("b", [4, 0], 1, dh=[0, 2], dk=[3]),
        _update("c", [99, 99], 0, dh=[99, 99], dk=[99]),
    ]
    server = strategy.aggregate(server, updates, server_tools())
    assert strategy.downlink(server, "a").tensors.keys() == {"params/w", "h/w", "k/w"}
    np.testing.assert_array_equal(server.tensors["params/w"], [3, 2])
    np.testing.assert_array_equal(server.tensors["h/w"], [0.5, 1])
    np.testing.assert_array_equal(server.tensors["k/w"], [20])
    among = Participants(clients=2, before=0, population=2)
    assert seen == [([0], [2], among)]


def test_a_rule_that_reads_updates_again_counts_extras_once(model):
    strategy = _strategy(model, Extra.beside(model, down="h/", up="dh/"))
    tools = server_tools()
    median = ServerTools(
        grad_fns={}, predict=None, rng=tools.rng, aggregator=build_rule("median", {})
    )
    server = strategy.server_init(model, new_rng())
    updates = [_update(name, [i, i * i], dh=[i, 3]) for i, name in enumerate("abc")]
    server = strategy.aggregate(server, updates, median)
    np.testing.assert_array_equal(server.tensors["params/w"], [1, 1])
    np.testing.assert_array_equal(server.tensors["h/w"], [1, 3])


def test_the_population_is_who_ever_took_part_and_survives_a_round_without(model):
    strategy = _strategy(model, Extra.beside(model, down="h/", up="dh/"))
    server = strategy.server_init(model, new_rng())
    one = [_update("a", [0, 0], dh=[6, 0])]
    server = strategy.aggregate(server, one, server_tools())
    np.testing.assert_array_equal(server.tensors["h/w"], [6, 0])
    nobody = strategy.aggregate(server, [_update("b", [0, 0], 0, dh=[1, 1])], server_tools())
    np.testing.assert_array_equal(nobody.tensors["h/w"], [6, 0])
    more = [_update(name, [0, 0], dh=[0, 3]) for name in "abc"]
    after = strategy.aggregate(nobody, more, server_tools())
    np.testing.assert_array_equal(after.tensors["h/w"], [2, 3])


def test_a_stated_population_divides_whoever_takes_part(model):
    strategy = _strategy(model, Extra.beside(model, down="h/", up="dh/"), population=8)
    server = strategy.server_init(model, new_rng())
    assert server.tensors.keys() == {"params/w", "h/w"}
    for name in "ab":
        server = strategy.aggregate(server, [_update(name, [0, 0], dh=[4, 8])], server_tools())
    np.testing.assert_array_equal(server.tensors["h/w"], [1, 2])
    assert server.tensors.keys() == {"params/w", "h/w"}


def test_the_server_goes_a_share_of_the_way(model):
    strategy = _strategy(model, lr=0.25, by_examples=True)
    server = strategy.server_init(model, new_rng())
    updates = [_update("a", [4, 0], 3), _update("b", [0, 8], 1)]
    server = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_array_equal(server.tensors["params/w"], [0.75, 0.5])
    assert server.tensors.keys() == {"params/w"}


def test_an_extra_that_an_update_lacks_is_named(model):
    strategy = _strategy(model, Extra.beside(model, down="h/", up="dh/"))
    server = strategy.server_init(model, new_rng())
    with pytest.raises(InputError, match=r"tensor 'dh/w': expected .* got nothing"):
        strategy.aggregate(server, [_update("a", [0, 0])], server_tools())


def test_an_extra_of_another_shape_is_named(model):
    extra = Extra.beside(model, down="h/", up="dh/")
    assert extra.pick({}).buffer.tolist() == [0, 0]
    with pytest.raises(InputError, match="tensor 'h/w': expected"):
        extra.pick({"h/w": array([1])})


def test_the_mean_over_a_population_is_summed_in_float64():
    """One newcomer among 2^24 others changes a mean of ones by less than float32 can hold."""
    layout = Layout.of({"w": (1,)})
    old, change = (TensorMap(layout, array([value])) for value in (1, 2**24))
    among = Participants(clients=1, before=2**24, population=2**24)
    assert add_over_population(old, change, among)["w"].tolist() == [2.0]
