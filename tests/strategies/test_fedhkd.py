"""FedHKD against its published equations, with programs that are really exported."""

import dataclasses

import numpy as np
import pytest
from oracle_errors import OracleRounds
from oracle_federation import COHORTS, OracleFederation, client_data, perceptron_bundle
from oracles.fedhkd import FedHKD
from toy_model import array, new_rng, server_tools
from toy_prototypes import HEAD, prototype_model

from protofleet.errors import InputError, RefusedError
from protofleet.strategies import build
from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.optimisers import Adam
from protofleet.strategies.types import Update

_SGD = {"lr": 0.1, "momentum": 0.5}
_TEACHING = {"prediction_weight": 0.7, "feature_weight": 0.4, "temperature": 0.6}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("fedhkd") / "perceptron.pfb"
    return perceptron_bundle(path, "mlp", "hyper_knowledge")


def _settings(**changed):
    return {"epochs": 2, "optimiser": {"kind": "sgd", **_SGD}, **_TEACHING, **changed}


def _oracle(federation):
    tensors = federation.server.tensors.items()
    start = {n.removeprefix("params/"): v for n, v in tensors if n.startswith("params/")}
    return FedHKD(
        start,
        client_data(),
        3,
        lam=_TEACHING["prediction_weight"],
        gamma=_TEACHING["feature_weight"],
        temperature=_TEACHING["temperature"],
        sgd={"steps": 2, **_SGD},
    )


@pytest.mark.slow
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(bundle):
    federation = OracleFederation(bundle, "fedhkd", _settings())
    oracle = _oracle(federation)
    rounds = OracleRounds("FedHKD", COHORTS, 2e-6)
    for cohort in COHORTS:
        federation.round(cohort)
        models = oracle.round(cohort)
        tensors = federation.server.tensors
        for name, value in oracle.params.items():
            rounds.agree(tensors[f"params/{name}"], value)
        for label, value in oracle.features.items():
            rounds.agree(tensors["prototypes"][label], value)
            rounds.agree(tensors["predictions"][label], oracle.predictions[label])
        assert tensors["present"].tolist() == [label in oracle.features for label in range(3)]
        for client, model in models.items():
            own = federation.states[client].tensors["params/head.weight"]
            rounds.agree(own, model["head.weight"])


@pytest.mark.slow
def test_gradients_of_the_oracle_are_those_of_its_loss(bundle):
    """Central differences in float64 along some parameters of every tensor."""
    oracle = _oracle(OracleFederation(bundle, "fedhkd", _settings()))
    oracle.round("abc")
    x, y = oracle.data["d"]
    grads = oracle.gradient(oracle.params, x, y)
    for name, value in oracle.params.items():
        for where in list(np.ndindex(value.shape))[:4]:
            sides = []
            for sign in (1, -1):
                moved = {key: array.copy() for key, array in oracle.params.items()}
                moved[name][where] += sign * 1e-6
                sides.append(oracle.loss(moved, x, y))
            slope = (sides[0] - sides[1]) / 2e-6
            assert grads[name][where] == pytest.approx(slope, rel=1e-4, abs=1e-7)


@pytest.mark.slow
def test_without_weights_it_is_fedavg_and_with_them_not(bundle):
    plain = OracleFederation(
        bundle, "fedavg", {k: v for k, v in _settings().items() if k not in _TEACHING}
    )
    off = {"prediction_weight": 0.0, "feature_weight": 0.0}
    sides = [OracleFederation(bundle, "fedhkd", _settings(**more)) for more in (off, {})]
    for federation in (plain, *sides):
        for _ in range(2):
            federation.round("abcd")
    without, taught = (side.server.tensors["params/head.weight"] for side in sides)
    expected = plain.server.tensors["params/head.weight"]
    np.testing.assert_allclose(without, expected, atol=1e-6)
    assert np.abs(taught - expected).max() > 1e-3


@pytest.mark.slow
def test_it_learns_from_real_programs(bundle):
    federation = OracleFederation(
        bundle, "fedhkd", {"epochs": 5, "optimiser": {"kind": "adam", "lr": 0.02}}
    )
    losses = [np.mean([update.loss for update in federation.round("abcd")]) for _ in range(10)]
    assert losses[-1] < 0.8 * losses[0]
    model = federation.strategy.server_model(federation.server)
    learners = federation.learners.values()
    counts = sum(learner.evaluate(model, score=None).own for learner in learners)
    assert np.trace(counts) > 0.55 * counts.sum()


