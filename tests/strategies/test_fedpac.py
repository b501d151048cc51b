"""FedPAC against its published equations, round by round."""

import dataclasses

import numpy as np
import pytest
from laws.coded import CodedRounds
from oracle_errors import OracleRounds
from oracles.fedpac import HEAD, FedPac
from tiny_perceptron import perceptron, with_programs
from toy_model import new_rng, server_tools

from protofleet.errors import InputError, RefusedError
from protofleet.federation.client_limits import check_differences, difference_norms, learned_bounds
from protofleet.strategies import build
from protofleet.strategies.aggregation import clipped
from protofleet.strategies.methods.fedpac import head_weights
from protofleet.strategies.optimisers import Sgd
from protofleet.strategies.types import Update
from protofleet.wire.codecs import Codec

_SIZES = {"a": 6, "b": 9, "c": 4, "d": 12}
_COHORTS = ("abc", "bcd", "abcd", "ad", "abcd")
_HEAD_SGD = {"lr": 0.1, "momentum": 0.5, "weight_decay": 5e-4}
_BODY_SGD = {"lr": 0.02, "momentum": 0.5, "weight_decay": 5e-4}
_STEPS = 2
_H, _DEVIATION = "statistics/weighted_means", "statistics/deviation"


def _data():
    """Client c lacks class 2, and only d has class 0 in a round of its own."""
    rng = np.random.default_rng(3)
    data = {}
    for index, (client, size) in enumerate(_SIZES.items()):
        y = rng.integers(0, 2 if client == "c" else 3, size)
        x = rng.normal(size=(size, 2)) + 1.5 * np.eye(3, 2)[y] + 0.3 * index
        data[client] = x.astype(np.float32), y
    return data


def _settings(**changed):
    return {
        "epochs": _STEPS,
        "batch_size": 64,
        "prototype_distance": "sum",
        "optimiser": {"kind": "sgd", **_BODY_SGD},
        "head_optimiser": {"kind": "sgd", **_HEAD_SGD},
        **changed,
    }


class Clients:
    """The strategy with the data of ``_data``."""

    def __init__(self, strategy, model, make_tools, data):
        self.strategy, self.make_tools, self.data = strategy, make_tools, data
        self.server = strategy.server_init(model, new_rng())
        self.states = {client: strategy.client_init(model) for client in data}

    def tools(self, client):
        x, y = self.data[client]
        return with_programs(self.make_tools(client, [])[0], x=x, y=y)

    def round(self, cohort):
        updates = []
        for client in cohort:
            payload = self.strategy.downlink(self.server, client)
            self.strategy.payload.check(payload.tensors)
            self.states[client], update = self.strategy.client_update(
                self.states[client], payload, self.tools(client)
            )
            self.strategy.uplink.check(update.tensors)
            self.strategy.check(update)
            counts = np.bincount(self.data[client][1], minlength=3)
            updates.append(dataclasses.replace(update, class_counts=counts))
        self.server = self.strategy.aggregate(self.server, updates, server_tools())
        return updates


@pytest.fixture
def model():
    return perceptron()


@pytest.mark.parametrize("distance", ["sum", "mean"])
@pytest.mark.parametrize(("smallest", "rescale"), [(1e-3, True), (0.1, False), (0.0, True)])
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(
    model, make_tools, distance, smallest, rescale
):
    more = {"smallest_weight": smallest, "rescale": rescale, "prototype_distance": distance}
    strategy = build("fedpac", _settings(prototype_weight=0.3, **more), model)
    data = _data()
    clients = Clients(strategy, model, make_tools, data)
    oracle = FedPac(
        model.params,
        data,
        3,
        weight=0.3,
        head_sgd={"steps": 1, **_HEAD_SGD},
        body_sgd={"steps": _STEPS, **_BODY_SGD},
        mean=distance == "mean",
        smallest=smallest,
        rescale=rescale,
    )
    rounds = OracleRounds("FedPAC", _COHORTS, 2e-6)
    for cohort in _COHORTS:
        clients.round(cohort)
        oracle.round(cohort)
        tensors = clients.server.tensors
        for name, value in oracle.body.items():
            rounds.agree(tensors[f"params/{name}"], value)
        for label, centre in oracle.centres.items():
            rounds.agree(tensors["prototypes"][label], centre)
        assert tensors["present"].tolist() == [label in oracle.centres for label in range(3)]
        for client in cohort:
            payload = strategy.downlink(clients.server, client).tensors
            for name in HEAD:
                rounds.agree(payload[f"params/{name}"], oracle.heads[client][name])
    zeros = any(0 < (alpha > 0).sum() < len(alpha) for alpha in oracle.alphas.values())
    assert zeros or not smallest


