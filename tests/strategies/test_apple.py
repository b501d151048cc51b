"""APPLE against its published equations, round by round."""

import dataclasses

import numpy as np
import pytest
from closed_form import COHORTS
from oracle_errors import OracleRounds
from oracles.apple import Apple
from quadratic_clients import (
    COUNTS,
    CURVATURES,
    TARGETS,
    QuadraticClients,
    flat,
    gradients,
    relative_error,
    start,
)
from toy_model import changed, new_rng, server_tools

from protofleet.errors import InputError, RefusedError
from protofleet.strategies import build
from protofleet.strategies.common import client_key
from protofleet.strategies.types import Payload, Update

_LR, _STEPS = 0.2, 3
_SETTINGS = {"epochs": _STEPS, "optimiser": {"kind": "sgd", "lr": _LR}}
_BY_KEY = {client_key(name): name for name in TARGETS}


def _clients(make_tools, **settings):
    return QuadraticClients(build("apple", {**_SETTINGS, **settings}, start()), make_tools)


def _names(clients, name):
    """Whose core models a client was sent."""
    return [_BY_KEY[key] for key in clients.sent[name].tensors["keys"].tolist()]


@pytest.mark.parametrize("models", [0, 1, 2])
@pytest.mark.parametrize(("relation_lr", "mu", "rounds"), [(0.02, 0.5, 4), (0.005, 0.1, 100)])
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(
    make_tools, models, relation_lr, mu, rounds
):
    known = {"relation_lr": relation_lr, "mu": mu}
    clients = _clients(make_tools, models=models, penalty_rounds=rounds, **known)
    oracle = Apple(
        gradients(), COUNTS, start().params.buffer, lr=_LR, steps=_STEPS, rounds=rounds, **known
    )
    rounds = OracleRounds("APPLE", COHORTS, 2e-6)
    for cohort in COHORTS:
        clients.round(cohort)
        received = {name: _names(clients, name) for name in cohort}
        assert all(name not in others for name, others in received.items())
        assert models == 0 or all(len(others) <= models for others in received.values())
        oracle.round(received)
        for name in cohort:
            tensors = clients.states[name].tensors
            rounds.agree(flat(tensors, "core/"), oracle.cores[name])
            rounds.agree(flat(tensors), oracle.personal[name])
            kept = clients.server.tensors[f"client/{name}"]
            np.testing.assert_array_equal(kept, flat(tensors, "core/"))
            order = [_BY_KEY[key] for key in tensors["met/keys"].tolist()]
            if oracle.round_id == 1:
                continue
            expected = [oracle.relations[name][other] for other in [*order, name]]
            rounds.agree(tensors["relations"], expected)
    counts = [COUNTS[name] for name in sorted(COUNTS)]
    np.testing.assert_array_equal(clients.server.tensors["examples"], counts)


def test_a_regression_moves_relations_by_its_loss_in_squares_of_its_targets(make_tools):
    """Targets of 20 and -20: an η_2 as of a loss that is 400 times smaller; μ stays what it is."""
    unit, lr, mu = 400, 0.8, 0.5

    def make_regression(client_id, examples):
        tools, seen = make_tools(client_id, examples)
        y = np.where(np.arange(len(examples)) % 2, -20, 20).astype(np.float32)
        return changed(tools, y=y[:, None]), seen

    model = dataclasses.replace(start(), task="regression")
    strategy = build("apple", {**_SETTINGS, "relation_lr": lr, "mu": mu}, model)
    clients = QuadraticClients(strategy, make_regression)
    scaled = {"relation_lr": lr / unit, "mu": mu * unit}
    oracle = Apple(
        gradients(), COUNTS, start().params.buffer, lr=_LR, steps=_STEPS, rounds=20, **scaled
    )
    for _ in range(3):
        clients.round("abcd")
        oracle.round({name: _names(clients, name) for name in "abcd"})
    for name in "abcd":
        tensors = clients.states[name].tensors
        order = [_BY_KEY[key] for key in tensors["met/keys"].tolist()]
        expected = [oracle.relations[name][other] for other in [*order, name]]
        assert relative_error(tensors["relations"], expected) < 2e-6


def test_all_are_sent_or_as_many_as_are_asked_for_in_turn(make_tools):
    for models, most in ((0, 3), (2, 2)):
        clients = _clients(make_tools, models=models)
        clients.round("abcd")
        seen = set()
        for _ in range(6):
            clients.round("a")
            names = _names(clients, "a")
            assert len(names) == most
            seen |= set(names)
        assert seen == set("bcd")


