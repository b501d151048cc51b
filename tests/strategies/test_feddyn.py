"""FedDyn against its published equations, round by round."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from closed_form import COHORTS, EXAMPLES, Clients, examples_of, gradient
from laws.coded import CodedRounds
from oracle_errors import OracleRounds
from oracles.feddyn import FedDyn, FedDynCode
from toy_model import SGD, frozen_map, new_rng, server_tools

from protofleet.errors import InputError, RefusedError
from protofleet.strategies import build
from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.methods.feddyn import _alpha
from protofleet.strategies.types import Payload, Step, Update
from protofleet.tensors import Model, TensorMap
from protofleet.wire.codecs import Codec

_LR, _STEPS, _ALPHA = 0.1, 4, 0.3
_GRADIENTS = {name: lambda w, name=name: gradient(name, w, examples_of(name)) for name in EXAMPLES}


def _settings(**changed):
    return {"epochs": _STEPS, "alpha": _ALPHA, "optimiser": {"kind": "sgd", "lr": _LR}, **changed}


@pytest.mark.parametrize("population", [0, 4, 9])
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(model, make_tools, population):
    """What is kept is -g_i/α and -h/α."""
    settings = _settings(server={"population": population})
    clients = Clients(build("feddyn", settings, model), model, make_tools)
    oracle = FedDyn(
        _GRADIENTS, [0, 0], alpha=_ALPHA, lr=_LR, steps=_STEPS, population=population or None
    )
    rounds = OracleRounds("FedDyn", COHORTS, 2e-6)
    for cohort in COHORTS:
        updates = clients.round(cohort)
        assert set(updates[0].tensors) == {"params/w"}
        oracle.round(cohort)
        tensors = clients.server.tensors
        rounds.agree(tensors["params/w"], oracle.theta)
        rounds.agree(-_ALPHA * tensors["moved/w"], oracle.h)
        for name in cohort:
            own = -_ALPHA * clients.states[name].tensors["moved/w"]
            rounds.agree(own, oracle.own[name])


def test_with_the_authors_weights_and_clipping_rounds_are_those_of_their_code(model, make_tools):
    """c has one example of 13; in round 1 nobody's number is known."""
    settings = _settings(weighted_alpha=True, max_norm=2.0)
    clients = Clients(build("feddyn", settings, model), model, make_tools)
    oracle = FedDynCode(
        _GRADIENTS,
        [0, 0],
        alpha=_ALPHA,
        lr=_LR,
        steps=_STEPS,
        examples={name: len(rows) for name, rows in EXAMPLES.items()},
        max_norm=2.0,
    )
    rounds = OracleRounds("FedDyn, the code", COHORTS, 2e-6)
    for cohort in COHORTS:
        clients.round(cohort)
        oracle.round(cohort)
        theta = clients.server.tensors["params/w"]
        rounds.agree(theta, oracle.cloud)
        for name in cohort:
            moved = clients.states[name].tensors["moved/w"]
            rounds.agree(moved, oracle.moves[name])
    assert 0 < oracle.clipped < _STEPS * sum(map(len, COHORTS))
    sent = clients.strategy.downlink(clients.server, "a").tensors["population"]
    np.testing.assert_array_equal(sent, [4, 13])


def test_numbers_that_clients_do_not_tell_are_not_weighed(model, make_tools):
    """Where they are switched off every client counts as one example."""
    settings = _settings(weighted_alpha=True)
    weighted = Clients(build("feddyn", settings, model), model, make_tools)
    plain = Clients(build("feddyn", _settings(), model), model, make_tools)
    untold = {"clients": np.array([1, 2]), "examples": np.array([1, 1])}
    for side in (weighted, plain):
        kept = {name: value for name, value in untold.items() if name in side.server.tensors}
        tensors = {**side.server.tensors, **kept}
        side.server = dataclasses.replace(side.server, tensors=tensors)
    told, expected = (side.round("b")[0].tensors["params/w"] for side in (weighted, plain))
    np.testing.assert_array_equal(told, expected)


def test_it_reaches_the_optimum_that_the_drift_keeps_plain_averaging_from(model, make_tools):
    sides = [
        Clients(build(name, settings, model), model, make_tools)
        for name, settings in (
            ("feddyn", _settings()),
            ("fedavg", {"epochs": _STEPS, "optimiser": {"kind": "sgd", "lr": _LR}}),
        )
    ]
    slopes = []
    for clients in sides:
        for _ in range(150):
            clients.round("abcd")
        w = clients.server.tensors["params/w"]
        slopes.append(np.abs(sum(one(w.astype(np.float64)) for one in _GRADIENTS.values())).max())
    assert slopes[0] < 1e-3
    assert slopes[1] > 0.1


def test_a_round_without_a_step_moves_nobody(model, make_tools):
    settings = _settings(batch_size=10, drop_last=True)
    clients = Clients(build("feddyn", settings, model), model, make_tools)
    (update,) = clients.round("a")
    np.testing.assert_array_equal(update.tensors["params/w"], [0, 0])
    np.testing.assert_array_equal(clients.states["a"].tensors["moved/w"], [0, 0])
    np.testing.assert_array_equal(clients.server.tensors["moved/w"], [0, 0])


