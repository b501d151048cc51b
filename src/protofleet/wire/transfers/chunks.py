"""Chunks: one numbered piece of a blob in one MQTT packet (``docs/protocol.md``, section Chunk).

The header has 32 bytes, integers big-endian:

======  ====  =========================================================================
offset  size  field
======  ====  =========================================================================
0       4     magic ``PFCK``
4       1     version, 1
5       1     flags; bit 0: this is the blob's last chunk; bit 1: sealed; all others are 0
6       2     length of the data behind the header, 1 to 64976, and 16 more of a sealed chunk
8       16    transfer id
24      4     index of the chunk, from 0
28      4     CRC-32 (IEEE, as in zlib) over the 28 bytes before it and the data
======  ====  =========================================================================

The data of a sealed chunk are encrypted: AES-256-GCM under the transfer's key, with the index as
nonce, authenticated with transfer id, index and last; the tag (16 bytes) stands behind them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from protofleet.errors import InputError, RefusedError

MAGIC = b"PFCK"
VERSION = 1
FLAG_LAST = 1
FLAG_SEALED = 2
HEADER_BYTES = 32
MAX_PACKET_BYTES = 64 * 1024
RESERVED_BYTES = 512
"""What MQTT itself may need in a packet: fixed header, topic, packet id, properties."""
MAX_PAYLOAD_BYTES = MAX_PACKET_BYTES - RESERVED_BYTES
TAG_BYTES = 16
MAX_DATA_BYTES = MAX_PAYLOAD_BYTES - HEADER_BYTES - TAG_BYTES
MIN_DATA_BYTES = 256
"""Smallest grid that an offer may ask for."""
MAX_CHUNKS = 1 << 18
"""Of one blob; bounds the bookkeeping, a byte for each."""

_HEAD = struct.Struct(">4sBBH16sI")
_CRC = struct.Struct(">I")
_AUTHENTICATED = struct.Struct(">16sI?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One piece of a blob.

    Attributes:
        transfer_id: 32 lower-case hexadecimal digits.
        index: position in the blob, in chunks.
        last: whether the blob ends with this chunk.
        data: 1 to ``MAX_DATA_BYTES`` bytes, and the tag of a sealed one.
        sealed: whether the data are encrypted.
    """

    transfer_id: str
    index: int
    last: bool
    data: bytes | memoryview
    sealed: bool = False


class ChunkCipher:
    """Encrypts and decrypts the chunks of one transfer.

    The key belongs to one blob in one grid; each transfer of it has a key of its own, because a
    nonce must not meet two texts.

    Args:
        content_key: of the offer, 64 hex digits.
        transfer_id: of the offer.
    """

    def __init__(self, content_key: str, transfer_id: str) -> None:
        expand = HKDFExpand(
            algorithm=SHA256(),
            length=32,
            info=b"protofleet/2 chunks\0" + transfer_id.encode(),
        )
        self._key = AESGCM(expand.derive(bytes.fromhex(content_key)))

    def seal(self, chunk: Chunk) -> Chunk:
        """The chunk with encrypted data."""
        sealed = self._key.encrypt(_nonce(chunk), chunk.data, _authenticated(chunk))
        return replace(chunk, data=sealed, sealed=True)

    def open(self, chunk: Chunk) -> Chunk:
        """The chunk with its data in clear.

        Raises:
            RefusedError: rule ``chunk-seal``: not sealed, or not by the sender of this transfer.
        """
        if not chunk.sealed:
            raise RefusedError("chunk-seal", f"chunk {chunk.index}: expected a sealed one")
        try:
            data = self._key.decrypt(_nonce(chunk), chunk.data, _authenticated(chunk))
        except InvalidTag:
            raise RefusedError(
                "chunk-seal", f"chunk {chunk.index}: not sealed with its transfer's key"
            ) from None
        return replace(chunk, data=data, sealed=False)


def pack(chunk: Chunk) -> bytes:
    """The payload of the MQTT packet that carries ``chunk``.

    Raises:
        InputError: the data are empty or too long for a packet.
    """
    limit = MAX_DATA_BYTES + (TAG_BYTES if chunk.sealed else 0)
    if not 1 <= len(chunk.data) <= limit:
        raise InputError(f"chunk: expected 1 to {limit} bytes, got {len(chunk.data)}")
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        FLAG_LAST * chunk.last | FLAG_SEALED * chunk.sealed,
        len(chunk.data),
        bytes.fromhex(chunk.transfer_id),
        chunk.index,
    )
    crc = zlib.crc32(chunk.data, zlib.crc32(head))
    return b"".join((head, _CRC.pack(crc), chunk.data))


def parse(payload: bytes) -> Chunk:
    """The chunk in a packet's payload; its data are a view into ``payload``.

    Raises:
        RefusedError: rule ``chunk-size``, ``chunk-magic``, ``chunk-version``, ``chunk-flags``,
            ``chunk-length`` or ``chunk-crc``.
    """
    size = len(payload)
    _check(
        "chunk-size",
        HEADER_BYTES < size <= MAX_PAYLOAD_BYTES,
        f"{HEADER_BYTES + 1} to {MAX_PAYLOAD_BYTES} bytes",
        size,
    )
    magic, version, flags, length, transfer_id, index = _HEAD.unpack_from(payload)
    _check("chunk-magic", magic == MAGIC, f"magic {MAGIC.hex()}", magic.hex())
    _check("chunk-version", version == VERSION, f"version {VERSION}", version)
    _check("chunk-flags", flags <= FLAG_LAST | FLAG_SEALED, "flags of bits 0 and 1", flags)
    _check("chunk-length", length == size - HEADER_BYTES, f"{size - HEADER_BYTES} bytes", length)
    data = memoryview(payload)[HEADER_BYTES:]
    (stated,) = _CRC.unpack_from(payload, _HEAD.size)
    found = zlib.crc32(data, zlib.crc32(memoryview(payload)[: _HEAD.size]))
    _check("chunk-crc", found == stated, f"crc {found:08x}", f"{stated:08x}")
    return Chunk(
        transfer_id=transfer_id.hex(),
        index=index,
        last=bool(flags & FLAG_LAST),
        data=data,
        sealed=bool(flags & FLAG_SEALED),
    )


def _nonce(chunk: Chunk) -> bytes:
    return chunk.index.to_bytes(12, "big")


def _authenticated(chunk: Chunk) -> bytes:
    return _AUTHENTICATED.pack(bytes.fromhex(chunk.transfer_id), chunk.index, chunk.last)


def _check(rule: str, holds: bool, expected: str, got: object) -> None:  # noqa: FBT001 - the condition itself, no mode
    if not holds:
        raise RefusedError(rule, f"chunk: expected {expected}, got {got}")
