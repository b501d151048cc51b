"""All outgoing transfers of one process: offers, and chunks handed out in turn."""

from __future__ import annotations

import random

from protofleet.wire._outgoing import Offer, Outgoing
from protofleet.wire._timers import Timers
from protofleet.wire._transfer_types import Action, Delivered, Lane, Rejected, Send, Source
from protofleet.wire.messages import Manifest, Need, Receipt


class Sending:
    """At most one blob per peer is offered; a newer one replaces it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._open: dict[str, Outgoing] = {}
        self._of_peer: dict[str, str] = {}
        self._ready: dict[str, None] = {}
        self._timers: Timers[str] = Timers()

    def send(
        self, peer: str, source: Source, manifest: Manifest, offer: Offer, now: float
    ) -> list[Action]:
        """Offer now, and again until the receipt comes."""
        self.forget(self._of_peer.get(peer, ""))
        key = manifest.transfer_id
        self._open[key] = Outgoing(peer, source, manifest, offer)
        self._of_peer[peer] = key
        return [self._offer(key, now)]

    def answer(self, peer: str, message: Need | Receipt, now: float) -> list[Action]:
        """Queue what is needed, or end the transfer; unknown ids are ignored."""
        key = message.transfer_id
        transfer = self._open.get(key)
        if transfer is None or transfer.peer != peer:
            return []
        if isinstance(message, Receipt):
            self.forget(key)
            if message.status == "done":
                return [Delivered(peer, transfer.manifest)]
            return [Rejected(peer, transfer.manifest, message.reason)]
        transfer.asked(message, now, self._rng)
        self._timers.set(key, transfer.due)
        if transfer.wanted:
            self._ready.setdefault(key)
        return []

    def next_chunk(self) -> Send | Rejected | None:
        """The next chunk, transfers taking turns; None if none is wanted."""
        if not self._ready:
            return None
        key = next(iter(self._ready))
        del self._ready[key]
        transfer = self._open[key]
        try:
            payload = transfer.next_chunk()
        except OSError as error:
            self.forget(key)
            return Rejected(transfer.peer, transfer.manifest, f"source: {error}")
        if transfer.wanted:
            self._ready[key] = None
        return Send(transfer.peer, Lane.CHUNK, payload)

    def tick(self, now: float) -> list[Action]:
        """Repeat what was not answered."""
        return [self._offer(key, now) for key in list(self._timers.expired(now))]

    def due(self) -> float | None:
        """When ``tick`` has something to do; may be early."""
        return self._timers.next()

    def reconnected(self, now: float, max_chunk_bytes: int) -> list[Action]:
        """Whatever was in flight is lost: offer again, in chunks that fit."""
        self._ready.clear()
        for transfer in self._open.values():
            transfer.reset(max_chunk_bytes)
        return [self._offer(key, now) for key in self._open]

    def peer_returned(self, peer: str, now: float) -> list[Action]:
        """``peer`` has a new connection, perhaps a new life: offer again what it may not know."""
        key = self._of_peer.get(peer)
        return [] if key is None else [self._offer(key, now)]

    def forget(self, key: str) -> None:
        """Stop offering."""
        transfer = self._open.pop(key, None)
        if transfer is not None:
            self._of_peer.pop(transfer.peer, None)
            self._ready.pop(key, None)
            self._timers.drop(key)

    def _offer(self, key: str, now: float) -> Send:
        transfer = self._open[key]
        payload = transfer.offered(now, self._rng)
        self._timers.set(key, transfer.due)
        return Send(transfer.peer, Lane.OFFER, payload)