@pytest.mark.slow
def test_one_draw_of_noise_may_serve_all_classes_of_a_client(bundle):
    """As in the authors' code; one for each class moves them differently."""
    settings = (_settings(noise=sigma, noise_draw="client") for sigma in (0.0, 3.0))
    plain, noisy = (OracleFederation(bundle, "fedhkd", each) for each in settings)
    (still,), (moved,) = (one.round("c") for one in (plain, noisy))
    drawn = moved.tensors["prototypes"] - still.tensors["prototypes"]
    rows = drawn[drawn.any(axis=1)]
    assert len(rows) == 2
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-5)
    assert np.abs(rows).max() > 0.5


@pytest.mark.slow
def test_noise_moves_features_of_the_classes_that_are_there_and_no_predictions(bundle):
    """A client of two classes: their rows differ by about sigma, the third stays zero."""
    quiet, loud = (
        OracleFederation(bundle, "fedhkd", _settings(noise=sigma)) for sigma in (0.0, 3.0)
    )
    one, two = (federation.round("c")[0].tensors for federation in (quiet, loud))
    apart = (two["prototypes"] - one["prototypes"]) / 3
    assert (apart[2] == 0).all()
    assert 0.3 < np.sqrt(np.mean(apart[:2] ** 2)) < 2
    assert not np.allclose(apart[0], apart[1])
    np.testing.assert_array_equal(one["predictions"], two["predictions"])
    np.testing.assert_array_equal(one["params/head.weight"], two["params/head.weight"])


def _update(client, counts, *, rows=1.0, shares=0.5):
    tensors = {
        "params/w": array([0, 0]),
        f"params/{HEAD}": prototype_model().params[HEAD],
        "prototypes": np.full((2, 2), rows, np.float32),
        "predictions": np.full((2, 2), shares, np.float32),
    }
    return Update(
        client_id=client,
        round_id=1,
        num_examples=max(sum(counts), 0),
        tensors=tensors,
        class_counts=np.array(counts),
    )


def test_knowledge_is_averaged_by_the_class_s_examples_and_kept_where_nobody_has_it():
    """Class 0: (3 · 1 + 1 · 5) / 4; class 1 nobody's, then the second client's, then kept."""
    strategy = build("fedhkd", {}, prototype_model())
    state = strategy.server_init(prototype_model(), new_rng())
    first = [_update("a", [3, 0]), _update("b", [1, 0], rows=5)]
    after = strategy.aggregate(state, first, server_tools())
    np.testing.assert_array_equal(after.tensors["prototypes"], [[2, 2], [0, 0]])
    assert after.tensors["present"].tolist() == [1, 0]
    later = strategy.aggregate(after, [_update("b", [0, 4], rows=8, shares=1)], server_tools())
    np.testing.assert_array_equal(later.tensors["prototypes"], [[2, 2], [8, 8]])
    np.testing.assert_array_equal(later.tensors["predictions"], [[0.5, 0.5], [1, 1]])
    assert later.tensors["present"].tolist() == [1, 1]


def test_a_median_leaves_a_liar_s_knowledge_out():
    strategy = build("fedhkd", {}, prototype_model())
    updates = [_update("a", [1, 1]), _update("b", [1, 1]), _update("z", [1, 1], rows=9e5)]
    tools = dataclasses.replace(server_tools(), aggregator=build_rule("median", {}))
    after = strategy.aggregate(strategy.server_init(prototype_model(), new_rng()), updates, tools)
    np.testing.assert_array_equal(after.tensors["prototypes"], np.ones((2, 2)))


@pytest.mark.parametrize("shares", [-3.0, 40.0])
def test_predictions_that_are_no_shares_are_refused(shares):
    strategy = build("fedhkd", {}, prototype_model())
    with pytest.raises(RefusedError, match="'predictions': expected shares from 0 to 1"):
        strategy.check(_update("a", [1, 1], shares=shares))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prediction_weight": -1}, "setting 'prediction_weight'"),
        ({"feature_weight": -1}, "setting 'feature_weight'"),
        ({"temperature": 0}, "setting 'temperature'"),
        ({"noise": -0.1}, "setting 'noise'"),
        ({"lam": 1}, "unknown key `lam`"),
    ],
)
def test_what_the_method_cannot_take_is_refused_by_name(settings, message):
    with pytest.raises(InputError, match=f"strategy 'fedhkd': .*{message}"):
        build("fedhkd", settings, prototype_model())


def test_a_model_without_features_is_refused_by_name():
    with pytest.raises(InputError, match="no program 'features'"):
        build("fedhkd", {}, dataclasses.replace(prototype_model(), features=0))


def test_the_defaults_are_those_of_the_authors():
    settings = build("fedhkd", {}, prototype_model()).settings
    assert settings.optimiser == Adam(lr=0.001)
    assert (settings.prediction_weight, settings.feature_weight) == (0.05, 0.05)
    assert (settings.temperature, settings.noise) == (0.5, 0.0)
