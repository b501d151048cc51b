"""Transfers of blobs over a lossy channel, without sockets or clocks.

A ``Courier`` runs all transfers of one process, both directions, on a device as on the
coordinator: feed it what arrives and the time, carry out the ``Action`` records it returns.
The rules are specified in ``docs/protocol.md``, section Transfer.

Typical use of the receiving side (a coordinator gets ``Manifest``, a device gets ``Task``)::

    actions = courier.expect(peer, manifest, now)      # answers need, or done again, or reject
    ...                                                # later, from handle():
    Received(peer, manifest, path)                     # complete, sha256 right
    actions = courier.accept(manifest.transfer_id, now)    # after it is stored durably
    actions = courier.reject(peer, manifest.transfer_id, "not finite", now)   # or never wanted

and of the sending side::

    manifest = courier.manifest(source, kind="update", peer="pi-7", round_id=3)
    actions = courier.send(peer, source, manifest, now)          # repeats until answered
    Delivered(peer, manifest) / Rejected(peer, manifest, reason)
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from protofleet.wire.chunks import MAX_DATA_BYTES
from protofleet.wire.messages import Manifest, Message


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
        concurrent: transfers per direction that may have chunks in flight; the others wait
            their turn. ``concurrent * window`` stays below the broker's queue (1000 messages).
        waiting: offers that may wait for a turn; more are left unanswered and come again.
        settled: receipts remembered, so that a repeated offer is answered again.
    """

    max_blob_bytes: int = 256 * 1024 * 1024
    window: int = 16
    concurrent: int = 48
    waiting: int = 100_000
    settled: int = 100_000


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
    """Event: the peer will never take the blob."""

    peer: str
    manifest: Manifest
    reason: str


Action = Send | Received | Delivered | Rejected
Source = Path | bytes


def transfer_id(sha256: str, device_id: str, round_id: int) -> str:
    """Identity of a transfer: the same after every restart; 32 hexadecimal digits."""
    raise RuntimeError(f"transfer id of {sha256} {device_id} {round_id}: being written")


class Courier:
    """Runs every transfer of one process; pure: bytes and times in, actions out.

    Args:
        folder: partial blobs live here, so that a restarted process continues.
        limits: what peers may ask of this process.
        rng: jitter of repetitions.
    """

    def __init__(self, folder: Path, limits: Limits, rng: random.Random) -> None: ...

    def manifest(
        self,
        source: Source,
        *,
        kind: Literal["payload", "update"],
        device_id: str,
        round_id: int,
        chunk_bytes: int = MAX_DATA_BYTES,
    ) -> Manifest:
        """Describe ``source`` for transfer (hashes it once)."""
        raise RuntimeError("being written")

    def send(
        self,
        peer: str,
        source: Source,
        manifest: Manifest,
        now: float,
        *,
        offer: Message | None = None,
    ) -> list[Action]:
        """Offer ``source`` until the peer's receipt comes; again with the same id: offer now.

        Args:
            offer: the message that announces the blob and contains its manifest, e.g. a ``Task``;
                None: the manifest itself.
        """
        return []

    def expect(self, peer: str, manifest: Manifest, now: float) -> list[Action]:
        """Take the offered blob; call it for every offer that comes, repeated ones too.

        An offer that breaks a limit is answered with ``reject`` and nothing is kept.
        """
        return []

    def accept(self, transfer_id: str, now: float) -> list[Action]:
        """The received blob is stored: send ``done``, now and whenever it is offered again."""
        return []

    def reject(self, peer: str, transfer_id: str, reason: str, now: float) -> list[Action]:
        """Send ``reject`` for a blob received, in progress or only offered; drop its bytes."""
        return []

    def remember(self, transfer_id: str) -> None:
        """After a restart: this transfer was accepted before; answer ``done`` when offered."""

    def handle(self, peer: str, lane: Lane, payload: bytes, now: float) -> list[Action]:
        """A payload of lane CHUNK or ANSWER (offers are the caller's: it calls ``expect``).

        Raises:
            RefusedError: the payload broke a rule; nothing has changed.
        """
        return []

    def tick(self, now: float) -> list[Action]:
        """Do what is due: repeat offers, ask again after silence."""
        return []

    def due(self) -> float | None:
        """When ``tick`` must be called next; None: only after another call."""
        return None

    def reconnected(self, now: float) -> list[Action]:
        """The link is new: whatever was in flight is lost; offer and ask again."""
        return []

    def cancel(self, peer: str) -> None:
        """Forget all transfers with ``peer`` (partial blobs stay on disk)."""

    def cancel_transfer(self, transfer_id: str) -> None:
        """Forget one transfer in either direction (a partial blob is deleted)."""
