"""FedNH against its published equations, with programs that are really exported."""

import dataclasses

import numpy as np
import pytest
from oracle_errors import OracleRounds
from oracle_federation import COHORTS, OracleFederation, client_data, perceptron_bundle
from oracles.fednh import FedNH, unit
from toy_model import array, frozen_map, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import DESCRIPTIONS, build
from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.optimisers import Sgd
from protofleet.strategies.types import Update
from protofleet.tensors import Model

_DIRECTIONS = "params/head.directions"
_SGD = {"lr": 0.2, "momentum": 0.9, "weight_decay": 1e-3}
_FAST = {"sphere_steps": 60}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("fednh") / "perceptron.pfb"
    return perceptron_bundle(path, "mlp_prototypes", "cross_entropy", head_kind="cosine")


def _model(features=2, classes=2):
    params = {"w": [0, 0], "head.directions": np.eye(classes, features), "head.scale": 1.0}
    return Model(
        params=frozen_map(params),
        buffers=frozen_map({}),
        num_classes=classes,
        input_shape=(2,),
        head=("head.directions", "head.scale"),
        features=features,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("means", "by_examples", "clip"), [("plain", False, 0.3), ("unit", True, None)]
)
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(
    bundle, means, by_examples, clip
):
    """Two steps a round; in the first rounds the gradient is longer than the clip."""
    settings = {
        "epochs": 2,
        "optimiser": {"kind": "sgd", **_SGD},
        "clip_norm": clip,
        "lr_decay": 0.8,
        "smoothing": 0.7,
        "class_means": means,
        "by_examples": by_examples,
        **_FAST,
    }
    federation = OracleFederation(bundle, "fednh", settings)
    start = {n.removeprefix("params/"): v for n, v in federation.server.tensors.items()}
    oracle = FedNH(
        start,
        client_data(),
        sgd={"steps": 2, **_SGD, "clip": np.inf if clip is None else clip},
        decay=0.8,
        smoothing=0.7,
        unit_means=means == "unit",
        by_examples=by_examples,
    )
    rounds = OracleRounds("FedNH", COHORTS, 2e-6)
    for cohort in COHORTS:
        federation.round(cohort)
        models = oracle.round(cohort)
        tensors = federation.server.tensors
        for name, value in oracle.params.items():
            rounds.agree(tensors[f"params/{name}"], value)
        for client, model in models.items():
            own = federation.states[client].tensors["params/body.2.weight"]
            rounds.agree(own, model["body.2.weight"])
    assert not np.allclose(start["head.directions"], oracle.params["head.directions"], atol=0.1)


@pytest.mark.slow
def test_directions_stay_while_a_client_trains_and_the_scale_moves(bundle):
    federation = OracleFederation(bundle, "fednh", {"epochs": 1, **_FAST})
    before = federation.server.tensors
    updates = federation.round("ab")
    for update in updates:
        assert _DIRECTIONS not in update.tensors
        assert update.tensors["params/head.scale"] != before["params/head.scale"]
        np.testing.assert_array_equal(
            federation.states[update.client_id].tensors[_DIRECTIONS], before[_DIRECTIONS]
        )


@pytest.mark.slow
def test_it_learns_from_real_programs(bundle):
    """The loss falls, and the server's own model knows more than guessing would."""
    sgd = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
    federation = OracleFederation(bundle, "fednh", {"epochs": 20, "optimiser": sgd, **_FAST})
    losses = [np.mean([update.loss for update in federation.round("abcd")]) for _ in range(10)]
    assert losses[-1] < 0.8 * losses[0]
    model = federation.strategy.server_model(federation.server)
    learners = federation.learners.values()
    counts = sum(learner.evaluate(model, score=None).own for learner in learners)
    assert np.trace(counts) > 0.5 * counts.sum()


def _update(client, means, counts, *, w=(0, 0)):
    tensors = {
        "params/w": array(w),
        "params/head.scale": np.array(1, np.float32),
        "class_means": array(means),
    }
    return Update(
        client_id=client,
        round_id=1,
        num_examples=sum(counts),
        tensors=tensors,
        class_counts=np.array(counts),
    )


def test_a_class_that_nobody_has_keeps_its_direction():
    strategy = build("fednh", {"smoothing": 0.5, **_FAST}, _model())
    state = strategy.server_init(_model(), new_rng())
    old = state.tensors[_DIRECTIONS]
    updates = [_update("a", [[3, 4], [0, 0]], [2, 0]), _update("b", [[0, 2], [9, 9]], [1, 0])]
    after = strategy.aggregate(state, updates, server_tools()).tensors[_DIRECTIONS]
    np.testing.assert_array_equal(after[1], old[1])
    mean = unit((2 * np.array([3, 4]) + np.array([0, 2])) / 3)
    np.testing.assert_allclose(after[0], unit(old[0] / 2 + mean / 2), rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), 1, rtol=1e-6)


