"""FedHome against its equations, round by round, and SMOTE by itself."""

import dataclasses

import numpy as np
import pytest
from laws.case_fedhome import PROGRAMS, START, features, new_model
from oracle_errors import OracleRounds
from oracles.fedhome import FedHome, smote
from toy_model import changed, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.methods.fedhome import oversampled

_COHORTS = ("ab", "bcd", "a", "acd", "abcd", "cd")
_SETTINGS = {
    "epochs": 2,
    "batch_size": 1000,
    "refine_epochs": 3,
    "reconstruction_weight": 0.7,
    "neighbours": 2,
    "optimiser": {"kind": "sgd", "lr": 0.2},
}


def _data():
    """a has 6 and 2 of the classes, b 3 and 9, c only one class, d 5 and a single one."""
    rng = np.random.default_rng(5)
    counts = {"a": (6, 2), "b": (3, 9), "c": (4, 0), "d": (5, 1)}
    found = {}
    for name, (first, second) in counts.items():
        y = rng.permutation(np.repeat([0, 1], [first, second]))
        x = rng.normal(size=(len(y), 2)) + np.where(y[:, None] > 0, [1.5, 0], [0, 1])
        found[name] = x.astype(np.float32), y
    return found


def _draws(y, rng, k):
    """What the generator gives for each class that lacks rows, in its order."""
    counts = np.bincount(y)
    found = {}
    for label, count in enumerate(counts):
        missing = counts.max() - count
        if count and missing:
            start = rng.integers(count, size=missing)
            near = min(k, count - 1)
            others = rng.integers(near, size=missing) if near else np.zeros(missing, int)
            found[label] = list(zip(start, others, rng.random(missing), strict=True))
    return found


class Clients:
    """The strategy with these data."""

    def __init__(self, make_tools, **settings):
        self.data, self.make_tools, self.model = _data(), make_tools, new_model()
        self.strategy = build("fedhome", {**_SETTINGS, **settings}, self.model)
        self.server = self.strategy.server_init(self.model, new_rng())
        self.states = {name: self.strategy.client_init(self.model) for name in self.data}
        self.seen = {}

    def update(self, name, *, final=False):
        x, y = self.data[name]
        tools, self.seen[name] = self.make_tools(name, x)
        tools = changed(tools, x=x, y=y, grad_fns=PROGRAMS, features=features)
        payload = dataclasses.replace(self.strategy.downlink(self.server, name), final=final)
        self.states[name], update = self.strategy.client_update(self.states[name], payload, tools)
        return update

    def round(self, cohort):
        updates = [self.update(name) for name in cohort]
        self.server = self.strategy.aggregate(self.server, updates, server_tools())
        return updates


def _oracle():
    return FedHome(
        {name: (x.astype(np.float64), y) for name, (x, y) in _data().items()},
        START,
        lr=0.2,
        epochs=2,
        refine_epochs=3,
        weight=0.7,
        k=2,
    )


def test_rounds_with_some_of_the_clients_are_those_of_the_equations(make_tools):
    """And after the last one each client's head is refined on balanced features."""
    clients, oracle = Clients(make_tools), _oracle()
    rounds = OracleRounds("FedHome", _COHORTS, 2e-6)
    for cohort in _COHORTS:
        clients.round(cohort)
        oracle.round(cohort)
        for key, value in oracle.server.items():
            rounds.agree(clients.server.tensors[f"params/{key}"], value)
    for name, (_, y) in clients.data.items():
        update = clients.update(name, final=True)
        expected = oracle.refined(name, _draws(y, np.random.default_rng(1), 2))
        state, (scored,) = clients.states[name].tensors, clients.seen[name].evaluated
        for key, value in expected.items():
            rounds.agree(state[f"params/{key}"], value)
            np.testing.assert_array_equal(state[f"params/{key}"], scored.params[key])
            sent, came = (side.tensors[f"params/{key}"] for side in (update, clients.server))
            np.testing.assert_array_equal(sent, came)
        assert np.abs(expected["head"] - oracle.server["head"]).max() > 1e-3


