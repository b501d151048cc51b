from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofleet.errors import InputError
from protofleet.wire.messages import Receipt, encode
from protofleet.wire.transfers.receiver import Receiver
from protofleet.wire.transfers.sender import Sender
from protofleet.wire.transfers.transfer import Delivered, Limits, Rejected, transfer_id

from .channel import CHUNK, DEVICE, Channel, Faults, blob_of, chunks_of, count_of, offer_of

_RATES = st.floats(0.0, 0.4)


@pytest.fixture
def sender():
    return Sender(random.Random(0))


@pytest.fixture
def receiver(tmp_path):
    return Receiver(tmp_path, Limits(max_blob_bytes=100_000))


def test_the_id_is_the_specified_hash():
    assert transfer_id("ab" * 32, "pi-7", 3) == "cabe5cf183b117ab492041e61422fe86"


@given(st.integers(1, 60 * CHUNK))
@settings(max_examples=30, deadline=None)
def test_a_perfect_channel_carries_each_chunk_once(size):
    blob = blob_of(size)
    with tempfile.TemporaryDirectory() as folder:
        channel = Channel(Path(folder), random.Random(1))
        channel.send(blob, offer_of(blob))
        channel.run()
    assert channel.received == blob
    assert channel.chunks_sent == count_of(blob)
    assert channel.kinds["offer"] == 1


@given(
    size=st.integers(1, 60 * CHUNK),
    seed=st.integers(0, 2**32),
    faults=st.builds(Faults, loss=_RATES, duplicate=_RATES, reorder=_RATES, corrupt=_RATES),
)
@settings(max_examples=60, deadline=None)
def test_a_bad_channel_delays_but_never_damages(size, seed, faults):
    """Equal bytes arrive, and each fault costs at most one window of repetitions."""
    blob = blob_of(size)
    with tempfile.TemporaryDirectory() as folder:
        channel = Channel(Path(folder), random.Random(seed), faults)
        channel.send(blob, offer_of(blob))
        channel.run()
    assert isinstance(channel.outcome, Delivered)
    assert channel.received == blob
    assert channel.chunks_sent <= count_of(blob) + 16 * faults.done


@pytest.mark.parametrize(("seconds", "again"), [(2.0, 2), (6.0, 4), (12.0, 9)])
def test_what_is_late_is_hardly_sent_again(tmp_path, seconds, again):
    """A link that holds everything back loses nothing: less than a window comes twice."""
    blob = blob_of(60 * CHUNK)
    offer = offer_of(blob)
    for began in range(40):
        held = began / 100, began / 100 + seconds
        folder = tmp_path / str(began)
        folder.mkdir()
        channel = Channel(folder, random.Random(1), held_s=held, spacing_s=0.005)
        channel.send(blob, offer)
        channel.run()
        assert channel.received == blob
        assert channel.chunks_sent <= 60 + again, f"held from {held[0]} s on"


@given(size=st.integers(20 * CHUNK, 60 * CHUNK), stop=st.integers(1, 19))
@settings(max_examples=30, deadline=None)
def test_a_restarted_receiver_continues_from_its_disk(size, stop):
    """After a kill in the middle only what was in flight is sent again."""
    blob = blob_of(size)
    with tempfile.TemporaryDirectory() as folder:
        channel = Channel(Path(folder), random.Random(1))
        channel.send(blob, offer_of(blob))
        channel.run(until=stop)
        channel.restart_receiver()
        channel.run()
    assert channel.received == blob
    assert channel.chunks_sent <= count_of(blob) + 2 * 16


def test_reject_reaches_the_sender_with_its_reason(sender, receiver):
    blob = blob_of(100)
    offer = offer_of(blob)
    sender.send(DEVICE, blob, offer, 0.0)
    (send,) = receiver.reject(DEVICE, offer.transfer_id, "offer", "round 1 is over", 0.0)
    events = sender.answer(DEVICE, send.payload, 0.0)
    assert events == [Rejected(DEVICE, offer, "offer", "round 1 is over")]
    assert sender.due() is None or sender.tick(1000.0) == []


def test_chunks_and_answers_of_unknown_or_foreign_transfers_are_ignored(sender, receiver):
    blob = blob_of(100)
    offer = offer_of(blob)
    (chunk,) = chunks_of(blob, offer)
    assert receiver.chunk(DEVICE, chunk, 0.0) == []
    receiver.expect(DEVICE, offer, 0.0)
    assert receiver.chunk("mallory", chunk, 0.0) == []
    sender.send(DEVICE, blob, offer, 0.0)
    done = encode(Receipt(transfer_id=offer.transfer_id, status="done"))
    assert sender.answer("mallory", done, 0.0) == []
    assert sender.answer(DEVICE, done, 0.0) == [Delivered(DEVICE, offer)]


def test_an_empty_blob_has_no_offer():
    with pytest.raises(InputError, match="expected bytes, got none"):
        offer_of(b"")


def test_what_was_delivered_can_still_be_rejected_once(sender):
    """It was stored, but what was made of it cannot be used; the next transfer knows nothing."""
    blob = blob_of(100)
    offer = offer_of(blob)
    sender.send(DEVICE, blob, offer, 0.0)
    receipts = [
        encode(Receipt(transfer_id=offer.transfer_id, status=status, rule=rule, reason="why"))
        for status, rule in (("done", ""), ("reject", "diverged"))
    ]
    assert sender.answer(DEVICE, receipts[0], 0.0) == [Delivered(DEVICE, offer)]
    assert sender.answer("another", receipts[1], 0.0) == []
    assert sender.answer(DEVICE, receipts[0], 0.0) == []
    assert sender.answer(DEVICE, receipts[1], 0.0) == [Rejected(DEVICE, offer, "diverged", "why")]
    assert sender.answer(DEVICE, receipts[1], 0.0) == []