def test_statistics_are_taken_at_the_received_model_before_training(model, make_tools):
    """Two examples of class 0 with features f, g and one of class 2: h and V by hand."""
    strategy = build("fedpac", _settings(), model)
    x = np.array([[1, 0], [3, 1], [0, 2]], np.float32)
    clients = Clients(strategy, model, make_tools, {"a": (x, np.array([0, 0, 2]))})
    found = clients.tools("a").features(model.network, x).astype(np.float64)
    (update,) = clients.round("a")
    h = np.array([found[:2].sum(axis=0), np.zeros(4), found[2]]) / 3
    np.testing.assert_allclose(update.tensors["statistics/weighted_means"], h, rtol=1e-6)
    deviation = np.sqrt((found**2).sum() / 3 - (h**2).sum())
    np.testing.assert_allclose(update.tensors["statistics/deviation"], deviation, rtol=1e-5)
    trained = clients.tools("a").features(strategy.client_model(clients.states["a"]), x)
    np.testing.assert_allclose(update.tensors["prototypes"][2], trained[2], rtol=1e-6)


def test_statistics_grow_as_features_do(model, make_tools):
    """Thirty times as long after a round, they stay within a hundred times what was learnt."""
    still = {"kind": "sgd", "lr": 0.0}
    strategy = build("fedpac", _settings(optimiser=still, head_optimiser=still), model)
    clients = Clients(strategy, model, make_tools, _data())
    first = [difference_norms(update.tensors, {}) for update in clients.round("ab")]
    tensors = {**clients.server.tensors, "heads": np.zeros((2, 15), np.float32)}
    for name in ("params/body.2.weight", "params/body.2.bias"):
        tensors[name] = 30 * tensors[name]
    server = dataclasses.replace(clients.server, tensors=tensors)
    payload = clients.strategy.downlink(server, "a")
    _, update = clients.strategy.client_update(clients.states["a"], payload, clients.tools("a"))
    norms = difference_norms(update.tensors, {})
    assert norms["statistics"] > 10 * first[0]["statistics"]
    told = {"statistics": norms["statistics"]}
    check_differences(told, {}, learned_bounds(first), most=1e6)


def test_a_class_without_a_common_mean_is_drawn_to_the_client_s_own(model, make_tools):
    """b brings class 2 in round 2: the gap of its first step is to its own mean, not to zero."""
    strategy = build("fedpac", _settings(epochs=1, prototype_weight=0.5), model)
    x = np.array([[1, 0], [3, 1], [0, 2]], np.float32)
    data = {"a": (x, np.array([0, 0, 1])), "b": (x, np.array([0, 2, 2]))}
    clients = Clients(strategy, model, make_tools, data)
    clients.round("a")
    tools, seen = clients.tools("b"), []
    inner = tools.training.grad_fns["prototype_mse"]

    def recorded(network, batch, rng):
        seen.append(batch)
        return inner(network, batch, rng)

    grad_fns = {**tools.training.grad_fns, "prototype_mse": recorded}
    tools = dataclasses.replace(
        tools, training=dataclasses.replace(tools.training, grad_fns=grad_fns)
    )
    payload = strategy.downlink(clients.server, "b")
    assert not any("head" in name for name in payload.tensors)
    strategy.client_update(clients.states["b"], payload, tools)
    received = {
        **model.params,
        **{n: payload.tensors[f"params/{n}"] for n in model.params if n not in HEAD},
    }
    own = tools.features(dataclasses.make_dataclass("N", ["params"])(received), x[1:]).mean(axis=0)
    np.testing.assert_allclose(seen[0]["prototypes"][2], own, rtol=1e-5)
    assert seen[0]["present"].tolist() == [1, 1, 1]
    assert seen[0]["weight"] == np.float32(0.5 * 4)


