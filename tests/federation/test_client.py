"""The client's half of a round, from a coded payload to a coded update."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle

from protofleet.bundle import Bundle
from protofleet.errors import RefusedError
from protofleet.federation.client import (
    ClientMemory,
    RoundConfig,
    open_payload,
    receive_payload,
    train_round,
)
from protofleet.federation.coding import (
    decode_update,
    encode_payload,
    initial_tensors,
    payload_baseline,
    update_baseline,
)
from protofleet.federation.records import Costs
from protofleet.strategies.types import ClientState, TensorSchema, TensorSchemas, Update
from protofleet.tensors import blobs
from protofleet.wire.codecs import Codec, Coding

_LIMIT = 1 << 20
_INT8 = Codec.of("int8+zlib")


@pytest.fixture
def model(tmp_path):
    """Large enough for codecs to code it."""
    path = tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate(), features=40)
    return Bundle.open(path, any_signer=True).model()


class _Learner:
    """Adds random numbers to what it received; its state says how often it was trained.

    Attributes:
        log: what was done, in order.
    """

    def __init__(self, model):
        self.model = model
        self.log = []

    def train(self, strategy, state, payload, *, seed, work):
        assert work == 1
        self.log.append(("train", strategy, payload.round_id, payload.final, seed))
        rng = np.random.default_rng(payload.round_id)
        tensors = {
            name: value + rng.normal(0, 0.1, value.shape).astype(np.float32)
            for name, value in payload.tensors.items()
        }
        before = 0 if state is None else int(state.tensors["n"][0])
        state = ClientState(round_id=payload.round_id, tensors={"n": np.array([before + 1])})
        update = Update(
            client_id="a", round_id=payload.round_id, num_examples=5, tensors=tensors, loss=0.5
        )
        return state, update

    @contextmanager
    def phase(self, name):
        self.log.append((name, "begins"))
        yield
        self.log.append((name, "ends"))


def _order(round_id=1, **changes):
    return RoundConfig(round_id=round_id, seed=7, **changes)


def _no_earlier(reference):
    raise RefusedError("base", reference)


def _receive(model, blob, coding=None, order=None, earlier=_no_earlier):
    return receive_payload(
        blob,
        coding or Coding(),
        order or _order(),
        model=model,
        earlier=earlier,
        forms=_forms(model),
    )


def _forms(model):
    """Those of the model's own tensors."""
    return TensorSchemas(
        required={name: TensorSchema(value.shape) for name, value in initial_tensors(model).items()}
    )


def _train(learner, received, memory=None):
    def costs(state):
        learner.log.append(("costs", int(state.tensors["n"][0])))
        return Costs(peak_rss_bytes=9)

    return train_round(learner, "strategy", memory or ClientMemory(), received, costs=costs)


def _decoded(trained, received, model):
    """What a server makes of the update."""
    baseline = update_baseline(model, received.payload.tensors)
    return decode_update(trained.blob, trained.coding, baseline, max_bytes=_LIMIT)


def test_a_raw_round_arrives_and_leaves_bit_for_bit(model):
    tensors = initial_tensors(model)
    blob = blobs.encode(tensors)
    received = _receive(model, blob, order=_order(2, final=True))
    assert (received.raw, received.payload.round_id, received.payload.final) == (blob, 2, True)
    for name, value in received.payload.tensors.items():
        np.testing.assert_array_equal(value, tensors[name])
        assert not value.flags.writeable
    trained = _train(_Learner(model), received)
    assert (trained.coding, dict(trained.residual)) == (Coding(), {})
    found = _decoded(trained, received, model)
    for name, value in trained.update.tensors.items():
        np.testing.assert_array_equal(found.update.tensors[name], value)
    assert (found.record.round_id, found.record.loss) == (2, 0.5)
    assert found.record.costs == trained.costs == Costs(peak_rss_bytes=9)


