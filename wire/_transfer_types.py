"""Records of ``transfer.py`` that both directions share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from protofleet.errors import InputError
from protofleet.wire.chunks import MAX_DATA_BYTES
from protofleet.wire.codecs import Coding
from protofleet.wire.messages import Manifest

Source = Path | bytes
"""A blob to send: a file that stays until ``Delivered``, or bytes."""


class Lane(Enum):
    """The three ways of a transfer; ``endpoint.py`` maps them to topics."""

    OFFER = "offer"
    CHUNK = "chunk"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process grants its peers.

    Attributes:
        max_blob_bytes: largest blob accepted from a peer.
        window: chunks in flight per transfer, at most 16.
        concurrent: incoming transfers that may have chunks in flight; the others wait their turn.
            ``concurrent * window`` stays below the broker's queue (1000 messages).
        waiting: offers that may wait for a turn; more are left unanswered and come again.
        settled: receipts remembered, so that a repeated offer is answered again.
    """

    max_blob_bytes: int = 256 * 1024 * 1024
    window: int = 16
    concurrent: int = 32
    waiting: int = 100_000
    settled: int = 100_000

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 16:
            raise InputError(f"window: expected 1 to 16 chunks, got {self.window}")


@dataclass(frozen=True, slots=True)
class Send:
    """Action: publish ``payload`` on the peer's lane."""

    peer: str
    lane: Lane
    payload: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """Event: a blob is complete and its sha256 right; ``path`` is yours until accept/reject."""

    peer: str
    manifest: Manifest
    path: Path


@dataclass(frozen=True, slots=True)
class Delivered:
    """Event: the peer has the blob and stored it; the source is no longer needed."""

    peer: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Rejected:
    """Event: a blob we offered will never be taken (or its source file is gone)."""

    peer: str
    manifest: Manifest
    reason: str


Action = Send | Received | Delivered | Rejected


def transfer_id(sha256: str, device_id: str, round_id: int) -> str:
    """Identity of a transfer, the same after every restart.

    Returns:
        The first 32 hexadecimal digits of sha256 over ``<sha256>/<device_id>/<round_id>``.
    """
    return hashlib.sha256(f"{sha256}/{device_id}/{round_id}".encode()).hexdigest()[:32]


def describe(  # noqa: PLR0913 - fields of the manifest, each named at the call
    source: Source,
    *,
    kind: Literal["payload", "update"],
    device_id: str,
    round_id: int,
    chunk_bytes: int = MAX_DATA_BYTES,
    coding: Coding | None = None,
) -> Manifest:
    """The manifest of ``source``, raw unless ``coding`` says how it is coded; hashes it once.

    Raises:
        InputError: the blob is empty.
    """
    if isinstance(source, bytes):
        size, digest = len(source), hashlib.sha256(source).hexdigest()
    else:
        with source.open("rb") as blob:
            digest = hashlib.file_digest(blob, "sha256").hexdigest()
            size = blob.tell()
    if size == 0:
        raise InputError(f"blob for {device_id}, round {round_id}: expected bytes, got none")
    coding = coding or Coding()
    return Manifest(
        transfer_id=transfer_id(digest, device_id, round_id),
        kind=kind,
        round_id=round_id,
        total_bytes=size,
        sha256=digest,
        chunk_bytes=chunk_bytes,
        codec=coding.codec,
        raw_bytes=coding.raw_bytes,
        base=coding.base,
    )
