from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.errors import InputError, RefusedError
from protofleet.wire.transfers.chunks import (
    HEADER_BYTES,
    MAX_DATA_BYTES,
    MAX_PACKET_BYTES,
    MAX_PAYLOAD_BYTES,
    Chunk,
    ChunkCipher,
    pack,
    parse,
)

_ID = "000102030405060708090a0b0c0d0e0f"
GOLDEN = bytes.fromhex(
    "5046434b"  # magic PFCK
    "01"  # version
    "01"  # flags: last
    "0003"  # length
    "000102030405060708090a0b0c0d0e0f"  # transfer id
    "00000007"  # index
    "e168c611"  # crc32
    "616263"  # data
)

SEALED = (
    "5046434b 01 03 0013 000102030405060708090a0b0c0d0e0f 00000007 ed0e1ab7"
    " 2e24e4547c2d6a47a08371c748adf8312d7246"
)

_CHUNKS = st.builds(
    Chunk,
    transfer_id=st.binary(min_size=16, max_size=16).map(bytes.hex),
    index=st.integers(0, 2**32 - 1),
    last=st.booleans(),
    data=st.binary(min_size=1, max_size=2000),
)


def _golden_chunk() -> Chunk:
    return Chunk(transfer_id=_ID, index=7, last=True, data=b"abc")


def test_golden_bytes():
    """The bytes of a chunk are those that docs/protocol.md prints."""
    assert pack(_golden_chunk()).hex() == GOLDEN.hex()
    assert parse(GOLDEN) == _golden_chunk()


@given(_CHUNKS)
def test_what_was_packed_is_parsed(chunk):
    assert parse(pack(chunk)) == chunk


@given(_CHUNKS, st.data())
def test_a_flipped_bit_is_noticed(chunk, data):
    """A chunk with any single bit flipped is refused, whichever rule notices."""
    packed = bytearray(pack(chunk))
    bit = data.draw(st.integers(0, len(packed) * 8 - 1))
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RefusedError):
        parse(bytes(packed))


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    with pytest.raises(RefusedError):
        parse(noise)


def test_the_largest_chunk_fits_in_64_kib_with_its_mqtt_headers():
    cipher = ChunkCipher("00" * 32, _ID)
    packed = pack(
        cipher.seal(Chunk(transfer_id=_ID, index=0, last=False, data=bytes(MAX_DATA_BYTES)))
    )
    longest_topic = 3 + 1 + 2 + 1 + 64 + 4 + 64 + 2
    fixed_header, topic_length, packet_id, properties = 5, 2, 2, 5
    assert len(packed) == MAX_PAYLOAD_BYTES
    overhead = fixed_header + topic_length + longest_topic + packet_id + properties
    assert len(packed) + overhead <= MAX_PACKET_BYTES


@pytest.mark.parametrize("size", [0, MAX_DATA_BYTES + 1])
def test_a_chunk_of_an_impossible_size_is_not_packed(size):
    with pytest.raises(InputError, match="chunk: expected 1 to"):
        pack(Chunk(transfer_id=_ID, index=0, last=False, data=bytes(size)))


def _with(offset: int, value: bytes) -> bytes:
    """The golden chunk with other header bytes and a right checksum over them."""
    packed = bytearray(GOLDEN)
    packed[offset : offset + len(value)] = value
    crc = zlib.crc32(packed[HEADER_BYTES:], zlib.crc32(packed[:28]))
    packed[28:32] = struct.pack(">I", crc)
    return bytes(packed)


@pytest.mark.parametrize(
    ("rule", "payload"),
    [
        ("chunk-size", GOLDEN[:HEADER_BYTES]),
        ("chunk-size", GOLDEN + bytes(MAX_PAYLOAD_BYTES)),
        ("chunk-magic", _with(0, b"PK\3\4")),
        ("chunk-version", _with(4, b"\2")),
        ("chunk-flags", _with(5, b"\x80")),
        ("chunk-length", _with(6, b"\0\4")),
        ("chunk-length", GOLDEN + b"x"),
        ("chunk-crc", GOLDEN[:-1] + b"d"),
    ],
)
def test_each_rule_has_a_name(rule, payload):
    with pytest.raises(RefusedError) as refused:
        parse(payload)
    assert refused.value.rule == rule


def test_a_sealed_chunk_in_bytes():
    """Golden: key of 32 bytes 0 to 31, index 7, last, data ``abc``."""
    cipher = ChunkCipher(bytes(range(32)).hex(), _ID)
    packed = pack(cipher.seal(Chunk(transfer_id=_ID, index=7, last=True, data=b"abc")))
    assert packed.hex() == SEALED.replace(" ", "")
    assert bytes(cipher.open(parse(packed)).data) == b"abc"


@given(_CHUNKS, _CHUNKS)
def test_a_sealed_chunk_opens_in_its_own_place_only(chunk, other):
    """Neither index, last nor transfer can be swapped below a sealed chunk."""
    cipher = ChunkCipher("11" * 32, chunk.transfer_id)
    sealed = cipher.seal(chunk)
    assert cipher.open(sealed) == replace(chunk, data=bytes(chunk.data))
    place = (chunk.transfer_id, chunk.index, chunk.last)
    moved = replace(sealed, transfer_id=other.transfer_id, index=other.index, last=other.last)
    if place != (other.transfer_id, other.index, other.last):
        with pytest.raises(RefusedError, match="not sealed with its transfer's key"):
            cipher.open(moved)


def test_two_transfers_of_one_blob_have_two_keys():
    """One nonce never meets two texts or two sets of authenticated data."""
    first, second = (ChunkCipher("22" * 32, name * 32) for name in "ab")
    chunk = Chunk(transfer_id="a" * 32, index=0, last=True, data=b"abc")
    assert first.seal(chunk).data != second.seal(replace(chunk, transfer_id="b" * 32)).data
    with pytest.raises(RefusedError, match="expected a sealed one"):
        first.open(chunk)
