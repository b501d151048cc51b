"""FedCLAR against its definition, round by round: clusters, their models, and who joins later."""

import dataclasses

import numpy as np
import pytest
from oracle_errors import OracleRounds
from oracles.fedclar import FedClar
from sklearn.cluster import AgglomerativeClustering
from toy_model import changed, frozen_map, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.aggregation import clipped
from protofleet.strategies.methods import fedclar
from protofleet.strategies.methods.fedclar import average_linkage
from protofleet.strategies.types import Step
from protofleet.tensors import Model, TensorMap

_COUNTS = {"a": 2, "b": 3, "c": 1, "d": 2, "e": 1, "f": 4, "g": 1, "h": 2}
_TARGETS = {
    "a": [4, 1, 0.1],
    "b": [4, 1.2, 0],
    "c": [-1, 3, 2],
    "d": [-1, 2.8, 2.1],
    "e": [4.2, 0.9, 0],
    "f": [-2, -2, 5],
    "g": [-2.1, -2, 5],
    "h": [1, 1, -6],
}
"""Last layers: a, b and e alike, c and d, f and g, h like nobody."""
_COHORTS = ("abcd", "abd", "abcdh", "ace", "bdefg", "gh", "abcdefgh", "cf")
_LR, _STEPS = 0.3, 2
_SETTINGS = {
    "epochs": _STEPS,
    "optimiser": {"kind": "sgd", "lr": _LR},
    "cluster_round": 3,
    "threshold": 0.02,
}


def _model():
    return Model(
        params=frozen_map({"w": [1, -1], "head.b": [1, 1, 1]}),
        buffers=frozen_map({}),
        num_classes=2,
        input_shape=(2,),
        head=("head.b",),
    )


def _gradients(name, w, b):
    """Of a loss whose parts do not part: w's pull depends on b."""
    target = np.array(_TARGETS[name])
    return 0.5 * (w - target[:2]) + 0.1 * b[:2], 0.8 * (b - target)


def _trained(name, params):
    """Plain SGD in float64."""
    w, b = params["w"], params["head.b"]
    for _ in range(_STEPS):
        to_w, to_b = _gradients(name, w, b)
        w, b = w - _LR * to_w, b - _LR * to_b
    return {"w": w, "head.b": b}


class Clients:
    """The strategy with clients of these gradients."""

    def __init__(self, make_tools, **settings):
        self.model, self.make_tools = _model(), make_tools
        self.strategy = build("fedclar", {**_SETTINGS, **settings}, self.model)
        self.server = self.strategy.server_init(self.model, new_rng())
        self.states = {name: self.strategy.client_init(self.model) for name in _COUNTS}

    def tools(self, name):
        tools, _ = self.make_tools(name, [[0, 0]] * _COUNTS[name])

        def grad_fn(network, _batch, _rng):
            grads = TensorMap.zeros(network.params.layout)
            found = _gradients(name, network.params["w"], network.params["head.b"])
            grads["w"][...], grads["head.b"][...] = found
            return Step(loss=0.0, grads=grads, buffers=network.buffers)

        return changed(tools, grad_fns={"task_loss": grad_fn})

    def update(self, name, *, final=False):
        payload = dataclasses.replace(self.strategy.downlink(self.server, name), final=final)
        self.strategy.payload.check(payload.tensors)
        self.states[name], update = self.strategy.client_update(
            self.states[name], payload, self.tools(name)
        )
        return update

    def round(self, cohort, tools=None):
        updates = [self.update(name) for name in cohort]
        self.server = self.strategy.aggregate(self.server, updates, tools or server_tools())
        return updates

    def sent_to(self, name):
        sent = self.strategy.downlink(self.server, name).tensors
        return {key.removeprefix("params/"): value for key, value in sent.items()}


def _oracle():
    train = {name: lambda p, name=name: _trained(name, p) for name in _COUNTS}
    start = {"w": [1, -1], "head.b": [1, 1, 1]}
    return FedClar(train, _COUNTS, start, head=["head.b"], cluster_round=3, threshold=0.02)


def test_rounds_with_some_of_the_clients_are_those_of_the_definition(make_tools):
    """Clusters {a, b, e}, {c, d}, {h} and, founded by clients that come later, {f, g}."""
    clients, oracle = Clients(make_tools), _oracle()
    rounds = OracleRounds("FedCLAR", _COHORTS, 2e-6)
    for cohort in _COHORTS:
        clients.round(cohort)
        oracle.round(cohort)
        for name in _COUNTS:
            expected = oracle.sent_to(name)
            for key, value in clients.sent_to(name).items():
                rounds.agree(value, expected[key])
    assert sorted(map(sorted, oracle.clusters)) == [["a", "b", "e"], ["c", "d"], ["f", "g"], ["h"]]
    for name in _COUNTS:
        update = clients.update(name, final=True)
        np.testing.assert_array_equal(
            update.tensors["params/head.b"], clients.sent_to(name)["head.b"]
        )
        fitted = clients.states[name].tensors
        received = oracle.sent_to(name)
        _, to_b = _gradients(name, *received.values())  # one pass, where a round has two
        np.testing.assert_array_equal(fitted["params/w"], clients.sent_to(name)["w"])
        np.testing.assert_allclose(
            fitted["params/head.b"], received["head.b"] - _LR * to_b, atol=1e-6
        )


