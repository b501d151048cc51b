"""Asking for chunks: more than three copies of a blob come slowly, and still come."""

from __future__ import annotations

import pytest

from protofleet.errors import RefusedError
from protofleet.wire.messages import Need, Receipt, TransferOffer, decode, encode
from protofleet.wire.transfers.allowance import FREE_COPIES
from protofleet.wire.transfers.sender import OFFER_GAP_S, Sender
from protofleet.wire.transfers.transfer import Delivered, describe

_BLOB = bytes(1_000_000)
_OFFER = describe(_BLOB, kind="payload", device_id="anna", round_id=1)


def _need(start=0, stop=16, credit=16):
    return encode(Need(transfer_id=_OFFER.transfer_id, missing=((start, stop),), credit=credit))


def _sent(sender):
    total = 0
    while (chunk := sender.next_chunk()) is not None:
        total += len(chunk.payload)
    return total


def _flood(sender, start, stop, between=lambda _now: None):
    total, now = 0, start
    while now < stop:
        now += 0.01
        between(now)
        sender.answer("anna", _need(), now)
        total += _sent(sender)
    return total


@pytest.fixture
def sender():
    one = Sender()
    one.send("anna", _BLOB, _OFFER, 0.0)
    return one


def test_a_flood_of_needs_gets_three_copies_and_then_a_copy_in_ten_minutes(sender):
    """298 kB of them were answered with 3.1 GB."""
    assert _flood(sender, 0.0, 30.0) < (FREE_COPIES + 0.5) * len(_BLOB)
    assert _flood(sender, 30.0, 630.0) < 5 * len(_BLOB)


def test_neither_a_refusal_nor_a_new_presence_nor_an_invitation_buys_more(sender):
    def invite(now):
        receipt = Receipt(transfer_id=_OFFER.transfer_id, status="reject")
        sender.answer("anna", encode(receipt), now)
        sender.device_returned("anna", now)
        sender.send("anna", _BLOB, _OFFER, now)

    assert _flood(sender, 0.0, 30.0, invite) < (FREE_COPIES + 0.5) * len(_BLOB)


def test_an_honest_device_that_has_lost_all_again_and_again_still_finishes(sender):
    _flood(sender, 0.0, 30.0)
    have, now, count = set(), 30.0, -(-len(_BLOB) // _OFFER.chunk_bytes)
    while len(have) < count:
        now += 5.0
        wanted = min(set(range(count)) - have)
        sender.answer("anna", _need(wanted, wanted + 1, 1), now)
        if _sent(sender):
            have.add(wanted)
        assert now < 3600
    done = Receipt(transfer_id=_OFFER.transfer_id, status="done")
    assert sender.answer("anna", encode(done), now) == [Delivered("anna", _OFFER)]


def test_a_flood_of_presences_is_answered_once_a_second(sender):
    offers = []
    for i in range(1000):
        sender.device_returned("anna", 1.0 + i / 100)
        offers += sender.tick(1.0 + i / 100)
    assert len(offers) <= 10 / OFFER_GAP_S + 1
    assert len(sender.tick(12.0)) == 1


@pytest.mark.parametrize("transfer_id", ["", "f" * 60_000, "../../x", "F" * 32, "f" * 32 + "\n"])
@pytest.mark.parametrize("kind", [TransferOffer, Need, Receipt])
def test_a_transfer_id_that_is_none_is_refused_before_it_is_kept(kind, transfer_id):
    good = {TransferOffer: _OFFER, Need: decode(_need(), Need)}.get(
        kind, Receipt(transfer_id="f" * 32, status="done")
    )
    spoilt = encode(good).replace(
        good.transfer_id.encode(), transfer_id.replace("\n", "\\n").encode()
    )
    with pytest.raises(RefusedError, match="transfer_id"):
        decode(spoilt, kind)
