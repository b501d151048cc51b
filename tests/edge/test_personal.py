"""The personal model in use: from a store or a bundle, beside a device that goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from personal import deliver_personal
from tiny_bundle import tiny_bundle, tiny_data

import protofleet
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData
from protofleet.edge.personal import checked_examples, open_personal
from protofleet.edge.state.journal import bundle_path
from protofleet.edge.state.store import Store
from protofleet.errors import InputError, ProvisionError
from protofleet.federation.outcomes.gate import GateEvidence


def _softmax(scores):
    powers = np.exp(scores)
    return powers / powers.sum(axis=1, keepdims=True)


def test_a_store_alone_predicts_with_its_personal_model(personal_store):
    model = protofleet.open_personal(personal_store)
    assert (model.round_id, model.names) == (2, ("class0", "class1", "class2"))
    assert model.model.strategy == "fedavg"
    x, _ = tiny_data(3, 40)
    found = model.predict(x)
    np.testing.assert_allclose(found.probabilities, _softmax(3.0 * x[:, :3]), rtol=1e-5)
    np.testing.assert_array_equal(found.indices, x[:, :3].argmax(axis=1))
    assert found.labels == [f"class{k}" for k in x[:, :3].argmax(axis=1)]
    assert len(found) == 40
    (one,) = model.predict(x[0]).labels
    assert one == found.labels[0]


def test_a_bundle_without_a_store_predicts_with_its_own_values(world):
    model = protofleet.open_personal(bundle=world.bundle_path)
    x, _ = tiny_data(3, 8)
    w = world.bundle.model().params["w"]
    np.testing.assert_allclose(model.predict(x).probabilities, _softmax(x @ w), rtol=1e-5)
    assert (model.round_id, model.model.strategy, model.refresh()) == (0, "", False)


def test_a_model_stays_that_of_its_round_until_it_is_refreshed(personal_store):
    """The device goes on meanwhile, in the same process and with the store locked."""
    x, _ = tiny_data(3, 8)
    with Store.open(personal_store) as store:
        model = protofleet.open_personal(personal_store)
        before = model.predict(x).probabilities
        assert not model.refresh()
        deliver_personal(store, 3, scale=-1.0)
        np.testing.assert_array_equal(model.predict(x).probabilities, before)
        assert model.refresh()
        assert model.round_id == 3
        np.testing.assert_allclose(model.predict(x).probabilities, _softmax(-x[:, :3]), rtol=1e-5)


def _judged(gain, **changes):
    """Evidence of forty examples, of which the personal model has so many more right."""
    known = {"task": "classification", "examples": 40, "before": 0.5, "variance": 0.005}
    return GateEvidence(**{**known, "now": 0.5 + gain, "gain": gain, **changes})


def test_the_bundle_s_own_model_is_served_unless_the_personal_one_helps(personal_store, world):
    x = np.eye(3, 4, dtype=np.float32)
    own = open_personal(bundle=world.bundle_path, trusted=[bytes.fromhex(world.bundle.signer)])
    opened = {}
    with Store.open(personal_store, device_id="anna") as store:
        for round_id, evidence in enumerate(
            (_judged(0.3), _judged(-0.3), _judged(0.0, examples=0), None), start=3
        ):
            deliver_personal(store, round_id, scale=3.0, evidence=evidence)
            model = open_personal(personal_store)
            assert model.round_id == round_id
            alike = np.array_equal(model.predict(x).outputs, own.predict(x).outputs)
            opened[round_id] = (model.model.served, alike, model.model.reason.split(":")[0])
            for use in ("personal", "bundle"):
                pinned = open_personal(personal_store, use=use)
                assert (pinned.model.served, pinned.model.reason) == (use, "")
                same = np.array_equal(pinned.predict(x).outputs, own.predict(x).outputs)
                assert same == (use == "bundle")
    assert opened == {
        3: ("personal", False, "personal"),
        4: ("bundle", True, "the bundle's model"),
        5: ("bundle", True, "the bundle's model"),
        6: ("personal", False, ""),  # an earlier version's
    }
    with pytest.raises(InputError, match="no head was trained alone; train one: protofleet"):
        open_personal(personal_store, use="head")
    with pytest.raises(
        InputError, match="use: expected one of auto, personal, head, bundle, got 'best'"
    ):
        open_personal(personal_store, use="best")


def test_what_is_in_use_may_change_with_a_refresh(personal_store):
    with Store.open(personal_store, device_id="anna") as store:
        deliver_personal(store, 3, scale=3.0, evidence=_judged(-0.3))
        model, pinned = (open_personal(personal_store, use=use) for use in ("auto", "personal"))
        assert (model.model.served, pinned.model.served) == ("bundle", "personal")
        deliver_personal(store, 4, scale=3.0, evidence=_judged(0.3))
        assert model.refresh()
        assert pinned.refresh()
        assert (model.model.served, pinned.model.served) == ("personal", "personal")
    trained = model.train(
        DeviceData(
            x_train=np.eye(3, 4, dtype=np.float32),
            y_train=np.arange(3),
            x_test=np.zeros((0, 4), np.float32),
            y_test=np.zeros(0, np.int64),
            classes=("class0", "class1", "class2"),
        )
    )
    assert (trained.model.served, trained.model.reason) == ("personal", "")


def test_while_rounds_are_committed_a_model_can_always_be_opened(personal_store):
    """Every state is removed as soon as the next one counts: readers find one of them, whole."""
    done = threading.Event()

    def rounds() -> None:
        with Store.open(personal_store) as store:
            for round_id in range(3, 60):
                deliver_personal(store, round_id, scale=float(round_id))
        done.set()

    thread = threading.Thread(target=rounds)
    thread.start()
    while not done.is_set():
        model = protofleet.open_personal(personal_store)
        scale = 3.0 if model.round_id == 2 else model.round_id
        assert model.model.network.params["w"][0, 0] == scale
    thread.join()
    assert protofleet.open_personal(personal_store).round_id == 59


def test_a_store_without_a_copy_takes_the_bundle_that_is_given(personal_store, world):
    bundle_path(personal_store, world.bundle.digest).unlink()
    with pytest.raises(InputError, match=r"keeps no copy of bundle .*; give --bundle"):
        protofleet.open_personal(personal_store)
    assert protofleet.open_personal(personal_store, bundle=world.bundle_path).round_id == 2


def test_another_bundle_than_the_stores_is_refused(personal_store, tmp_path):
    other = tiny_bundle(tmp_path / "other", Ed25519PrivateKey.generate(), settings={"epochs": 9})
    with pytest.raises(ProvisionError, match="its model is of bundle"):
        protofleet.open_personal(personal_store, bundle=other)


def test_examples_that_do_not_fit_are_named(personal_store):
    model = protofleet.open_personal(personal_store)
    for wrong, words in (
        (np.zeros((2, 5)), r"expected \(n, 4\) as the bundle's input, got \(2, 5\)"),
        ([[1, 2, 3, np.nan], [0, 0, 0, 0]], "NaN or infinite ones in 1 of 2, first in example 0"),
        ([["a", "b", "c", "d"]], "expected numbers"),
        ([["1", "2", "3", "4"]], "expected numbers, got text"),
        ([[1j, 2, 3, 4]], "expected real numbers, got complex128"),
        ([[1, 2], [3]], "expected numbers"),
        ([[1e300, 2, 3, 4]], "NaN or infinite ones in 1 of 1"),
        (3.0, r"got \(\)"),
    ):
        with pytest.raises(InputError, match=words):
            model.predict(wrong)
    assert len(model.predict(np.zeros((0, 4)))) == 0


def test_raw_readings_are_normalised_with_the_bundles_mean_and_std():
    inputs = Preprocessing(input_shape=(2, 3), mean=(1.0, 2.0, 3.0), std=(2.0, 2.0, 4.0))
    readings = np.array([[[3, 2, 3], [1, 4, 7]]])
    np.testing.assert_array_equal(
        checked_examples(readings, inputs, raw=True), [[[1, 0, 0], [0, 1, 1]]]
    )
    np.testing.assert_array_equal(checked_examples(readings, inputs), readings)
    tokens = Preprocessing(input_shape=(3,), tokens=5, mean=(1.0,))
    np.testing.assert_array_equal(checked_examples([[4, 0, 1]], tokens, raw=True), [[4, 0, 1]])
    with pytest.raises(InputError, match="examples: expected tokens"):
        checked_examples([[5, 0, 1]], tokens)


def test_latency_is_of_single_windows(personal_store):
    found = protofleet.open_personal(personal_store).latency(np.zeros((2, 4)))
    assert 0 < found.p50 <= found.p95 <= found.p99


def test_an_empty_folder_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="nothing there; join a federation first"):
        protofleet.open_personal(tmp_path)