def test_a_coded_round_refers_to_what_its_client_really_decoded(model):
    sent = encode_payload(
        {n: v + np.float32(0.3) for n, v in initial_tensors(model).items()},
        _INT8,
        "",
        payload_baseline(model, {}),
    )
    received = _receive(model, sent.blob, sent.coding, _order(codec=_INT8))
    assert received.raw == sent.raw != sent.blob
    trained = _train(_Learner(model), received)
    assert (trained.coding.codec, trained.coding.reference) == ("int8+zlib", sent.reference)
    found = _decoded(trained, received, model).update.tensors
    exact = trained.update.tensors["params/w"]
    assert np.abs(found["params/w"] - exact).max() > 0
    lost = trained.residual["params/w"].reshape(exact.shape)
    np.testing.assert_allclose(found["params/w"] + lost, exact, atol=1e-6)


def test_what_coding_loses_is_added_to_the_next_update(model):
    learner, memory, exact, arrived = _Learner(model), ClientMemory(), 0.0, 0.0
    for round_id in (1, 2, 3):
        order = _order(round_id, codec=Codec.of("topk", keep=0.1))
        received = _receive(model, blobs.encode(initial_tensors(model)), order=order)
        trained = _train(learner, received, memory)
        memory = ClientMemory(state=trained.state, residual=trained.residual)
        exact = exact + trained.update.tensors["params/w"]
        arrived = arrived + _decoded(trained, received, model).update.tensors["params/w"]
    lost = memory.residual["params/w"].reshape(exact.shape)
    np.testing.assert_allclose(arrived + lost, exact, atol=1e-5)
    assert np.abs(lost).max() > 0.01
    assert memory.state.tensors["n"].tolist() == [3]


def test_costs_are_taken_after_training_and_before_encoding(model):
    """The update tells them, so its own encoding counts in the next round."""
    learner = _Learner(model)
    _train(learner, _receive(model, blobs.encode(initial_tensors(model))))
    assert learner.log == [
        ("train", "strategy", 1, False, 7),
        ("costs", 1),
        ("encode", "begins"),
        ("encode", "ends"),
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_payload_that_is_not_finite_is_refused_coded_or_not(model, bad):
    tensors = initial_tensors(model)
    tensors["params/b"] = np.array([0, bad, 0], np.float32)
    coded = encode_payload(tensors, _INT8, "", payload_baseline(model, {}))
    for blob, coding in ((blobs.encode(tensors), Coding()), (coded.blob, coded.coding)):
        with pytest.raises(RefusedError) as caught:
            _receive(model, blob, coding)
        assert caught.value.rule == "finite"


def test_a_payload_that_refers_to_an_earlier_one_is_decoded_with_it(model):
    first = encode_payload(initial_tensors(model), _INT8, "", payload_baseline(model, {}))
    earlier, _ = blobs.decode(first.raw, max_bytes=_LIMIT)
    moved = {name: value + np.float32(1) for name, value in initial_tensors(model).items()}
    second = encode_payload(moved, _INT8, first.reference, payload_baseline(model, earlier))
    received = _receive(
        model, second.blob, second.coding, earlier={first.reference: earlier}.__getitem__
    )
    assert received.raw == second.raw
    with pytest.raises(RefusedError) as caught:
        _receive(model, second.blob, second.coding)
    assert (caught.value.rule, str(caught.value)) == ("base", first.reference)


def test_a_payload_that_was_received_before_is_the_same_when_it_is_opened(model):
    sent = encode_payload(initial_tensors(model), _INT8, "", payload_baseline(model, {}))
    received = _receive(model, sent.blob, sent.coding)
    opened = open_payload(received.raw, received.order, _forms(model))
    assert (opened.raw, opened.order) == (received.raw, received.order)
    for name, value in opened.payload.tensors.items():
        np.testing.assert_array_equal(value, received.payload.tensors[name])
    with pytest.raises(RefusedError, match="blob"):
        open_payload(b"nonsense" * 9, received.order, _forms(model))
