"""FedAMP against its published equations, round by round."""

import dataclasses

import numpy as np
import pytest
from closed_form import COHORTS
from oracle_errors import OracleRounds
from oracles.fedamp import FedAmp
from quadratic_clients import QuadraticClients, flat, gradients, relative_error, start
from toy_model import new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.methods.fedamp import _cosines
from protofleet.strategies.types import Update

_LR, _STEPS = 0.2, 3
_SETTINGS = {"epochs": _STEPS, "optimiser": {"kind": "sgd", "lr": _LR}}


@pytest.mark.parametrize(
    "known",
    [
        {"sigma": 4.0},
        {"sigma": 50.0, "self_weight": 0.1},
        {"sigma": 4.0, "alpha": 1.0},
        {"sigma": 20.0, "alpha": 0.5},
        {"sigma": 5.0, "alpha": 30.0},
        {"sigma": 2.0, "self_weight": 0.4, "attention": "cosine"},
        {"sigma": 50.0, "alpha": 0.5, "self_weight": 0.1, "attention": "cosine"},
    ],
)
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(make_tools, known):
    """With alpha_k 30 the others' weights are scaled to 1."""
    strategy = build("fedamp", {**_SETTINGS, "lam": 0.7, **known}, start())
    clients = QuadraticClients(strategy, make_tools)
    cosine = known.pop("attention", "distance") == "cosine"
    oracle = FedAmp(
        gradients(), start().params.buffer, lr=_LR, steps=_STEPS, lam=0.7, cosine=cosine, **known
    )
    rounds = OracleRounds("HeurFedAMP" if cosine else "FedAMP", COHORTS, 2e-6)
    for cohort in COHORTS:
        clients.round(cohort)
        sent = oracle.round(cohort)
        for name in cohort:
            rounds.agree(flat(clients.sent[name].tensors), sent[name])
            rounds.agree(flat(clients.states[name].tensors), oracle.models[name])
        kept = {n: v for n, v in clients.server.tensors.items() if n.startswith("client/")}
        assert kept.keys() == {f"client/{name}" for name in oracle.models}


@pytest.mark.parametrize("many", [2, 40])
def test_by_default_a_client_s_own_model_counts_wherever_the_others_are(many):
    """All at one point is where the others weigh most: half and an n-th of half are its own."""
    strategy = build("fedamp", {}, start())
    server = strategy.server_init(start(), new_rng())
    tensors = strategy.downlink(server, "a").tensors
    updates = [
        Update(client_id=f"{index:02}", round_id=1, num_examples=1, tensors=tensors)
        for index in range(many)
    ]
    after = strategy.aggregate(server, updates, server_tools())
    own = np.diag(after.tensors["attention"])
    np.testing.assert_allclose(own[:-1], 0.5 + 0.5 / many)
    assert own[-1] == pytest.approx(0.5)  # a newcomer's
    assert after.figures == {"own_weight": pytest.approx(0.5 + 0.5 / many), "scaled": 0}


def test_a_round_tells_that_the_others_weights_were_scaled(make_tools):
    """With alpha_k 6 those of a and b for each other, but not those of d, who is far from both."""
    strategy = build("fedamp", {**_SETTINGS, "alpha": 6.0, "lam": 6.0}, start())
    clients = QuadraticClients(strategy, make_tools)
    clients.round("a")
    assert clients.server.figures == {"own_weight": 1, "scaled": 0}
    clients.round("abd")
    own = np.diag(clients.server.tensors["attention"])[:3]
    np.testing.assert_array_equal(own > 0.01, [False, False, True])
    assert clients.server.figures == {
        "own_weight": pytest.approx(own.mean()),
        "scaled": pytest.approx(2 / 3),
    }


def test_clients_of_a_kind_find_each_other(make_tools):
    """a and b want nearly the same, c and d too: their weights for each other are the largest."""
    strategy = build("fedamp", {**_SETTINGS, "sigma": 5.0}, start())
    clients = QuadraticClients(strategy, make_tools)
    for _ in range(5):
        clients.round("abcd")
    attention = clients.server.tensors["attention"]
    np.testing.assert_allclose(attention.sum(axis=1), 1)
    others = attention[:4, :4] - np.diag(np.diag(attention[:4, :4]))
    assert others.argmax(axis=1).tolist() == [1, 0, 3, 2]


def test_a_client_alone_gets_its_own_model_back(make_tools):
    """Every bit of it, in a round of its own and when others have no weight for it."""
    clients = QuadraticClients(build("fedamp", _SETTINGS, start()), make_tools)
    (update,) = clients.round("a")
    back = clients.strategy.downlink(clients.server, "a").tensors
    for name, value in update.tensors.items():
        np.testing.assert_array_equal(back[name], value)


def test_before_anybody_delivers_all_get_the_very_same_arrays(make_tools):
    """So that the payload is encoded once."""
    clients = QuadraticClients(build("fedamp", _SETTINGS, start()), make_tools)
    payloads = [clients.strategy.downlink(clients.server, name).tensors for name in "ab"]
    for name, value in payloads[0].items():
        assert payloads[1][name] is value