def test_clients_of_a_kind_count_for_more_than_others(make_tools):
    """a and b want nearly the same, c and d too. Without a penalty the weights say so."""
    clients = _clients(make_tools, relation_lr=0.02, mu=0.0)
    for _ in range(40):
        clients.round("abcd")
    for name, kin in zip("abcd", "badc", strict=True):
        tensors = clients.states[name].tensors
        order = [_BY_KEY[key] for key in tensors["met/keys"].tolist()]
        assert order[int(tensors["relations"][:-1].argmax())] == kin


def test_the_first_round_collects_and_trains_nothing(make_tools):
    """In the second all know each other, and start from the bundle's model, as in the paper."""
    clients = _clients(make_tools, relation_lr=0.0)
    for update in clients.round("abcd"):
        np.testing.assert_array_equal(flat(update.tensors, "own/"), start().params.buffer)
        assert np.isnan(update.loss)
    (update,) = clients.round("a")
    tensors = clients.states["a"].tensors
    order = [*(_BY_KEY[key] for key in tensors["met/keys"].tolist()), "a"]
    shares = [COUNTS[name] / sum(COUNTS.values()) for name in order]
    np.testing.assert_allclose(tensors["relations"], shares)
    assert np.abs(flat(update.tensors, "own/") - start().params.buffer).max() > 0.01


def test_a_client_that_stays_alone_trains_alone(make_tools):
    clients = _clients(make_tools, relation_lr=0.0)
    clients.round("a")
    (update,) = clients.round("a")
    w = start().params.buffer.astype(np.float64)
    for _ in range(_STEPS):
        w = w - _LR * gradients()["a"](w)
    assert relative_error(flat(update.tensors, "own/"), w) < 1e-6
    np.testing.assert_array_equal(clients.states["a"].tensors["relations"], [1])


def test_a_device_without_examples_infers_with_the_mean_of_the_others(make_tools):
    clients = _clients(make_tools, relation_lr=0.0)
    updates = clients.round("ab")
    tools, _ = make_tools("z", [])
    strategy = clients.strategy
    state, update = strategy.client_update(
        strategy.client_init(start()), strategy.downlink(clients.server, "z"), tools
    )
    assert update.num_examples == 0
    a, b = (flat(one.tensors, "own/") for one in updates)
    np.testing.assert_allclose(flat(state.tensors), (2 * a + 3 * b) / 5, rtol=1e-6)


def test_whoever_is_not_sent_any_more_is_forgotten_unless_models_are_kept(make_tools):
    """A payload with nobody: with all, the client is alone again; with some, it still knows."""
    for models, left in ((0, 0), (2, 2)):
        clients = _clients(make_tools, models=models)
        clients.round("abc")
        clients.round("a")
        nobody = {
            "others": np.zeros((0, 5), np.float32),
            "keys": np.zeros(0, np.int64),
            "examples": np.zeros(0, np.int64),
        }
        payload = Payload(round_id=3, tensors=nobody)
        state, _ = clients.strategy.client_update(clients.states["a"], payload, clients.tools("a"))
        assert len(state.tensors["met/keys"]) == left
        assert ("met/others" in state.tensors) == bool(models)
        assert np.isfinite(flat(state.tensors)).all()


def test_a_coordinator_that_sends_nonsense_breaks_no_device(make_tools):
    """One client twice, and a negative number of examples."""
    clients = _clients(make_tools)
    clients.round("a")
    tensors = {
        "others": np.ones((2, 5), np.float32),
        "keys": np.array([7, 7], np.int64),
        "examples": np.array([-5, -5], np.int64),
    }
    payload = Payload(round_id=2, tensors=tensors)
    state, update = clients.strategy.client_update(clients.states["a"], payload, clients.tools("a"))
    assert state.tensors["met/keys"].tolist() == [7]
    assert np.isfinite(flat(update.tensors, "own/")).all()


def test_a_payload_that_is_none_is_refused(make_tools):
    """More models than were asked for, models of another size, and fewer keys than models."""
    clients = _clients(make_tools, models=2)
    clients.round("ab")
    good = clients.strategy.downlink(clients.server, "a").tensors
    clients.strategy.payload.check(good)
    for shape in ((3, 5), (1, 4), (5,)):
        bad = {**good, "others": np.zeros(shape, np.float32)}
        with pytest.raises(RefusedError, match="tensor 'others'"):
            clients.strategy.payload.check(bad)
    payload = Payload(round_id=2, tensors={**good, "keys": np.zeros(2, np.int64)})
    with pytest.raises(InputError, match=r"as many core models as keys .* got 1, 2 and 1"):
        clients.strategy.client_update(clients.states["a"], payload, clients.tools("a"))


def test_the_state_keeps_copies_of_what_a_client_sent(make_tools):
    clients = _clients(make_tools)
    (update,) = clients.round("a")
    for value in update.tensors.values():
        assert not np.shares_memory(value, clients.server.tensors["client/a"])
    huge = {name: np.full_like(v, 3e5) for name, v in update.tensors.items()}
    liar = Update(client_id="z", round_id=2, num_examples=1, tensors=huge)
    after = clients.strategy.aggregate(clients.server, [liar], server_tools())
    assert after.tensors["client/a"] is clients.server.tensors["client/a"]


