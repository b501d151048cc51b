"""Tensors beside the shared parameters, the server's step, and who is counted."""

from dataclasses import replace

import numpy as np
from toy_model import array, new_rng, server_tools

from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.shared_model import (
    PopulationMean,
    ServerStep,
    SharedTraining,
)
from protofleet.strategies.types import Update
from protofleet.tensors import Layout


def _strategy(model, extra, **step):
    server = ServerStep(**step)
    return FedAvg(SharedTraining(), model, extra=extra, server=server)


def _control(model, population=0):
    return PopulationMean.of_params(model, "h/", population)


def _update(client, w, n=1, **extra):
    tensors = {"params/w": array(w), **{f"change/{key}/w": array(v) for key, v in extra.items()}}
    return Update(client_id=client, round_id=1, num_examples=n, tensors=tensors)


def test_extra_tensors_go_down_as_a_mean_and_up_as_changes(model):
    strategy = _strategy(model, _control(model))
    server = strategy.server_init(model, new_rng())
    assert {n: v.tolist() for n, v in strategy.downlink(server, "a").tensors.items()} == {
        "params/w": [0, 0],
        "h/w": [0, 0],
    }
    np.testing.assert_array_equal(strategy.client_init(model).tensors["h/w"], [0, 0])
    assert strategy.uplink.required.keys() == {"params/w", "change/h/w"}
    updates = [
        _update("a", [2, 4], 9, h=[1, 0]),
        _update("b", [4, 0], 1, h=[0, 2]),
        _update("c", [99, 99], 0, h=[99, 99]),
    ]
    server = strategy.aggregate(server, updates, server_tools())
    assert strategy.downlink(server, "a").tensors.keys() == {"params/w", "h/w"}
    np.testing.assert_array_equal(server.tensors["params/w"], [3, 2])
    np.testing.assert_array_equal(server.tensors["h/w"], [0.5, 1])


def test_extra_tensors_may_have_other_shapes_than_the_parameters(model):
    extra = PopulationMean(down=Layout.of({"k/w": (1,)}))
    strategy = _strategy(model, extra)
    server = strategy.server_init(model, new_rng())
    updates = [_update(name, [0, 0], k=[value]) for name, value in (("a", 1), ("b", 3))]
    server = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_array_equal(server.tensors["k/w"], [2])


def test_a_rule_that_reads_updates_again_counts_extra_tensors_once(model):
    strategy = _strategy(model, _control(model))
    median = replace(server_tools(), aggregator=build_rule("median", {}))
    server = strategy.server_init(model, new_rng())
    updates = [_update(name, [i, i * i], h=[i, 3]) for i, name in enumerate("abc")]
    server = strategy.aggregate(server, updates, median)
    np.testing.assert_array_equal(server.tensors["params/w"], [1, 1])
    np.testing.assert_array_equal(server.tensors["h/w"], [1, 3])


def test_the_population_is_who_ever_took_part_and_survives_a_round_without(model):
    strategy = _strategy(model, _control(model))
    server = strategy.server_init(model, new_rng())
    one = [_update("a", [0, 0], h=[6, 0])]
    server = strategy.aggregate(server, one, server_tools())
    np.testing.assert_array_equal(server.tensors["h/w"], [6, 0])
    nobody = strategy.aggregate(server, [_update("b", [0, 0], 0, h=[1, 1])], server_tools())
    np.testing.assert_array_equal(nobody.tensors["h/w"], [6, 0])
    more = [_update(name, [0, 0], h=[0, 3]) for name in "abc"]
    after = strategy.aggregate(nobody, more, server_tools())
    np.testing.assert_array_equal(after.tensors["h/w"], [2, 3])


def test_a_stated_population_divides_whoever_takes_part(model):
    strategy = _strategy(model, _control(model, population=8))
    server = strategy.server_init(model, new_rng())
    assert server.tensors.keys() == {"params/w", "h/w"}
    for name in "ab":
        server = strategy.aggregate(server, [_update(name, [0, 0], h=[4, 8])], server_tools())
    np.testing.assert_array_equal(server.tensors["h/w"], [1, 2])


def test_a_population_that_turns_out_larger_than_stated_is_counted(model):
    """Two, with two; then three: (2 · 6 + 3) / 3."""
    strategy = _strategy(model, _control(model, population=2))
    server = strategy.server_init(model, new_rng())
    for names, value, expected in (("ab", 6, 6), ("c", 3, 5)):
        updates = [_update(name, [0, 0], h=[value, 0]) for name in names]
        server = strategy.aggregate(server, updates, server_tools())
        np.testing.assert_array_equal(server.tensors["h/w"], [expected, 0])


def test_the_server_goes_a_share_of_the_way(model):
    strategy = _strategy(model, PopulationMean(), lr=0.25, by_examples=True)
    server = strategy.server_init(model, new_rng())
    updates = [_update("a", [4, 0], 3), _update("b", [0, 8], 1)]
    server = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_array_equal(server.tensors["params/w"], [0.75, 0.5])
    assert server.tensors.keys() == {"params/w"}


def test_the_mean_over_a_population_is_summed_in_float64(model):
    """Many small changes on a large mean, each less than float32 can hold there."""
    strategy = _strategy(model, _control(model, population=4))
    server = strategy.server_init(model, new_rng())
    big = [_update("a", [0, 0], h=[2**26, 0])]
    server = strategy.aggregate(server, big, server_tools())
    small = [_update(name, [0, 0], h=[4, 0]) for name in "abcd"]
    server = strategy.aggregate(server, small, server_tools())
    np.testing.assert_array_equal(server.tensors["h/w"], [2**24 + 4, 0])
