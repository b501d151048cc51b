"""The training loop, its settings, and the order of updates."""

import dataclasses
import math

import numpy as np
import pytest
from toy_model import LOCAL, SGD, frozen_map

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.common import ordered
from protofleet.strategies.optimisers import Adam, Group, Optimiser, Sgd
from protofleet.strategies.training import (
    Trainer,
    Training,
    check_batch_sizes,
    spans,
    train,
    uneven_batch,
)
from protofleet.strategies.types import Step, UnsuitableModelError, Update
from protofleet.tensors import TensorMap

_FIVE = [[1, 0], [2, 0], [3, 0], [4, 0], [5, 0]]


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [2, 2, 1] * 3), (True, [2, 2] * 3)])
def test_the_last_batch_is_kept_or_dropped(model, make_tools, drop_last, sizes):
    tools, seen = make_tools("a", _FIVE)
    training = Training(epochs=3, batch_size=2, drop_last=drop_last)
    train(model.network.copy(), tools.training, training)
    assert seen.sizes == sizes


@pytest.mark.parametrize(
    ("count", "least", "sizes"),
    [
        (5, 1, [2, 2, 1]),
        (5, 2, [2, 3]),
        (4, 2, [2, 2]),
        (3, 2, [3]),
        (2, 2, [2]),
        (1, 2, []),
        (1, 1, [1]),
        (0, 1, []),
    ],
)
def test_a_last_batch_that_is_too_small_joins_the_one_before(count, least, sizes):
    parts = list(spans(count, 2, least))
    assert [part.stop - part.start for part in parts] == sizes
    assert [i for part in parts for i in range(count)[part]] == list(range(sum(sizes)))


@pytest.mark.parametrize(
    ("count", "changes", "least", "said"),
    [
        (5, {}, 2, "a last batch of 1 example is joined to the batch before it"),
        (1, {}, 2, "1 training example is too few, nothing is trained"),
        (1, {"drop_last": True}, 2, "nothing is trained"),
        (5, {"drop_last": True}, 2, ""),
        (5, {}, 1, ""),
        (4, {}, 2, ""),
        (0, {}, 2, ""),
    ],
)
def test_what_is_done_about_a_batch_of_one_is_said(count, changes, least, said):
    text = uneven_batch(count, Training(batch_size=2, **changes), least)
    assert said in text
    assert bool(said) == bool(text)


def test_batches_that_the_programs_do_not_take_are_refused():
    check_batch_sizes(Training(batch_size=1), 1)
    with pytest.raises(InputError, match=r"setting 'batch_size': expected at least 2.*got 1"):
        check_batch_sizes(Training(batch_size=1), 2)


def test_every_epoch_sees_every_example_once_in_a_new_order(model, make_tools):
    tools, _ = make_tools("a", [[i, 0] for i in range(20)])
    orders = []

    def recording(network, batch, _rng):
        orders.append(batch["x"][:, 0].astype(int).tolist())
        return Step(loss=0.0, grads=TensorMap.zeros(network.params.layout), buffers=network.buffers)

    tools.training.grad_fns["task_loss"] = recording
    train(model.network.copy(), tools.training, Training(epochs=2, batch_size=20))
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20))
    assert orders[0] != orders[1] != sorted(orders[1])


def test_the_loss_is_the_mean_over_the_examples_of_the_last_epoch(model, make_tools):
    """Three full batches of rate 0 and one of a single example: weighted by their sizes."""
    tools, _ = make_tools("a", _FIVE)
    training = Training(epochs=2, batch_size=2, optimiser=Sgd(lr=0.0))
    trained = train(model.network.copy(), tools.training, training)
    assert trained.loss == pytest.approx(sum(i * i for i in range(1, 6)) / 5 / 2)


def test_momentum_starts_anew_every_round(model, make_tools):
    """Rate 1/2, momentum 1, mean 2: step 1 goes to 1, step 2 by another 1 + 1/2 to 2.5."""
    training = Training(epochs=2, optimiser=Sgd(lr=0.5, momentum=1.0))
    for _ in range(2):
        tools, _ = make_tools("a", [[2, 2]])
        trained = train(model.network.copy(), tools.training, training)
        np.testing.assert_allclose(trained.network.params["w"], [2.5, 2.5])


def test_the_first_adam_step_has_the_length_of_the_rate(model, make_tools):
    tools, _ = make_tools("a", [[2, -2]])
    training = Training(epochs=1, optimiser=Adam(lr=0.25))
    trained = train(model.network.copy(), tools.training, training)
    np.testing.assert_allclose(trained.network.params["w"], [0.25, -0.25], rtol=1e-5)


def test_training_moves_the_given_network_where_it_lies(model, make_tools):
    """Also the buffers, which the program writes elsewhere; a copy leaves the original alone."""
    tools, _ = make_tools("a", [[2, 2]])
    network = model.network.copy()
    trained = train(network, tools.training, Training(epochs=2, optimiser=Sgd(lr=0.5)))
    assert trained.network is network
    np.testing.assert_array_equal(network.params["w"], [1.5, 1.5])
    np.testing.assert_allclose(network.buffers[LOCAL], [[0.2, 0.2], [10.2, 10.2]], rtol=1e-6)
    np.testing.assert_array_equal(model.params.buffer, 0)
    np.testing.assert_array_equal(model.buffers[LOCAL], [[0, 0], [10, 10]])