def test_clients_may_count_by_their_examples():
    for by_examples, expected in ((False, [2, 3]), (True, [1.5, 2.25])):
        strategy = build("fednh", {"by_examples": by_examples, **_FAST}, _model())
        updates = [
            _update("a", np.eye(2), [3, 3], w=(1, 1.5)),
            _update("b", np.eye(2), [1, 1], w=(3, 4.5)),
        ]
        state = strategy.server_init(_model(), new_rng())
        after = strategy.aggregate(state, updates, server_tools())
        np.testing.assert_allclose(after.tensors["params/w"], expected)


def test_directions_start_apart_or_orthogonal():
    """Three in the plane at 120 degrees; orthonormal rows, drawn by the generator."""
    wide = _model(features=8, classes=3)
    strategy = build("fednh", {}, wide)
    spread = strategy.server_init(wide, new_rng()).tensors[_DIRECTIONS]
    assert (spread @ spread.T)[~np.eye(3, dtype=bool)].max() < -0.4
    strategy = build("fednh", {"start": "orthogonal"}, wide)
    rows = strategy.server_init(wide, new_rng()).tensors[_DIRECTIONS]
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-6)
    other = strategy.server_init(wide, np.random.default_rng(1)).tensors[_DIRECTIONS]
    assert not np.allclose(rows, other)


def test_trained_directions_are_where_a_bundle_begins():
    """At length 1; the scale has their mean length, so that the outputs stay about as they were."""
    drawn = _model(features=8, classes=3)
    rows = np.arange(24).reshape(3, 8)
    params = {**drawn.params, "head.directions": rows, "head.scale": 2.0}
    wide = dataclasses.replace(drawn, params=frozen_map(params))
    lengths = np.linalg.norm(rows, axis=1)
    for start, trained, own in [("auto", 1, True), ("auto", 0, False), ("bundle", 0, True)]:
        model = dataclasses.replace(wide, trained_prototypes=bool(trained))
        state = build("fednh", {"start": start}, model).server_init(model, new_rng()).tensors
        assert np.allclose(state[_DIRECTIONS], unit(rows), atol=1e-6) == own
        assert state["params/head.scale"] == pytest.approx(2 * lengths.mean() if own else 2)


def test_a_median_leaves_a_liar_s_direction_out():
    strategy = build("fednh", {"smoothing": 0.0, **_FAST}, _model())
    honest = [_update(name, [[1, 0.1], [0, 1]], [1, 1]) for name in "ab"]
    updates = [*honest, _update("z", [[-9e5, 0], [9e5, 0]], [1, 1])]
    tools = dataclasses.replace(server_tools(), aggregator=build_rule("median", {}))
    after = strategy.aggregate(strategy.server_init(_model(), new_rng()), updates, tools)
    np.testing.assert_allclose(after.tensors[_DIRECTIONS], unit(np.array([[1, 0.1], [0, 1]])))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smoothing": 1.5}, "setting 'smoothing'"),
        ({"lr_decay": 1.1}, "setting 'lr_decay'"),
        ({"sphere_steps": -1}, "setting 'sphere_steps'"),
        ({"class_means": "median"}, "`class_means`: expected one of plain, unit"),
        ({"start": "random"}, "`start`: expected one of auto, bundle, orthogonal, spread"),
        ({"local_init": {"kind": "ala"}}, "setting 'local_init'"),
        ({"rho": 0.9}, "unknown key `rho`"),
    ],
)
def test_what_the_method_cannot_take_is_refused_by_name(settings, message):
    with pytest.raises(InputError, match=f"strategy 'fednh': .*{message}"):
        build("fednh", settings, _model())


def test_more_classes_than_features_have_no_orthogonal_start():
    narrow = _model(features=2, classes=3)
    with pytest.raises(InputError, match="3 classes have no orthogonal directions among 2"):
        build("fednh", {"start": "orthogonal"}, narrow)


def test_a_model_without_directions_is_refused_with_what_to_do():
    plain = dataclasses.replace(_model(), head=())
    with pytest.raises(InputError, match=r"a parameter 'directions' \(2, 2\).*--head-kind cosine"):
        build("fednh", {}, plain)


def test_the_defaults_are_those_of_the_authors():
    settings = build("fednh", {}, _model()).settings
    assert settings.optimiser == Sgd(lr=0.01, momentum=0.9, weight_decay=1e-5)
    assert (settings.smoothing, settings.lr_decay, settings.clip_norm) == (0.9, 0.99, 10.0)
    assert not settings.by_examples
    assert DESCRIPTIONS["fednh"].final_fit