def test_a_refinement_moves_the_head_alone_though_weights_decay(make_tools):
    sgd = {"kind": "sgd", "lr": 0.2, "weight_decay": 0.5}
    clients = Clients(make_tools, optimiser=sgd)
    clients.round("ab")
    clients.update("a", final=True)
    kept, came = clients.states["a"].tensors, clients.server.tensors
    for key in ("encoder", "decoder"):
        np.testing.assert_array_equal(kept[f"params/{key}"], came[f"params/{key}"])
    assert not np.array_equal(kept["params/head"], came["params/head"])


def test_rounds_that_refine_train_the_shared_model_as_others_do(make_tools):
    """The refined head is what the client keeps and is scored with; it is not sent."""
    plain, refining = Clients(make_tools), Clients(make_tools, refine_from=2)
    oracle = _oracle()
    for round_id in (1, 2, 3):
        refined = {
            name: oracle.refined(name, _draws(y, np.random.default_rng(1), 2))
            for name, (_, y) in refining.data.items()
        }
        for one, other in zip(plain.round("abcd"), refining.round("abcd"), strict=True):
            for key, value in one.tensors.items():
                np.testing.assert_allclose(other.tensors[key], value, rtol=1e-6, atol=1e-7)
        oracle.round("abcd")
        for name, state in refining.states.items():
            kept = state.tensors["params/head"]
            (scored,) = refining.seen[name].evaluated
            np.testing.assert_array_equal(kept, scored.params["head"])
            if round_id > 1:
                np.testing.assert_allclose(kept, refined[name]["head"], rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(
                    state.tensors["params/encoder"], refined[name]["encoder"], atol=1e-6
                )


@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_smote_is_its_definition_for_many_classes(k):
    rng = np.random.default_rng(k)
    y = rng.permutation(np.repeat([0, 1, 2, 4], [300, 1, 2, 37]))
    x = rng.normal(size=(len(y), 6)).astype(np.float32)
    found, labels = oversampled(x, y, neighbours=k, rng=np.random.default_rng(3))
    expected, classes = smote(x.astype(np.float64), y, k, _draws(y, np.random.default_rng(3), k))
    np.testing.assert_array_equal(labels, classes)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[: len(x)], x)
    assert np.bincount(labels).tolist() == [300, 300, 300, 0, 300]


def test_synthetic_rows_lie_between_two_of_their_class_more_of_them_than_a_block():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [900, 600])
    x = rng.normal(size=(1500, 3)).astype(np.float32) + 10 * y[:, None].astype(np.float32)
    found, labels = oversampled(x, y, neighbours=5, rng=rng)
    assert len(found) == 1800
    assert (labels[1500:] == 1).all()
    own = x[y == 1]
    assert (found[1500:] >= own.min(axis=0)).all()
    assert (found[1500:] <= own.max(axis=0)).all()


def test_balanced_examples_are_left_as_they_are():
    x, y = np.eye(4, dtype=np.float32), np.array([1, 0, 0, 1])
    found, labels = oversampled(x, y, neighbours=5, rng=new_rng())
    np.testing.assert_array_equal(found, x)
    np.testing.assert_array_equal(labels, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"neighbours": 0}, "setting 'neighbours'"),
        ({"reconstruction_weight": -1}, "setting 'reconstruction_weight'"),
        ({"refine_epochs": 0}, "setting 'refine_epochs'"),
        ({"refine_from": 0}, "setting 'refine_from'"),
        ({"mu": 1}, "strategy 'fedhome': .*unknown key `mu`"),
    ],
)
def test_what_the_method_cannot_take_is_refused_by_name(settings, message):
    with pytest.raises(InputError, match=message):
        build("fedhome", settings, new_model())


def test_a_model_without_features_is_refused(model):
    with pytest.raises(InputError, match="the bundle has no program 'features'"):
        build("fedhome", {}, model)
