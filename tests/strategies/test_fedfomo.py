"""FedFomo against its published equations, round by round."""

import dataclasses
import warnings

import numpy as np
import pytest
from closed_form import COHORTS
from oracle_errors import OracleRounds
from oracles.fedfomo import FedFomo
from quadratic_clients import (
    TARGETS,
    QuadraticClients,
    flat,
    gradients,
    start,
)
from toy_model import SGD, changed, new_rng, server_tools

from protofleet.errors import InputError, RefusedError
from protofleet.strategies import build
from protofleet.strategies.types import Payload, Update
from protofleet.tensors import blobs

_LR, _STEPS = 0.05, 3
_SETTINGS = {"epochs": _STEPS, "optimiser": {"kind": "sgd", "lr": _LR}}


_KIN = dict(zip("abcd", "badc", strict=True))
"""What the examples say that a client holds back lies nearest to this other's model."""


def _losses():
    return {
        name: lambda w, kin=kin: float(((w - np.array(TARGETS[kin])) ** 2).sum())
        for name, kin in _KIN.items()
    }


def _predict(name):
    """One output, whose square is the loss."""
    target = np.float32(TARGETS[_KIN[name]])

    def predict(network, x):
        apart = np.linalg.norm(network.params.buffer - target)
        return np.full((len(x), 1), apart, np.float32)

    return predict


class _Clients(QuadraticClients):
    """Of a regression of one target, which is always 0: the loss is the squared output."""

    def __init__(self, make_tools, **settings):
        model = dataclasses.replace(start(), task="regression", num_classes=0)
        strategy = build("fedfomo", {**_SETTINGS, **settings}, model)
        super().__init__(strategy, make_tools, predict=_predict)

    def tools(self, name):
        tools = super().tools(name)
        return changed(tools, y=np.zeros((len(tools.training.x), 1), np.float32))


def _names(clients, name):
    """Whose models a client was sent."""
    kept = {f"client/{one}" for one in TARGETS} & clients.server.tensors.keys()
    models = {one.removeprefix("client/"): clients.server.tensors[one] for one in kept}
    rows = clients.sent[name].tensors["others"]
    return [next(one for one, w in models.items() if np.array_equal(w, row)) for row in rows]


@pytest.mark.parametrize(("models", "epsilon"), [(3, 0.0), (2, 0.0), (1, 0.5), (2, 1.0)])
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(make_tools, models, epsilon):
    clients = _Clients(make_tools, models=models, epsilon=epsilon)
    oracle = FedFomo(_losses(), gradients(), start().params.buffer, lr=_LR, steps=_STEPS)
    cohorts = COHORTS * 2
    rounds = OracleRounds("FedFomo", cohorts, 2e-6)
    for cohort in cohorts:
        server = clients.server
        updates = clients.round(cohort)
        clients.server, after = server, clients.server
        received = {name: _names(clients, name) for name in cohort}
        clients.server = after
        expected = oracle.round(received)
        for update in updates:
            name = update.client_id
            assert len(received[name]) <= models
            weights = [expected[name][other] for other in received[name]]
            found = update.tensors["weights"]
            rounds.agree(found[: len(weights)], weights)
            assert not found[len(weights) :].any()
            rounds.agree(flat(update.tensors, "own/"), oracle.models[name])
        known = sorted(n.removeprefix("client/") for n in after.tensors if n[:7] == "client/")
        preference = [[oracle.preference[one][other] for other in known] for one in known]
        rounds.agree(after.tensors["preference"], preference)
    assert np.max(preference) >= 1


def test_clients_of_a_kind_find_each_other(make_tools):
    """One model each, of three: the preferred ones are those that want nearly the same."""
    clients = _Clients(make_tools, models=1, epsilon=0.2)
    for _ in range(30):
        clients.round("abcd")
    preference = clients.server.tensors["preference"]
    assert preference.argmax(axis=1).tolist() == [1, 0, 3, 2]


def test_without_exploring_the_preferred_are_sent_and_with_it_all_in_turn(make_tools):
    counts = {}
    for epsilon in (0.0, 1.0):
        clients = _Clients(make_tools, models=1, epsilon=epsilon)
        for _ in range(3):
            clients.round("abcd")
        likes = np.array([[0, 0, 0, 5], [0, 0, 1, 0], [1, 0, 0, 0], [0, 3, 0, 0]], np.float64)
        tensors = {**clients.server.tensors, "preference": likes}
        seen = []
        for round_id in range(40):
            clients.server = dataclasses.replace(clients.server, tensors=tensors, round_id=round_id)
            clients.sent["a"] = clients.strategy.downlink(clients.server, "a")
            seen += _names(clients, "a")
        counts[epsilon] = {one: seen.count(one) for one in "bcd"}
    assert counts[0.0] == {"b": 0, "c": 0, "d": 40}
    assert min(counts[1.0].values()) > 5


def test_what_is_sent_follows_from_the_state_alone(make_tools):
    """A restarted coordinator sends the same bytes, and knows for whom the weights are."""
    clients = _Clients(make_tools, models=2)
    clients.round("abcd")
    payloads = [clients.strategy.downlink(clients.server, "b").tensors for _ in range(2)]
    assert blobs.encode(payloads[0]) == blobs.encode(payloads[1])