def test_before_the_cluster_round_every_bit_is_fedavg_s(make_tools):
    clients = Clients(make_tools)
    plain = build("fedavg", {"epochs": _STEPS, "optimiser": _SETTINGS["optimiser"]}, _model())
    server = plain.server_init(_model(), new_rng())
    for cohort in _COHORTS[:2]:
        updates = clients.round(cohort)
        server = plain.aggregate(server, updates, server_tools())
        assert clients.server.tensors.keys() == server.tensors.keys()
        for key, value in server.tensors.items():
            np.testing.assert_array_equal(clients.server.tensors[key], value)


def test_the_clusters_come_in_the_first_round_with_updates_from_the_cluster_round_on(make_tools):
    clients = Clients(make_tools, cluster_round=1)
    clients.round("")
    assert "labels" not in clients.server.tensors
    clients.round("ch")
    assert clients.server.tensors["labels"].tolist() == [0, 1]


@pytest.mark.parametrize(("threshold", "clusters"), [(0.0, 4), (2.0, 1)])
def test_the_threshold_s_ends_are_everyone_alone_and_all_in_one(make_tools, threshold, clusters):
    clients = Clients(make_tools, cluster_round=1, threshold=threshold)
    sent = clients.round("acfh")
    assert len(clients.server.tensors["clusters/params/w"]) == clusters
    if clusters == 4:
        for name, update in zip("acfh", sent, strict=True):
            np.testing.assert_array_equal(clients.sent_to(name)["w"], update.tensors["params/w"])


def test_a_liar_of_another_cluster_moves_nobody_and_a_rule_holds_inside_of_each(make_tools):
    """a, b, e share a cluster; in round 2 e sends numbers a million times too large."""
    clients = Clients(make_tools, cluster_round=1)
    clients.round("abcde")
    apart = clients.sent_to("c")
    updates = {name: clients.update(name) for name in "abcde"}
    huge = {key: value * np.float32(1e6) for key, value in updates["e"].tensors.items()}
    updates["e"] = dataclasses.replace(updates["e"], tensors=huge)
    rule = dataclasses.replace(server_tools(), aggregator=build_rule("median", {}))
    clients.server = clients.strategy.aggregate(clients.server, list(updates.values()), rule)
    honest = np.stack([updates[name].tensors["params/w"] for name in "abe"])
    np.testing.assert_array_equal(clients.sent_to("a")["w"], np.median(honest, axis=0))
    assert np.abs(clients.sent_to("a")["w"]).max() < 10
    assert np.abs(clients.sent_to("c")["w"] - apart["w"]).max() < 1


class _Counted(list):
    """Updates that count how often they are read."""

    readings = 0

    def __iter__(self):
        self.readings += 1
        return super().__iter__()


@pytest.mark.parametrize("kind", ["mean", "median"])
def test_updates_of_small_clusters_are_read_together_and_no_bit_changes(
    make_tools, kind, monkeypatch
):
    """Eight clients, four clusters; there is room for all, for three (of 20 bytes), or for one."""
    clients = Clients(make_tools, cluster_round=1)
    clients.round("abcdefgh")
    updates = [clients.update(name) for name in "abcdefgh"]
    told, ends, readings = [], [], []
    for held in (1 << 27, 60, 1):
        monkeypatch.setattr(fedclar, "_HELD", held)
        counted, clipped_ones = _Counted(updates), []
        rule = clipped(build_rule(kind, {}), 1.0, clipped_ones.append)
        tools = dataclasses.replace(server_tools(), aggregator=rule)
        ends.append(clients.strategy.aggregate(clients.server, counted, tools).tensors)
        told.append(clipped_ones)
        readings.append(counted.readings)
    assert told[0]
    assert told[0] == told[1] == told[2]
    for one in told[0]:  # by how far an update lies from its own cluster's model
        sent, name = updates[one.position].tensors, "abcdefgh"[one.position]
        gaps = [sent[f"params/{key}"] - value for key, value in clients.sent_to(name).items()]
        assert one.norm == pytest.approx(np.linalg.norm(np.concatenate(gaps)), rel=1e-5)
    for end in ends[1:]:
        for key, value in ends[0].items():
            np.testing.assert_array_equal(end[key], value)
    assert readings[0] == 2  # one for the last layers, one for all clusters
    assert readings[0] < readings[1] < readings[2]


@pytest.mark.parametrize("threshold", [1e-3, 0.05, 0.4, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_linkage_is_scikit_learn_s(seed, threshold):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(6, 5))
    points = centres[rng.integers(6, size=40)] + 0.3 * rng.normal(size=(40, 5))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    distances = 1 - points @ points.T
    distances = (distances + distances.T) / 2
    expected = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="average", distance_threshold=threshold
    ).fit_predict(distances)
    found = average_linkage(distances, threshold)
    pairs = set(zip(expected.tolist(), found.tolist(), strict=True))
    assert len(pairs) == len(set(expected.tolist())) == len(set(found.tolist()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cluster_round": 0}, "setting 'cluster_round'"),
        ({"threshold": -1}, "setting 'threshold'"),
        ({"threshold": 2.1}, "setting 'threshold'"),
        ({"fine_tune_epochs": 0}, "setting 'fine_tune_epochs'"),
        ({"head": "tail."}, "head: expected some parameters, not all and not none"),
        ({"mu": 1}, "strategy 'fedclar': .*unknown key `mu`"),
    ],
)
def test_what_the_method_cannot_take_is_refused_by_name(settings, message):
    with pytest.raises(InputError, match=message):
        build("fedclar", settings, _model())