def test_a_trainer_shows_its_network_as_it_is_between_steps(model, make_tools):
    tools, _ = make_tools("a", [[2, 2]])
    trainer = Trainer(model.network.copy(), tools.training, Training(optimiser=Sgd(lr=0.5)))
    trainer.step(np.array([0]))
    np.testing.assert_array_equal(trainer.network.params["w"], [1, 1])
    np.testing.assert_allclose(trainer.network.buffers[LOCAL][0], [0.1, 0.1], rtol=1e-6)


def test_a_loss_that_is_not_finite_names_client_and_objective(model, make_tools):
    tools, _ = make_tools("kitchen", [[2, 2]])
    tools.training.grad_fns["task_loss"] = lambda network, _batch, _rng: Step(
        loss=math.nan, grads=network.params, buffers=network.buffers
    )
    with pytest.raises(InputError, match="client 'kitchen': expected a finite loss of 'task_loss'"):
        train(model.network.copy(), tools.training, Training())


def test_fedali_s_defaults_are_the_common_training_and_the_paper_s_prototypes(model):
    settings = build("fedali", {}, model).settings
    assert (settings.epochs, settings.batch_size, settings.drop_last) == (5, 16, False)
    assert settings.optimiser == Adam(lr=0.002, beta1=0.9, beta2=0.999, eps=1e-7, eps_form="keras")
    assert (settings.beta, settings.keep_local_prototypes) == (0.2, False)
    assert (settings.kmeans_max_iter, settings.kmeans_tol) == (300, 1e-4)


def test_settings_come_from_plain_tables(model):
    settings = build("fedavg", {**SGD, "batch_size": 8}, model).settings
    assert settings.optimiser == Sgd(lr=0.5)
    assert (settings.epochs, settings.batch_size) == (1, 8)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("fedsgd", {}, "strategy 'fedsgd': unknown; expected one of .*fedali, .*fedavg"),
        ("fedavg", {"epoch": 1}, "'fedavg': unknown key `epoch`; known are epochs, batch_size, "),
        ("fedavg", {"beta": 0.2}, "unknown key `beta`"),
        ("fedali", {"alp_update": "bulk_code"}, "unknown key `alp_update`"),
        ("fedavg", {"epochs": "5"}, "`epochs`: expected a whole number, got text"),
        ("fedavg", {"epochs": 0}, "'fedavg': setting 'epochs': expected a number between 1 and"),
        ("fedali", {"batch_size": 0}, "setting 'batch_size'"),
        ("fedali", {"beta": 1.5}, "setting 'beta': expected a number between 0 and 1, got 1.5"),
        ("fedali", {"kmeans_tol": math.nan}, "setting 'kmeans_tol'"),
        (
            "fedavg",
            {"optimiser": {"lr": 1.0}},
            "a key `kind`, one of adam, sgd, got none",
        ),
        (
            "fedavg",
            {"optimiser": {"kind": "lion"}},
            "one of adam, sgd, got 'lion'",
        ),
        (
            "fedavg",
            {"optimiser": {"kind": "sgd", "beta1": 0.9}},
            "`beta1`; known are kind, lr, m",
        ),
        ("fedavg", {"optimiser": {"kind": "sgd", "lr": -1.0}}, "setting 'optimiser.lr'"),
        ("fedavg", {"optimiser": {"kind": "adam", "beta2": 1.0}}, "setting 'optimiser.beta2'"),
    ],
)
def test_wrong_names_and_settings_are_named(model, name, settings, message):
    with pytest.raises(InputError, match=message):
        build(name, settings, model)


def test_a_client_s_second_update_is_refused():
    tensors = frozen_map({"w": [1.0]})
    update = Update(client_id="a", round_id=1, num_examples=1, tensors=tensors)
    with pytest.raises(InputError, match="expected ascending client ids, got 'a' after 'a'"):
        list(ordered([update, update]))


def test_clipping_leaves_out_what_does_not_move():
    """Gradients 3, 4 move (norm 5, clipped to 1); the frozen 100 neither counts nor moves."""
    params = frozen_map({"a": [0, 0], "b": [0]}).copy()
    grads = frozen_map({"a": [3, 4], "b": [100]}).copy()
    optimiser = Optimiser(params.layout, [Group(optimiser=Sgd(lr=1.0), names=["a"])])
    optimiser.clip(grads, 1.0)
    optimiser.step(params, grads)
    np.testing.assert_allclose(params["a"], [-0.6, -0.8], rtol=1e-6)
    np.testing.assert_array_equal(params["b"], 0)


def _rewriting(model):
    buffers = frozen_map({**model.buffers, "w_rewritten": [0, 0]})
    return dataclasses.replace(model, buffers=buffers)


@pytest.mark.parametrize(
    "name",
    ["apfl", "apple", "fedala", "feddyn", "partialfed", "perfedavg", "pfedme", "scaffold"],
)
def test_a_model_that_sets_parameters_itself_needs_gradients_where_it_is(model, name):
    with pytest.raises(UnsuitableModelError, match=f"'{name}': .* got one that sets 'w'"):
        build(name, {}, _rewriting(model))


@pytest.mark.parametrize("name", ["ditto", "fedamp", "fedavg", "fedprox"])
def test_such_a_model_is_averaged_but_not_mixed(model, name):
    build(name, {}, _rewriting(model))
    with pytest.raises(UnsuitableModelError, match=f"'{name}': .* got one that sets 'w'"):
        build(name, {"local_init": {"kind": "ala"}}, _rewriting(model))