def test_a_shortened_gradient_moves_core_model_and_weights(make_tools):
    """One step from 0.5, -0.5, 0, 1, 0 with a gradient of norm 0.1."""
    clients = _clients(make_tools, epochs=1, clip_norm=0.1, relation_lr=0.5, mu=0.0)
    w = start().params.buffer.astype(np.float64)
    g = gradients()["a"](w)
    g *= 0.1 / np.linalg.norm(g)
    clients.round("a")
    clients.round("a")
    state = clients.states["a"].tensors
    np.testing.assert_allclose(flat(state, "core/"), w - _LR * g, rtol=1e-4)
    np.testing.assert_allclose(state["relations"], [1 - 0.5 * g @ w], rtol=1e-4)


def test_an_early_score_is_of_the_sum_that_training_starts_from(make_tools):
    scored = []

    def evaluate(_name):
        return lambda network: scored.append(network.params.buffer.copy())

    strategy = build("apple", {**_SETTINGS, "score_at": "start"}, start())
    clients = QuadraticClients(strategy, make_tools, evaluate=evaluate)
    clients.round("a")
    np.testing.assert_array_equal(scored[0], start().params.buffer)


def _spoilt_by(clients, factor, rounds):
    """The honest clients' losses where d sends its core model so many times as long."""
    for _ in range(rounds):
        before = clients.server
        updates = clients.round("abcd")
        longer = {name: np.float32(factor) * value for name, value in updates[3].tensors.items()}
        updates[3] = dataclasses.replace(updates[3], tensors=longer)
        clients.server = clients.strategy.aggregate(before, updates, server_tools())
    models = (flat(clients.states[name].tensors) for name in "abc")
    gaps = (w - TARGETS[name] for name, w in zip("abc", models, strict=True))
    return [float(CURVATURES[name] @ gap**2) for name, gap in zip("abc", gaps, strict=True)]


@pytest.mark.parametrize("factor", [100.0, -100.0])
def test_a_core_model_that_is_too_long_spoils_nobody(make_tools, factor):
    """Without the clip the others' loss is above 10^9 in the second round."""
    assert max(_spoilt_by(_clients(make_tools), factor, 30)) < 0.5
    assert max(_spoilt_by(_clients(make_tools, norm_clip=0), factor, 2)) > 1e9


def test_core_models_of_about_one_length_are_kept_as_they_came(make_tools):
    """Lengths 1, 2 and 6 of limit 6, then 7: shortened to the same direction's 6."""
    strategy = _clients(make_tools).strategy
    state = strategy.server_init(start(), new_rng())
    for longest, kept in ((6, 6), (7, 6)):
        updates = []
        for name, length in zip("abc", (1, 2, longest), strict=True):
            core = {"own/w": [0, length], "own/head.b": [0, 0, 0]}
            tensors = {key: np.array(value, np.float32) for key, value in core.items()}
            updates.append(Update(client_id=name, round_id=1, num_examples=1, tensors=tensors))
        after = strategy.aggregate(state, updates, server_tools()).tensors
        np.testing.assert_allclose(after["client/c"], [0, kept, 0, 0, 0], rtol=1e-6)
        np.testing.assert_array_equal(after["client/b"], [0, 2, 0, 0, 0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": -1}, "setting 'models'"),
        ({"relation_lr": -1}, "setting 'relation_lr'"),
        ({"mu": -1}, "setting 'mu'"),
        ({"penalty_rounds": -1}, "setting 'penalty_rounds'"),
        ({"norm_clip": 0.5}, "setting 'norm_clip'"),
        ({"lam": 1}, "unknown key `lam`"),
    ],
)
def test_settings_have_ranges(settings, message):
    with pytest.raises(InputError, match=message):
        build("apple", settings, start())


def test_the_server_has_no_model_of_all():
    strategy = build("apple", _SETTINGS, start())
    assert strategy.server_model(strategy.server_init(start(), new_rng())) is None
    assert strategy.private is None
    assert not strategy.description.takes_rule


@pytest.mark.parametrize("rounds", [0, 1])
def test_penalties_end_with_their_rounds(make_tools, rounds):
    """From round L on, counted from 0, μ changes nothing."""
    found = []
    for mu in (0.0, 5.0):
        clients = _clients(make_tools, mu=mu, penalty_rounds=rounds)
        clients.server = dataclasses.replace(clients.server, round_id=rounds)
        clients.round("ab")
        clients.round("ab")
        found.append(clients.states["a"].tensors["relations"])
    np.testing.assert_array_equal(*found)