def test_clients_alike_share_their_heads_and_others_keep_to_their_own():
    """Equal means: by 1/v; means far apart: the own head alone."""
    h = np.array([[1, 0], [1, 0], [-50, 80]], np.float32)
    weights = head_weights(h, [1.0, 3.0, 1.0])
    np.testing.assert_allclose(weights[:2, :2], [[0.75, 0.25]] * 2, atol=1e-3)
    assert weights[2, 2] > 0.999
    np.testing.assert_allclose(weights.sum(axis=1), 1)


def test_a_head_waits_for_its_client(model, make_tools):
    """a, absent for two rounds, then gets what its last round made; b's own is newer."""
    clients = Clients(build("fedpac", _settings(), model), model, make_tools, _data())
    clients.round("ab")
    waiting = clients.strategy.downlink(clients.server, "a").tensors["params/head.weight"]
    clients.round("bc")
    clients.round("bd")
    again = clients.strategy.downlink(clients.server, "a").tensors["params/head.weight"]
    np.testing.assert_array_equal(again, waiting)
    assert clients.server.tensors["heads"].shape == (4, 15)


@pytest.mark.parametrize("kind", ["int8", "int4", "topk"])
def test_heads_survive_a_lossy_codec(kind, model, make_tools):
    """After six coded rounds no head is farther from its uncoded twin than a tenth of its size."""
    data = _data()
    strategy = build("fedpac", _settings(), model)
    plain = Clients(strategy, model, make_tools, data)

    class Case:
        pass

    case = Case()
    case.model = model
    case.make_tools = lambda client, _: (plain.tools(client), None)
    case.update = lambda update, tools: dataclasses.replace(
        update, class_counts=np.bincount(tools.training.y, minlength=3)
    )
    rounds = CodedRounds(strategy, case, up=Codec.of(kind, keep=0.5), down=Codec())
    server = strategy.server_init(model, new_rng())
    for _ in range(6):
        _, got = rounds.round(server, dict.fromkeys(data))
        server = strategy.aggregate(server, got, server_tools())
        plain.round("abcd")
    expected = plain.server.tensors["heads"]
    gap = np.linalg.norm(server.tensors["heads"] - expected, axis=1)
    assert (gap < 0.1 * np.linalg.norm(expected, axis=1)).all()


def _update(strategy, model, client, *, n=4, **tensors):
    state = strategy.server_init(model, new_rng()).tensors
    body = {name: value for name, value in state.items() if name.startswith("params/")}
    head = {f"params/{name}": model.params[name] for name in HEAD}
    rows = np.ones((3, 4), np.float32)
    own = {"prototypes": rows, _H: rows, _DEVIATION: np.array(1, np.float32)}
    return Update(
        client_id=client,
        round_id=1,
        num_examples=n,
        tensors={**body, **head, **own, **tensors},
        class_counts=np.array([n, 0, 0]),
    )


def test_a_negative_deviation_is_refused(model):
    strategy = build("fedpac", {}, model)
    bad = _update(strategy, model, "a", **{_DEVIATION: np.array(-1, np.float32)})
    with pytest.raises(RefusedError, match="deviation': expected at least 0, got -1"):
        strategy.check(bad)


def test_a_liar_without_variance_reaches_those_alone_whose_means_it_knows(model):
    """Its head is a thousand times too large; b's means lie elsewhere, so b's head stays small."""
    strategy = build("fedpac", {}, model)
    far = np.full((3, 4), 40, np.float32)
    loud = np.full((3, 4), 1e3, np.float32)
    updates = [
        _update(strategy, model, "b"),
        _update(
            strategy,
            model,
            "liar",
            **{"params/head.weight": loud, _H: far, _DEVIATION: np.array(0, np.float32)},
        ),
    ]
    after = strategy.aggregate(strategy.server_init(model, new_rng()), updates, server_tools())
    own = strategy.downlink(after, "b").tensors["params/head.weight"]
    np.testing.assert_allclose(own, model.params["head.weight"], atol=1e-6)