@pytest.mark.parametrize("attention", ["distance", "cosine"])
def test_a_huge_model_moves_nobody_far_that_is_not_near_it(make_tools, attention):
    """FedAMP's weight of it vanishes; HeurFedAMP's does not, which is in its equation."""
    strategy = build("fedamp", {**_SETTINGS, "attention": attention}, start())
    clients = QuadraticClients(strategy, make_tools)
    updates = clients.round("ab")
    huge = {name: np.full_like(v, 3e5) for name, v in updates[0].tensors.items()}
    liar = Update(client_id="z", round_id=2, num_examples=1, tensors=huge)
    after = strategy.aggregate(clients.server, [liar], server_tools())
    sent = flat(strategy.downlink(after, "a").tensors)
    assert (np.abs(sent).max() < 10) == (attention == "distance")
    assert np.isfinite(after.tensors["attention"]).all()


@pytest.mark.parametrize("attention", ["distance", "cosine"])
@pytest.mark.parametrize("liar", ["0", "z"])
def test_a_huge_model_blurs_nobody_s_distances(make_tools, attention, liar):
    """Whether its id is the first of all or the last: what the others are to each other stays."""
    settings = {**_SETTINGS, "attention": attention, "sigma": 5.0, "self_weight": 0.0}
    strategy = build("fedamp", settings, start())
    clients = QuadraticClients(strategy, make_tools)
    updates = clients.round("abcd")
    huge = {name: np.full_like(v, 2e8) for name, v in updates[0].tensors.items()}
    update = Update(client_id=liar, round_id=2, num_examples=1, tensors=huge)
    after = strategy.aggregate(clients.server, [update], server_tools())
    first = int(liar == "0")
    others = slice(first, first + 4)
    found, before = (state.tensors["attention"] for state in (after, clients.server))
    found, before = (_relations(each) for each in (found[others, others], before[:4, :4]))
    np.testing.assert_allclose(found, before, rtol=1e-6)


def _relations(attention):
    """Weights of the others, as shares of their sum."""
    others = attention - np.diag(np.diag(attention))
    return others / others.sum(axis=1, keepdims=True)


def test_a_large_sigma_leaves_the_nearest_the_weight(make_tools):
    """exp(1e4 cos) is no number; a is nearest to b."""
    settings = {**_SETTINGS, "attention": "cosine", "sigma": 1e4}
    clients = QuadraticClients(build("fedamp", settings, start()), make_tools)
    clients.round("abcd")
    np.testing.assert_allclose(
        clients.server.tensors["attention"][0], [0.5, 0.5, 0, 0, 0], atol=1e-9
    )


def test_a_model_of_length_zero_has_a_cosine_of_zero(make_tools):
    settings = {**_SETTINGS, "attention": "cosine"}
    clients = QuadraticClients(build("fedamp", settings, start()), make_tools)
    nothing = {name: np.zeros_like(v) for name, v in clients.round("ab")[0].tensors.items()}
    update = Update(client_id="z", round_id=2, num_examples=1, tensors=nothing)
    after = clients.strategy.aggregate(clients.server, [update], server_tools())
    np.testing.assert_allclose(after.tensors["attention"][2], [0.25, 0.25, 0.5, 0])


def test_no_rounding_makes_a_cosine_of_more_than_one():
    rng = np.random.default_rng(0)
    every = [rng.standard_normal(50).astype(np.float32) * size for size in (1e18, 1, 1e-3, 1)]
    assert np.abs(_cosines(every)).max() <= 1


def test_the_state_keeps_copies_of_what_a_client_sent(make_tools):
    """An update is a view into a file that goes away; models of absent clients are not copied."""
    clients = QuadraticClients(build("fedamp", _SETTINGS, start()), make_tools)
    (update,) = clients.round("a")
    before = clients.server
    for value in update.tensors.values():
        assert not np.shares_memory(value, before.tensors["client/a"])
    clients.round("b")
    assert clients.server.tensors["client/a"] is before.tensors["client/a"]


def test_with_local_init_training_starts_from_a_mixture_with_the_own_model(make_tools):
    """And the pull stays to what was received."""
    local_init = {"kind": "ala", "eta": 0.0, "max_passes": 1, "layer_idx": 0}
    strategy = build("fedamp", {**_SETTINGS, "local_init": local_init}, start())
    clients = QuadraticClients(strategy, make_tools)
    clients.round("ab")
    kept = clients.states["a"]
    zeros = {f"ala/{n}": np.zeros_like(v) for n, v in start().params.items()}
    clients.states["a"] = dataclasses.replace(kept, tensors={**kept.tensors, **zeros})
    own = flat(kept.tensors).astype(np.float64)
    clients.round("ab")
    u = flat(clients.sent["a"].tensors)
    w = own
    for _ in range(_STEPS):
        w = w - _LR * (gradients()["a"](w) + (w - u))
    assert relative_error(flat(clients.states["a"].tensors), w) < 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0}, "setting 'alpha'"),
        ({"lam": -1}, "setting 'lam'"),
        ({"sigma": 0}, "setting 'sigma'"),
        ({"self_weight": 1.5}, "setting 'self_weight'"),
        ({"attention": "dot"}, "`attention`: expected one of"),
        ({"mu": 1}, "unknown key `mu`"),
    ],
)
def test_settings_have_ranges(settings, message):
    with pytest.raises(InputError, match=f"strategy 'fedamp': .*{message}|{message}"):
        build("fedamp", settings, start())


def test_the_server_has_no_model_of_all():
    strategy = build("fedamp", _SETTINGS, start())
    assert strategy.server_model(strategy.server_init(start(), new_rng())) is None
    assert strategy.private is None
    assert not strategy.description.takes_rule
