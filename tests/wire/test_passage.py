"""What drops large packets without a word is found out, and what is only slow or lossy is not."""

from __future__ import annotations

import random

import pytest

from protofleet.wire.messages import Need
from protofleet.wire.mqtt.passage import SILENCE_S, VAIN_ASKS, Passage
from protofleet.wire.transfers.chunks import HEADER_BYTES

from .channel import Channel, Faults, blob_of, offer_of

_STEP = 4096


def _need(*missing, listening=False):
    credit = 0 if listening else 4
    return Need(transfer_id="0" * 32, missing=missing, credit=credit, listening=listening)


def _channel(tmp_path, **options):
    return Channel(tmp_path, random.Random(0), **options)


@pytest.mark.parametrize("size", [10 * _STEP - 1, 2 * _STEP, 2 * _STEP - 100, _STEP - 100])
def test_chunks_halve_until_they_pass_and_it_is_said_once(tmp_path, size):
    """Also where the end of a blob is short enough, or all of it one chunk."""
    channel, blob = _channel(tmp_path, most_bytes=_STEP // 3), blob_of(size)
    channel.send(blob, offer_of(blob, chunk_bytes=_STEP))
    channel.run()
    assert channel.received == blob
    (told,) = channel.hindered
    assert f"no chunk of {_STEP:,} bytes of 'pi-7' arrives" in told
    assert "doctor --broker" in told


def test_what_passed_is_remembered_for_the_device(tmp_path):
    channel = _channel(tmp_path, most_bytes=_STEP // 3)
    for round_id in (1, 2):
        blob = blob_of(10 * _STEP + round_id)
        channel.outcome = None
        began = channel.now
        channel.send(blob, offer_of(blob, round_id=round_id, chunk_bytes=_STEP))
        channel.run()
        assert channel.received == blob
    assert channel.now - began < SILENCE_S
    assert channel.outcome.offer.chunk_bytes == _STEP // 4


@pytest.mark.parametrize(
    "options",
    [
        {"faults": Faults(loss=0.5, budget=200)},
        {"spacing_s": 10.0},
        {"held_s": (1.0, 20.0)},
    ],
    ids=["lossy", "slow", "held up"],
)
def test_a_link_that_is_lossy_or_slow_keeps_its_chunks(tmp_path, options):
    channel, blob = _channel(tmp_path, **options), blob_of(20 * _STEP)
    channel.send(blob, offer_of(blob, chunk_bytes=_STEP))
    channel.run()
    assert channel.received == blob
    assert channel.hindered == []
    assert channel.outcome.offer.chunk_bytes == _STEP


def test_a_blob_of_which_a_part_was_there_is_known_to_pass():
    blob = blob_of(20 * _STEP)
    passage = Passage(offer_of(blob, chunk_bytes=_STEP))
    assert not passage.is_blocked(_need((7, 11)), 0.0, shared=False)
    assert passage.arrived


def _fruitless(passage, asks, *, shared):
    """Each answered with its chunks; whether the last was one too many."""
    blocked = False
    for at, need in enumerate(asks):
        blocked = passage.is_blocked(need, at * SILENCE_S / VAIN_ASKS, shared=shared)
        for start, stop in need.missing:
            for index in range(start, stop):
                passage.sent(index)
    return blocked


def test_who_has_listened_in_vain_asks_from_the_end_and_is_understood():
    """Of what was to come to all nothing has; each question goes further back."""
    offer = offer_of(blob_of(20 * _STEP - 1), chunk_bytes=_STEP)
    backwards = [_need((18 - 2 * n, 20 - 2 * n)) for n in range(5)]
    assert _fruitless(Passage(offer), backwards, shared=True)
    led_on = [_need((18, 20)), _need((0, 4)), _need((4, 6)), _need((6, 8)), _need((8, 10))]
    assert not _fruitless(Passage(offer), led_on, shared=True)


@pytest.mark.parametrize(("lacks", "known"), [((5, 20), True), ((0, 19), False)])
def test_who_listens_names_what_it_lacks(lacks, known):
    """The short end alone says nothing of the others."""
    passage = Passage(offer_of(blob_of(20 * _STEP - 1), chunk_bytes=_STEP))
    assert not passage.is_blocked(_need(lacks, listening=True), 100.0, shared=True)
    assert passage.arrived is known


def test_questions_for_the_end_of_a_blob_alone_are_no_sign():
    passage = Passage(offer_of(blob_of(2 * _STEP - 1), chunk_bytes=_STEP))
    assert not _fruitless(passage, [_need((1, 2))] * 9, shared=False)
    assert not passage.arrived


def test_least_chunks_are_kept_though_nothing_arrives(tmp_path):
    """As where the other end may not read them: smaller ones would not, either."""
    channel, blob = _channel(tmp_path, most_bytes=HEADER_BYTES), blob_of(3000)
    channel.send(blob, offer_of(blob, chunk_bytes=_STEP))
    with pytest.raises(TimeoutError):
        channel.run()
    ((_, offer),) = channel.sender.offers()
    assert offer.chunk_bytes == 256
    again = blob_of(3001)
    channel.send(again, offer_of(again, round_id=2, chunk_bytes=_STEP))
    assert [one.chunk_bytes for _, one in channel.sender.offers()] == [_STEP]
