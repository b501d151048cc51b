"""Strategies that share a model, with programs exported from PyTorch and run by ONNX Runtime."""

import numpy as np
import pytest
from real_federation import TRAINING, RealFederation, mean_accuracy, perceptron_bundle

pytestmark = pytest.mark.slow(seconds=1)

_LOCAL_INIT = {"kind": "ala", "max_passes": 20}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("real") / "perceptron.pfb"
    return perceptron_bundle(path, ("cross_entropy", "moon", "fedphp"))


def _run(bundle, name, rounds, *, agree=False, **settings):
    federation = RealFederation(bundle, name, {**TRAINING, **settings}, agree=agree)
    return federation, [federation.round() for _ in range(rounds)]


def _mean_loss(updates):
    return float(np.mean([update.loss for update in updates]))


_OWN_SETTINGS = {
    "apple": {"optimiser": {"kind": "sgd", "lr": 0.3}},
    "fedamp": {"alpha": 0.3, "lam": 0.03},
    "fedphp": {"participations": 4, "epochs": 6},
}
"""APPLE's core model moves by a third of its gradient, FedPHP's personal one by a part of a round's
way; three models so small are near each other for FedAMP, whoever wants what."""


@pytest.mark.parametrize(
    "name",
    [
        "apple",
        "fedala",
        "fedamp",
        "fedfomo",
        "fedphp",
        "fedprox",
        "fedper",
        "fedrep",
        "ditto",
        "moon",
        "local",
    ],
)
def test_the_training_loss_falls(bundle, name):
    """Of clients that agree; MOON's has the contrast in it, log 2 in round 1 for equal models."""
    _, rounds = _run(bundle, name, 6, agree=True, **_OWN_SETTINGS.get(name, {}))
    assert _mean_loss(rounds[-1]) < 0.8 * _mean_loss(rounds[0])
    assert mean_accuracy(rounds[-1]) > 0.8


@pytest.mark.parametrize(
    "name", ["apple", "fedamp", "fedfomo", "fedphp", "fedper", "fedrep", "ditto", "local"]
)
def test_personal_models_beat_the_shared_one_where_clients_disagree_about_labels(bundle, name):
    _, shared = _run(bundle, "fedavg", 8, score_at="start")
    _, personal = _run(bundle, name, 8, **_OWN_SETTINGS.get(name, {}))
    assert mean_accuracy(personal[-1]) > 0.8 > mean_accuracy(shared[-1])


def test_fedala_scores_above_the_shared_model_before_it_trains(bundle):
    """In round 1 both score the untrained model."""
    _, shared = _run(bundle, "fedavg", 8, score_at="start")
    federation, mixed = _run(bundle, "fedala", 8)
    assert mean_accuracy(mixed[0]) == mean_accuracy(shared[0])
    assert mean_accuracy(mixed[-1]) > mean_accuracy(shared[-1]) + 0.1
    for state in federation.states:
        weights = {name for name in state.tensors if name.startswith("ala/")}
        assert weights == {"ala/head.weight", "ala/head.bias"}
        assert 0 <= state.tensors["ala/head.weight"].min() < 1


def test_local_init_lifts_fedavg_at_the_same_moment(bundle):
    _, plain = _run(bundle, "fedavg", 8, score_at="start")
    _, mixed = _run(bundle, "fedavg", 8, score_at="start", local_init=_LOCAL_INIT)
    assert mean_accuracy(mixed[-1]) > mean_accuracy(plain[-1]) + 0.1


def test_moon_differs_from_fedavg_by_its_contrast_alone(bundle):
    """With mu 0 every bit of two rounds is FedAvg's; with mu 1 not."""
    _, plain = _run(bundle, "fedavg", 2)
    _, without = _run(bundle, "moon", 2, mu=0.0)
    _, contrasted = _run(bundle, "moon", 2)
    for one, two, three in zip(plain[1], without[1], contrasted[1], strict=True):
        for name, value in one.tensors.items():
            np.testing.assert_allclose(two.tensors[name], value, atol=1e-6)
        assert (
            np.abs(
                three.tensors["params/body.0.weight"] - one.tensors["params/body.0.weight"]
            ).max()
            > 1e-4
        )


def test_the_final_fit_of_fedavg_c_is_scored_above_its_last_round_s_global_model(bundle):
    federation, rounds = _run(bundle, "fedavg_c", 4, score_at="start")
    final = federation.round(final=True)
    assert mean_accuracy(final) > mean_accuracy(rounds[-1]) + 0.1