def test_with_local_init_a_client_moves_from_what_it_received(model, make_tools):
    """Weights 0 keep the own w (1, 2); from there half the gradient (-1, -2) + α (w - θ + moved),
    with θ (5, 5), moved (1, 2) and α 1/2: w by -(-1 - 1.5, -2 - 0.5) / 2 to (2.25, 3.25).
    """
    local_init = {"kind": "ala", "eta": 0.0, "max_passes": 1}
    settings = {**SGD, "alpha": 0.5, "local_init": local_init}
    strategy = build("feddyn", settings, model)
    tools, _ = make_tools("a", [[2, 4]])
    state = strategy.client_init(model)
    for round_id, theta in ((1, [0, 0]), (2, [5, 5])):
        payload = Payload(round_id=round_id, tensors={"params/w": np.array(theta, np.float32)})
        state, update = strategy.client_update(state, payload, tools)
        if round_id == 1:
            np.testing.assert_array_equal(state.tensors["moved/w"], [1, 2])
            kept = {**state.tensors, "ala/w": np.zeros(2, np.float32)}
            state = dataclasses.replace(state, tensors=kept)
    np.testing.assert_array_equal(update.tensors["params/w"], [2.25, 3.25])
    np.testing.assert_array_equal(state.tensors["moved/w"], [-1.75, 0.25])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0}, "setting 'alpha'"),
        ({"max_norm": 0.0}, "setting 'max_norm'"),
        ({"server": {"population": -1}}, "setting 'server.population'"),
        ({"server": {"lr": 1}}, "`server`: unknown key `lr`"),
        ({"mu": 1}, "unknown key `mu`"),
    ],
)
def test_what_it_cannot_take_is_refused_by_name(model, settings, message):
    with pytest.raises(InputError, match=f"strategy 'feddyn': .*{message}"):
        build("feddyn", settings, model)


def _update(name, params, examples=1):
    tensors = {"params/w": np.array(params, np.float32)}
    return Update(client_id=name, round_id=1, num_examples=examples, tensors=tensors)


def test_a_rule_decides_how_far_all_clients_have_moved(model):
    """Three clients of which one lies: three times the median's way, and not the liar's."""
    strategy = build("feddyn", _settings(), model)
    server = strategy.server_init(model, new_rng())
    updates = [_update("a", [1, 2]), _update("b", [2, 4]), _update("z", [9e5, -9e5])]
    tools = dataclasses.replace(server_tools(), aggregator=build_rule("median", {}))
    after = strategy.aggregate(server, updates, tools)
    np.testing.assert_allclose(after.tensors["moved/w"], [2, 2])
    np.testing.assert_allclose(after.tensors["params/w"], [4, 4])


def test_a_client_s_claim_of_examples_never_overflows(model):
    strategy = build("feddyn", _settings(weighted_alpha=True), model)
    server = strategy.server_init(model, new_rng())
    updates = [_update(f"{k}", [1, 1], examples=2**62) for k in range(5)]
    after = strategy.aggregate(server, updates, server_tools())
    clients, examples = strategy.downlink(after, "a").tensors["population"]
    assert (clients, examples) == (5, 5 << 40)


def test_a_payload_s_numbers_are_integers_and_make_no_endless_pull(model, make_tools):
    """What no server counts has no effect, and the largest count one of at most 1e9."""
    strategy = build("feddyn", _settings(weighted_alpha=True), model)
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    forged = {**payload.tensors, "population": np.zeros(2, np.float32)}
    with pytest.raises(RefusedError, match=r"'population': expected .*int64, got .*float32"):
        strategy.payload.check(forged)
    tools, _ = make_tools("a", [[2, 4], [1, 3]])
    for numbers, alpha in (((-1, 5), _ALPHA), ((3, -7), _ALPHA), ((1, 2**62), 1e9), ((2, 8), 0.6)):
        tensors = {**payload.tensors, "population": np.array(numbers)}
        got = _alpha(strategy.settings, dataclasses.replace(payload, tensors=tensors), tools)
        assert got == pytest.approx(alpha)


def _pulled_to(make_tools):
    """Tools of clients with losses |w - target|² / 2 and as much noise on their gradients."""
    noise = np.random.default_rng(8)

    def make(name, target):
        def grad_fn(network, _batch, _rng):
            grads = TensorMap.zeros(network.params.layout)
            grads["w"][...] = network.params["w"] - target + noise.standard_normal(target.size)
            return Step(loss=0.0, grads=grads, buffers=network.buffers)

        tools, seen = make_tools(name, [[0, 0]])
        training = dataclasses.replace(tools.training, grad_fns={"task_loss": grad_fn})
        return dataclasses.replace(tools, training=training), seen

    return make


@pytest.mark.parametrize("down", ["raw", "int8"])
@pytest.mark.parametrize("kind", ["int8", "int4", "topk"])
def test_under_a_lossy_codec_the_server_counts_the_moves_but_for_what_is_still_to_come(
    kind, down, make_tools
):
    """What coding lost of a client's last update comes with its next; payloads lose little."""
    rng = np.random.default_rng(7)
    targets = {name: rng.standard_normal(256).astype(np.float32) for name in "abcd"}
    wide = Model(
        params=frozen_map({"w": np.zeros(256)}),
        buffers=frozen_map({}),
        num_classes=2,
        input_shape=(2,),
    )
    strategy = build("feddyn", _settings(), wide)
    case = SimpleNamespace(
        model=wide, make_tools=_pulled_to(make_tools), update=lambda update, _: update
    )
    rounds = CodedRounds(strategy, case, up=Codec.of(kind, keep=0.1), down=Codec.of(down))
    server = strategy.server_init(wide, new_rng())
    for _ in range(30):
        _, got = rounds.round(server, targets)
        server = strategy.aggregate(server, got, server_tools())
    clients = rounds._kept.values()
    moves = [one.state.tensors["moved/w"] - one.residual["params/w"] for one in clients]
    gap = np.linalg.norm(server.tensors["moved/w"] - np.mean(moves, axis=0))
    size = np.mean([np.linalg.norm(one) for one in moves])
    assert gap < (1e-5 if down == "raw" else 0.02) * size
