"""What people are told of a broker's refusal."""

from __future__ import annotations

import pytest

from protofleet.wire.refusals import Refusal
from protofleet.wire.transfers.chunks import MIN_DATA_BYTES, Chunk, pack

_TOPIC = "fl/v2/lab/dn/pi-7/c"


def _chunk(size):
    return pack(Chunk(transfer_id="0" * 32, index=0, last=True, data=bytes(size)))


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal(0x97, _TOPIC, b"{}"), ("2 bytes", "quota exceeded, 0x97", "more slowly")),
        (Refusal(0x87, "x/#"), ("refuses to deliver 'x/#'", "not authorized", "log")),
        (Refusal(0xFE, _TOPIC, b"{}"), ("refused, 0xFE", "the broker's log says why")),
        (Refusal(0x95, _TOPIC, b"{}"), ("no 2 bytes", "max_packet_size")),
        (Refusal(0x95, _TOPIC, _chunk(30_000)), ("30,032", "get smaller", "message_size_limit")),
    ],
)
def test_a_refusal_names_what_the_code_and_the_remedy(refusal, words):
    assert all(word in refusal.reason for word in words), refusal.reason


def test_only_a_chunk_that_was_too_large_says_how_large_chunks_may_not_be():
    assert 29_900 < Refusal(0x95, _TOPIC, _chunk(30_000)).chunk_data_bytes <= 30_000
    assert Refusal(0x95, _TOPIC, _chunk(1)).chunk_data_bytes == MIN_DATA_BYTES
    assert Refusal(0x97, _TOPIC, _chunk(30_000)).chunk_data_bytes == 0
    assert Refusal(0x95, _TOPIC, b"{}").chunk_data_bytes == 0
    assert Refusal(0x95, "x/#").chunk_data_bytes == 0
