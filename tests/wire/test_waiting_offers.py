"""Whose turn is next among the offers that wait."""

from __future__ import annotations

import random

from protofleet.wire.messages import TransferOffer
from protofleet.wire.transfers.waiting_offers import WaitingOffers


def _entry(name):
    offer = TransferOffer(
        transfer_id="0" * 32,
        kind="update",
        round_id=1,
        total_bytes=1,
        sha256="",
        chunk_bytes=256,
    )
    return name, offer


def test_the_lowest_rank_comes_first_and_in_it_who_waits_longest():
    waiting = WaitingOffers()
    for key, rank in (("a", 1), ("b", 0), ("c", 0), ("d", 2)):
        waiting.put(key, _entry(key), rank)
    waiting.put("b", _entry("b, offered again"), 5)
    assert waiting.get("b")[0] == "b, offered again"
    assert sorted(name for name, _ in waiting) == ["a", "b, offered again", "c", "d"]
    order = []
    while waiting:
        order.append(waiting.first())
        assert waiting.pop(order[-1]) is not None
    assert order == ["b", "c", "a", "d"]
    assert waiting.pop("a") is None
    assert waiting.get("a") is None
    assert "a" not in waiting


def test_it_is_a_stable_sort_by_rank_whatever_comes_and_goes():
    rng, waiting, expected = random.Random(7), WaitingOffers(), []
    for number in range(500):
        key, rank = f"{number}", rng.randrange(4)
        waiting.put(key, _entry(key), rank)
        expected.append((rank, number, key))
        if rng.random() < 0.3:
            gone = expected.pop(rng.randrange(len(expected)))
            waiting.pop(gone[2])
    found = []
    while waiting:
        found.append(waiting.first())
        waiting.pop(found[-1])
    assert found == [key for _, _, key in sorted(expected)]
