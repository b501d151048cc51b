"""Transfers of blobs over a lossy channel, without sockets or clocks.

A ``Courier`` runs all transfers of one process, both directions, on a device as on the
coordinator: feed it what arrives and the time, carry out the ``Action`` records it returns, and
take chunks from ``next_chunk`` as fast as the link drains. ``peer`` is always a device id, on a
device its own. Times are seconds of a monotonic clock. The rules are specified in
``docs/protocol.md``, section Transfer.

The receiving side (a coordinator gets ``Manifest``, a device gets ``Task``)::

    actions = courier.expect(peer, manifest, now)      # answers need, or done again, or reject
    Received(peer, manifest, path)                     # later, from handle(): complete and right
    actions = courier.accept(manifest.transfer_id, now)    # after it is stored durably
    actions = courier.reject(peer, manifest.transfer_id, "not finite", now)  # or never wanted

The sending side::

    manifest = describe(source, kind="update", device_id="pi-7", round_id=3)
    actions = courier.send(peer, source, manifest, now)    # repeats until answered
    Delivered(peer, manifest) / Rejected(peer, manifest, reason)
"""

from __future__ import annotations

import random
from pathlib import Path

from protofleet.errors import RefusedError
from protofleet.wire import chunks
from protofleet.wire._receiving import Receiving
from protofleet.wire._sending import Sending
from protofleet.wire._transfer_types import (
    Action,
    Delivered,
    Lane,
    Limits,
    Received,
    Rejected,
    Send,
    Source,
    describe,
    transfer_id,
)
from protofleet.wire.chunks import MAX_DATA_BYTES
from protofleet.wire.messages import Manifest, Need, Receipt, Task, decode

__all__ = [
    "Action",
    "Courier",
    "Delivered",
    "Lane",
    "Limits",
    "Received",
    "Rejected",
    "Send",
    "Source",
    "describe",
    "transfer_id",
]


class Courier:
    """Runs every transfer of one process; pure: bytes and times in, actions out.

    Per peer one blob is on its way in each direction; a newer one replaces it.

    Args:
        folder: partial blobs live here, so that a restarted process continues.
        limits: what peers may ask of this process.
        rng: jitter of repetitions.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._receiving = Receiving(folder, limits or Limits())
        self._sending = Sending(rng or random.Random())  # noqa: S311 - jitter, no secret

    def send(
        self,
        peer: str,
        source: Source,
        manifest: Manifest,
        now: float,
        *,
        offer: Task | None = None,
    ) -> list[Action]:
        """Offer ``source`` until the peer's receipt comes; again with the same id: offer now.

        Args:
            peer: device id of the other end (on a device: its own).
            source: the blob; a file must stay as it is until Delivered or Rejected.
            manifest: from ``describe``.
            now: the time.
            offer: the task whose ``payload`` is the manifest; None: the manifest itself announces.
        """
        return self._sending.send(peer, source, manifest, offer or manifest, now)

    def next_chunk(self) -> Send | Rejected | None:
        """The next chunk to publish, transfers taking turns; call it when the link has room.

        ``Rejected`` says that a source file is gone.
        """
        return self._sending.next_chunk()

    def expect(self, peer: str, manifest: Manifest, now: float) -> list[Action]:
        """Take the offered blob; call it for every offer that comes, repeated ones too.

        An offer that breaks a limit is answered with ``reject`` and nothing is kept.
        """
        return self._receiving.expect(peer, manifest, now)

    def accept(self, transfer_id: str, now: float) -> list[Action]:
        """The received blob is stored: send ``done``, now and whenever it is offered again.

        Its file is deleted unless the caller moved it away.
        """
        return self._receiving.accept(transfer_id, now)

    def reject(self, peer: str, transfer_id: str, reason: str, now: float) -> list[Action]:
        """Send ``reject`` for a blob received, in progress or only offered; drop its bytes."""
        return self._receiving.reject(peer, transfer_id, reason, now)

    def remember(self, transfer_id: str) -> None:
        """After a restart: this transfer was accepted before; answer ``done`` when offered."""
        self._receiving.remember(transfer_id)

    def handle(self, peer: str, lane: Lane, payload: bytes, now: float) -> list[Action]:
        """A payload of lane CHUNK or ANSWER (offers are the caller's: it calls ``expect``).

        Raises:
            RefusedError: the payload broke a rule; nothing has changed.
        """
        if lane is Lane.CHUNK:
            return self._receiving.chunk(peer, chunks.parse(payload), now)
        if lane is Lane.ANSWER:
            message: Need | Receipt = decode(payload, Need | Receipt)
            return self._sending.answer(peer, message, now)
        raise RefusedError("lane", "courier: expected a chunk or an answer, got an offer")

    def tick(self, now: float) -> list[Action]:
        """Do what is due: repeat offers, ask again after silence."""
        return self._sending.tick(now) + self._receiving.tick(now)

    def due(self) -> float | None:
        """When ``tick`` must be called next (may be early); None: only after another call."""
        times = [t for t in (self._sending.due(), self._receiving.due()) if t is not None]
        return min(times, default=None)

    def reconnected(self, now: float, max_chunk_bytes: int = MAX_DATA_BYTES) -> list[Action]:
        """Our link is new: what was in flight is lost; offer and ask again.

        Blobs described with larger chunks than ``max_chunk_bytes`` are offered anew with these.
        """
        actions = self._sending.reconnected(now, max_chunk_bytes)
        return actions + self._receiving.reconnected(now)

    def peer_returned(self, peer: str, now: float) -> list[Action]:
        """``peer`` has a new connection: offer again what it may have forgotten."""
        return self._sending.peer_returned(peer, now)

    def cancel(self, transfer_id: str) -> None:
        """Forget one transfer in either direction, partial bytes and receipt with it."""
        self._sending.forget(transfer_id)
        self._receiving.cancel(transfer_id)

    def close(self) -> None:
        """Close all files; what is unfinished continues in the next process."""
        self._receiving.close()
