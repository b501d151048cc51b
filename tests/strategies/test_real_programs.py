"""Strategies that share a model, with programs exported from PyTorch and run by ONNX Runtime."""

import numpy as np
import pytest
from real_federation import TRAINING, RealFederation, mean_accuracy, perceptron_bundle, real_bundle

pytestmark = pytest.mark.slow(seconds=1)

_SETTINGS = {
    "apple": {"optimiser": {"kind": "sgd", "lr": 0.3}, "relation_lr": 0.05},
    "fedamp": {"alpha": 0.3, "lam": 0.03},
    "fedclar": {"cluster_round": 2, "threshold": 0.01},
    "fedphp": {"participations": 4, "epochs": 6},
    "partialfed": {
        "optimiser": {"kind": "sgd", "lr": 0.2},
        "decision_optimiser": {"kind": "adam", "lr": 0.1},
    },
    "perfedavg": {"epochs": 4, "alpha": 0.1},
    "pfedme": {"lam": 1.0, "local_lr": 0.5},
}
"""Of those that have another pace than FedAvg."""
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


@pytest.mark.parametrize(
    "name",
    [
        "apfl",
        "apple",
        "fedala",
        "fedamp",
        "fedclar",
        "feddyn",
        "fedfomo",
        "fedphp",
        "fedprox",
        "fedper",
        "fedrep",
        "ditto",
        "moon",
        "local",
        "partialfed",
        "perfedavg",
        "pfedme",
    ],
)
def test_the_training_loss_falls(bundle, name):
    """Of clients that agree; MOON's has the contrast in it, log 2 in round 1 for equal models."""
    _, rounds = _run(bundle, name, 6, agree=True, **_SETTINGS.get(name, {}))
    first = next(one for one in rounds if np.isfinite(_mean_loss(one)))  # APPLE's trains nothing
    assert _mean_loss(rounds[-1]) < 0.8 * _mean_loss(first)
    assert mean_accuracy(rounds[-1]) > 0.8


@pytest.mark.parametrize(
    "name",
    [
        "apfl",
        "apple",
        "fedamp",
        "fedclar",
        "fedfomo",
        "fedphp",
        "fedper",
        "fedrep",
        "ditto",
        "local",
        "partialfed",
        "pfedme",
    ],
)
def test_personal_models_beat_the_shared_one_where_clients_disagree_about_labels(bundle, name):
    _, shared = _run(bundle, "fedavg", 8, score_at="start")
    _, personal = _run(bundle, name, 8, **_SETTINGS.get(name, {}))
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


def test_fedclar_parts_clients_that_disagree_and_leaves_together_those_that_agree(bundle):
    for agree, clusters in ((True, 1), (False, 3)):
        settings = {"cluster_round": 2, "threshold": 0.01}
        federation, _ = _run(bundle, "fedclar", 3, agree=agree, **settings)
        assert len(federation.server.tensors["profiles"]) == clusters
        final = federation.round(final=True)
        assert mean_accuracy(final) > 0.5


def test_fedhome_learns_to_reconstruct_and_refines_heads_of_clients_that_disagree(tmp_path):
    """Its loss has both terms; only the refined heads know what each client means."""
    model = {"steps": 4, "channels": 1, "classes": 3, "filters": (4,), "latent": 6, "kernel": 3}
    objectives = ("cross_entropy", "reconstruction", "head_cross_entropy")
    bundle = real_bundle(tmp_path / "autoencoder.pfb", objectives, ("autoencoder", model))
    _, agreed = _run(bundle, "fedhome", 6, agree=True)
    assert _mean_loss(agreed[-1]) < 0.8 * _mean_loss(agreed[0])
    federation, shared = _run(bundle, "fedhome", 6, score_at="start", refine_epochs=20)
    before = federation.server.tensors["params/head.weight"]
    final = federation.round(final=True)
    assert mean_accuracy(final) > mean_accuracy(shared[-1]) + 0.1
    assert mean_accuracy(final) > 0.8
    for state in federation.states:
        assert np.abs(state.tensors["params/head.weight"] - before).max() > 1e-3
        expand = state.tensors["params/expand.weight"]
        np.testing.assert_array_equal(expand, federation.server.tensors["params/expand.weight"])
