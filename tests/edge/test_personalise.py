"""A device that personalises by itself, and one that does so before its first round."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from personal import deliver_personal
from scripted_coordinator import FEDERATION
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.bundle import Bundle
from protofleet.bundle.keys import save_public_key
from protofleet.datasets import DeviceData
from protofleet.edge import LocalData, open_personal
from protofleet.edge.learning.personalise import head_first, personalise, store_head
from protofleet.edge.state.journal import read_journal
from protofleet.edge.state.store import Store
from protofleet.edge.state.stores import summarise
from protofleet.errors import InputError
from protofleet.federation.outcomes.gate import GateEvidence
from protofleet.runtime import open_programs

_CLASSES = ("class0", "class1", "class2")


def _data(count=60, seed=1):
    train, test = tiny_data(seed, count), tiny_data(seed + 1, 20)
    own = DeviceData(
        x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1], classes=_CLASSES
    )
    return LocalData(own=own)


@pytest.fixture
def world(world):
    """With a bundle that says what its head is."""
    key = Ed25519PrivateKey.generate()
    path = tiny_bundle(world.root / "headed", key, head=("w", "b"))
    public = key.public_key().public_bytes_raw()
    save_public_key(public, world.trust)
    bundle = Bundle.open(path, trusted={public})
    return replace(world, bundle_path=path, bundle=bundle)


class _Programs:
    """The tiny bundle's, whose program of features gives outputs: here features are inputs."""

    def __init__(self, bundle):
        self.predict = open_programs(bundle).predict

    def into_last_layer(self, _network, x, *, batch_size=None):  # noqa: ARG002 - the programs' signature
        return x


@pytest.fixture
def programs(world):
    return _Programs(world.bundle)


@pytest.fixture
def store(world):
    with Store.open(world.root / "anna", device_id="anna") as opened:
        yield opened


def _judged(gain):
    return GateEvidence(
        task="classification", examples=40, before=0.5, now=0.5 + gain, gain=gain, variance=0.005
    )


def test_a_head_is_trained_kept_and_served(world, programs, store):
    fitted = personalise(world.bundle, programs, _data())
    assert fitted.evidence.helps
    assert fitted.evidence.examples == 80
    store_head(store, world.bundle, fitted, _data())
    model = open_personal(store.folder)
    assert (model.model.served, model.round_id) == ("head", 0)
    assert model.model.reason == fitted.evidence.text
    x = _data().own.x_test
    features = programs.into_last_layer(world.bundle.model().network, x)
    np.testing.assert_allclose(model.predict(x).outputs, fitted.head(features), atol=1e-5)
    plain = open_personal(store.folder, use="bundle").predict(x).outputs
    np.testing.assert_array_equal(plain, programs.predict(world.bundle.model().network, x))
    with pytest.raises(InputError, match="no round was finished yet"):
        open_personal(store.folder, use="personal")
    known = summarise(store.folder)
    assert (known.round_id, known.head, known.federation) == (0, True, "")


def test_what_an_owner_pins_answers_whatever_helps(personal_store, world, programs):
    fitted = personalise(world.bundle, programs, _data())
    with Store.open(personal_store, device_id="anna") as store:
        evidence = msgspec.structs.replace(_judged(0.2), kind="head")
        store_head(store, world.bundle, replace(fitted, evidence=evidence), _data())
        deliver_personal(store, 3, scale=3.0, evidence=_judged(0.4))
    model = open_personal(personal_store)
    assert model.model.served == "personal"
    policy = personal_store / "policy.toml"
    for pinned in ("bundle", "head", "personal"):
        policy.write_text(f'use = "{pinned}"')
        assert model.refresh()
        assert not model.refresh()
        assert model.model.served == open_personal(personal_store).model.served == pinned
        assert model.model.reason == f'pinned: use = "{pinned}" in policy.toml'
    assert open_personal(personal_store, use="bundle").model.served == "bundle"
    policy.unlink()
    assert model.refresh()
    assert model.model.reason.startswith("personal: ")


@pytest.mark.parametrize(
    ("rounds", "head", "served"),
    [
        (0.2, 0.4, "head"),
        (0.4, 0.2, "personal"),
        (-0.2, 0.2, "head"),
        (0.2, -0.2, "personal"),
        (-0.2, -0.3, "bundle"),
        (None, 0.4, "personal"),  # an earlier version's round
    ],
)
def test_of_a_head_and_a_federation_s_model_that_which_gains_more(  # noqa: PLR0917 - fixtures
    personal_store, world, programs, rounds, head, served
):
    fitted = personalise(world.bundle, programs, _data())
    with Store.open(personal_store, device_id="anna") as store:
        evidence = msgspec.structs.replace(_judged(head), kind="head")
        kept = replace(fitted, evidence=evidence)
        store_head(store, world.bundle, kept, _data())
        deliver_personal(store, 3, scale=3.0, evidence=None if rounds is None else _judged(rounds))
    assert open_personal(personal_store).model.served == served
    known = summarise(personal_store)
    assert (known.federation, known.round_id, known.head) == (FEDERATION, 3, True)
    assert open_personal(personal_store, use="head").model.served == "head"


def test_a_device_trains_its_head_once_for_its_examples(world, programs, store):
    evidence = head_first(store, world.bundle, programs, _data())
    assert evidence.kind == "head"
    assert head_first(store, world.bundle, programs, _data()) is None
    assert read_journal(store.folder).head.binding.bundle == world.bundle.digest


def test_labels_that_come_between_rounds_train_the_head_anew(personal_store, world, programs):
    with Store.open(personal_store, device_id="anna") as store:
        deliver_personal(store, 3, scale=3.0, evidence=_judged(-0.2))
        assert head_first(store, world.bundle, programs, _data(0)) is None
        few = head_first(store, world.bundle, programs, _data(12))
        more = head_first(store, world.bundle, programs, _data(60))
        assert head_first(store, world.bundle, programs, _data(60)) is None
    assert (few.examples, more.examples) == (32, 80)
    assert open_personal(personal_store).model.served == "head"
    assert read_journal(personal_store).last_round_id == 3


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "expected labelled training examples, got none"), (2001, "expected at most 2000")],
)
def test_what_no_head_can_be_trained_on_is_named(  # noqa: PLR0917 - fixtures
    world, programs, store, caplog, count, said
):
    caplog.set_level("INFO", logger="protofleet")
    with pytest.raises(InputError, match=said):
        personalise(world.bundle, programs, _data(count))
    assert head_first(store, world.bundle, programs, _data(count)) is None
    assert said in caplog.text
    assert read_journal(store.folder).head is None