def _alike(strategy, model):
    """Ten honest clients with heads of ones and nearly one mean, a liar in the midst of them."""
    rng = np.random.default_rng(0)
    means = 0.3 + 0.05 * 0.3 * rng.normal(size=(10, 3, 4))
    told = [(f"c{i}", 1, rows, 0.3) for i, rows in enumerate(means)]
    return [
        _update(
            strategy,
            model,
            client,
            **{"params/head.bias": np.full(3, head, np.float32)},
            **{_H: rows.astype(np.float32), _DEVIATION: np.array(deviation, np.float32)},
        )
        for client, head, rows, deviation in [*told, ("liar", -1000, means.mean(axis=0), 0)]
    ]


@pytest.mark.parametrize(("least", "share"), [(0.0, (0.5, 1.0)), (1.0, (0.05, 0.15))])
def test_a_liar_in_the_midst_gains_by_no_variance_unless_a_least_one_counts(model, least, share):
    strategy = build("fedpac", {"least_deviation": least}, model)
    state = strategy.server_init(model, new_rng())
    after = strategy.aggregate(state, _alike(strategy, model), server_tools())
    for client in ("c0", "c7"):
        (bias, *_) = strategy.downlink(after, client).tensors["params/head.bias"]
        assert share[0] < (1 - bias) / 1001 < share[1]


def test_the_norm_clip_shortens_heads_and_tells_whose(model):
    """Three medians long at most; who abstains has a place among the updates too."""
    strategy, told = build("fedpac", {"least_deviation": 1.0}, model), []
    tools = server_tools()
    tools = dataclasses.replace(tools, aggregator=clipped(tools.aggregator, 3.0, told.append))
    updates = [_update(strategy, model, "abstains", n=0), *_alike(strategy, model)]
    after = strategy.aggregate(strategy.server_init(model, new_rng()), updates, tools)
    assert {one.position for one in told} == {11}
    lengths = np.linalg.norm(after.tensors["heads"], axis=1)
    assert (lengths < max(one.limit for one in told)).all()


def test_statistics_without_any_spread_have_heads_all_the_same(model):
    """Nobody's means or variances say anything: the plain mean of the heads."""
    strategy = build("fedpac", {}, model)
    zeros = {_H: np.zeros((3, 4), np.float32), _DEVIATION: np.array(0, np.float32)}
    updates = [
        _update(
            strategy,
            model,
            client,
            **{"params/head.bias": np.full(3, value, np.float32)},
            **zeros,
        )
        for client, value in (("a", 1), ("b", 3))
    ]
    after = strategy.aggregate(strategy.server_init(model, new_rng()), updates, server_tools())
    for client in "ab":
        head = strategy.downlink(after, client).tensors["params/head.bias"]
        np.testing.assert_allclose(head, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head_epochs": 0}, "setting 'head_epochs'"),
        ({"prototype_weight": -1}, "setting 'prototype_weight'"),
        ({"prototype_distance": "max"}, "`prototype_distance`: expected one of mean, sum"),
        ({"smallest_weight": 2}, "setting 'smallest_weight'"),
        ({"least_deviation": 2}, "setting 'least_deviation'"),
        ({"mu": 1}, "unknown key `mu`"),
    ],
)
def test_what_the_method_cannot_take_is_refused_by_name(model, settings, message):
    with pytest.raises(InputError, match=f"strategy 'fedpac': .*{message}"):
        build("fedpac", settings, model)


def test_a_model_without_features_or_head_is_refused_by_name(model):
    with pytest.raises(InputError, match="no program 'features'"):
        build("fedpac", {}, dataclasses.replace(model, features=0))
    with pytest.raises(InputError, match="does not say which parameters are its head"):
        build("fedpac", {}, dataclasses.replace(model, head=()))


def test_the_defaults_of_head_and_prototypes_are_those_of_the_authors_code(model):
    settings = build("fedpac", {}, model).settings
    assert settings.prototype_distance == "mean"
    assert settings.head_optimiser == Sgd(lr=0.1, momentum=0.5, weight_decay=5e-4)
    assert (settings.epochs, settings.head_epochs, settings.prototype_weight) == (5, 1, 1.0)
