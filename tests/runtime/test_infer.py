"""Evaluation in batches."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from protofleet.errors import InputError, ProvisionError
from protofleet.runtime import open_programs
from protofleet.tensors import Network, TensorMap


@pytest.fixture
def network(bundle: Any) -> Network:
    params, buffers = (TensorMap.zeros(layout) for layout in bundle.layouts)
    params["w"][...] = [1, 2, 3]
    return Network(params=params, buffers=buffers)


def expected(x: np.ndarray, batch_size: int) -> np.ndarray:
    parts = [x[i : i + batch_size] for i in range(0, len(x), batch_size)]
    return np.concatenate([(part - part.sum(0)) * [1, 2, 3] for part in parts])


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(75, 3)).astype(np.float32)


def test_examples_are_evaluated_in_batches_of_32_in_order_with_the_rest_kept(bundle, network, x):
    logits = open_programs(bundle).predict(network, x)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected(x, 32), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 7, 75, 100])
def test_a_call_can_choose_its_batches(bundle, network, x, batch_size):
    logits = open_programs(bundle).predict(network, x, batch_size=batch_size)
    np.testing.assert_allclose(logits, expected(x, batch_size), rtol=1e-4, atol=1e-5)


def test_the_default_batch_is_set_when_programs_are_opened(bundle, network, x):
    logits = open_programs(bundle, eval_batch=10).predict(network, x)
    np.testing.assert_allclose(logits, expected(x, 10), rtol=1e-4, atol=1e-5)


def test_features_are_the_other_program(bundle, network, x):
    features = open_programs(bundle).features(network, x, batch_size=5)
    np.testing.assert_allclose(features, expected(x, 5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_size", [None, 1, 7, 75])
def test_hidden_layers_come_by_their_names(bundle, make_layered, network, x, batch_size):
    """All rows in order, in batches; features and other outputs are not among them."""
    bundle.add("features", *make_layered())
    programs = open_programs(bundle)
    for sign in (1, -1):
        layers = programs.layers(network, sign * x, batch_size=batch_size)
        assert list(layers) == ["body.0", "body.2"]
        np.testing.assert_allclose(layers["body.0"], sign * x * [1, 2, 3], rtol=1e-6)
        np.testing.assert_allclose(layers["body.2"], sign * x * [1, 4, 9], rtol=1e-6)
        np.testing.assert_allclose(
            programs.features(network, x, batch_size=5), expected(x, 5), rtol=1e-4, atol=1e-5
        )


def test_no_examples_give_empty_layers(bundle, make_layered, network, x):
    bundle.add("features", *make_layered())
    assert open_programs(bundle).layers(network, x[:0])["body.2"].shape == (0, 3)


def test_features_and_layers_share_a_session(bundle, make_layered, network, x):
    """One more would hold the program in memory twice."""
    bundle.add("features", *make_layered())
    programs = open_programs(bundle)
    programs.features(network, x)
    runner = programs._features._source.runner
    programs.layers(network, x)
    assert programs._features._source.runner is runner


def test_a_bundle_without_layers_is_named(bundle, network, x):
    with pytest.raises(ProvisionError, match=r"bundle 'hand-made': .* no outputs 'layers\.<name>'"):
        open_programs(bundle).layers(network, x)


def test_a_layer_that_is_not_one_row_per_example_is_refused(bundle, make_layered, make_port):
    program, nodes = make_layered()
    wrong = make_port("h0", "output", (3,), key="layers.body.0")
    outputs = (program.outputs[0], wrong, *program.outputs[2:])
    bundle.add("features", msgspec.structs.replace(program, outputs=outputs), nodes)
    with pytest.raises(ProvisionError, match=r"'layers\.body\.0' of \(batch, …\), got \(3,\)"):
        open_programs(bundle)


def test_no_examples_give_no_rows(bundle, network, x):
    assert open_programs(bundle).predict(network, x[:0]).shape == (0, 3)


def test_an_earlier_result_is_not_overwritten(bundle, network, x):
    programs = open_programs(bundle)
    first = programs.predict(network, x)
    kept = first.copy()
    programs.predict(network, -x)
    np.testing.assert_array_equal(first, kept)


def test_parameters_are_read_where_they_lie(bundle, network, x):
    programs = open_programs(bundle)
    first = programs.predict(network, x)
    network.params.buffer *= 2
    np.testing.assert_allclose(programs.predict(network, x), 2 * first, rtol=1e-5)


def test_a_bundle_without_the_program_says_so(bundle, network, x):
    del bundle.programs["features"]
    with pytest.raises(ProvisionError, match="no program 'features'"):
        open_programs(bundle).features(network, x)


@pytest.mark.parametrize("wrong", [np.zeros((2, 4), "f4"), np.zeros((2, 3)), np.zeros(3, "f4")])
def test_examples_of_another_shape_or_dtype_are_refused(bundle, network, wrong):
    with pytest.raises(InputError, match="input 'x': expected"):
        open_programs(bundle).predict(network, wrong)


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("batch_size", -3)])
def test_an_empty_batch_is_refused(bundle, network, x, name, value):
    with pytest.raises(InputError, match=name):
        open_programs(bundle).predict(network, x, **{name: value})


@pytest.mark.parametrize("name", ["threads", "eval_batch"])
def test_a_number_below_one_is_refused(bundle, name):
    with pytest.raises(InputError, match=f"{name}: expected at least 1, got 0"):
        open_programs(bundle, **{name: 0})