def test_a_client_keeps_its_model_where_no_other_is_better(make_tools):
    """And a model that is its own, or that gives no number, has no weight."""
    clients = _Clients(make_tools)
    clients.round("a")
    state, tools = clients.states["a"], clients.tools("a")
    own = flat(state.tensors)
    rows = np.stack([own, own + 100, np.full_like(own, 3e38)])
    payload = Payload(round_id=2, tensors={"others": rows})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, update = clients.strategy.client_update(state, payload, tools)
    assert not update.tensors["weights"].any()


def test_a_better_model_counts_by_its_gain_for_each_unit_of_distance(make_tools):
    """On the line to what a holds back, D away, at 1/4 and 9/10 of it; one beyond is worse.

    The gains D² (1 - (3/4)²) and D² (1 - (1/10)²) by the distances D/4 and 9D/10 are 1.75 D and
    1.1 D.
    """
    clients = _Clients(make_tools, epochs=1, optimiser={"kind": "sgd", "lr": 0.0})
    clients.round("a")
    own, target = flat(clients.states["a"].tensors), np.array(TARGETS[_KIN["a"]])
    steps = np.array([0.25, 2.5, 0.9])
    rows = (own + steps[:, None] * (target - own)).astype(np.float32)
    payload = Payload(round_id=2, tensors={"others": rows})
    state, update = clients.strategy.client_update(clients.states["a"], payload, clients.tools("a"))
    expected = np.array([1.75, 0, 1.1, 0, 0]) / 2.85
    np.testing.assert_allclose(update.tensors["weights"], expected, rtol=1e-5)
    moved = own + expected[:3] @ (rows - own)
    np.testing.assert_allclose(flat(state.tensors), moved, rtol=1e-5)


@pytest.mark.parametrize(("count", "held"), [(5, 1), (2, 1), (1, 1)])
def test_some_examples_are_tried_on_and_never_trained_on(model, make_tools, count, held):
    """The same in every round. Where there is one alone it serves for both."""
    strategy = build("fedfomo", SGD, model)
    tools, _ = make_tools("a", [[i, i] for i in range(count)])
    program, trained, tried = tools.training.grad_fns["task_loss"], set(), set()

    def watched(network, batch, rng):
        trained.update(batch["x"][:, 0].tolist())
        return program(network, batch, rng)

    def predict(_network, x):
        tried.update(x[:, 0].tolist())
        return np.zeros((len(x), 2), np.float32)

    tools, state = changed(tools, grad_fns={"task_loss": watched}, predict=predict), None
    for round_id in (1, 2, 3):
        payload = Payload(round_id=round_id, tensors={"others": np.ones((1, 2), np.float32)})
        state, update = strategy.client_update(state or strategy.client_init(model), payload, tools)
        assert update.num_examples == count
    assert len(tried) == held
    assert trained | tried == set(range(count))
    assert len(trained & tried) == (count == 1)


@pytest.mark.parametrize("weights", [[1.5, 0], [-0.1, 0]])
def test_weights_that_are_none_are_refused(weights):
    strategy = build("fedfomo", {"models": 2}, start())
    tensors = {"weights": np.array(weights, np.float32)}
    with pytest.raises(RefusedError, match="weights from 0 to 1"):
        strategy.check(Update(client_id="a", round_id=1, num_examples=1, tensors=tensors))


def test_a_payload_or_an_update_of_another_form_is_refused():
    strategy = build("fedfomo", {"models": 2}, start())
    for shape in ((3, 5), (1, 4), (5,)):
        with pytest.raises(RefusedError, match="tensor 'others'"):
            strategy.payload.check({"others": np.zeros(shape, np.float32)})
    own = {f"own/{name}": value for name, value in start().params.items()}
    strategy.uplink.check({**own, "weights": np.zeros(2, np.float32)})
    with pytest.raises(RefusedError, match="tensor 'weights': expected"):
        strategy.uplink.check({**own, "weights": np.zeros(3, np.float32)})


def test_weights_with_a_sum_above_one_count_for_one_in_all(make_tools):
    """A liar's row of preferences is its own affair, and grows no faster than others'."""
    clients = _Clients(make_tools, models=2, epsilon=0.0)
    updates = clients.round("abcd")
    liar = dataclasses.replace(
        updates[0], tensors={**updates[0].tensors, "weights": np.ones(2, np.float32)}
    )
    after = clients.strategy.aggregate(clients.server, [liar], server_tools())
    assert after.tensors["preference"][0].sum() == pytest.approx(1)
    assert not after.tensors["preference"][1:].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": 0}, "setting 'models'"),
        ({"models": 1001}, "setting 'models'"),
        ({"epsilon": 2}, "setting 'epsilon'"),
        ({"validation": 0}, "setting 'validation'"),
        ({"split_seed": -1}, "setting 'split_seed'"),
        ({"local_init": {"kind": "ala"}}, "unknown key `local_init`"),
    ],
)
def test_settings_have_ranges(settings, message):
    with pytest.raises(InputError, match=message):
        build("fedfomo", settings, start())


def test_the_server_has_no_model_of_all():
    strategy = build("fedfomo", _SETTINGS, start())
    assert strategy.server_model(strategy.server_init(start(), new_rng())) is None
    assert strategy.private is None
    assert not strategy.description.takes_rule
