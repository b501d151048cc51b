"""All incoming transfers of one process: admission, receipts, bounded memory and disk."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

from protofleet.errors import RefusedError
from protofleet.wire import codecs
from protofleet.wire._incoming import Incoming
from protofleet.wire._timers import Timers
from protofleet.wire._transfer_types import (
    Action,
    Lane,
    Limits,
    Received,
    Send,
    transfer_id,
)
from protofleet.wire.chunks import MAX_DATA_BYTES, MIN_DATA_BYTES, Chunk
from protofleet.wire.messages import Manifest, Message, Need, Receipt, encode
from protofleet.wire.topics import check_id

_ID_CHARS = 64
"""No transfer id is longer; what is gets cut before it is kept or echoed."""
_ANYONE = ""
_DIGEST = re.compile("[0-9a-f]{64}")


class Receiving:
    """At most one blob per peer is on its way, waits for its turn, or is held by the caller.

    Args:
        folder: one sub-folder per peer keeps its partial blob.
        limits: admission and sizes.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._active: dict[str, Incoming] = {}
        self._held: dict[str, Incoming] = {}
        self._waiting: dict[str, tuple[str, Manifest]] = {}
        self._of_peer: dict[str, str] = {}
        self._settled: OrderedDict[str, tuple[str, Receipt]] = OrderedDict()
        self._timers: Timers[str] = Timers()

    def expect(self, peer: str, manifest: Manifest, now: float) -> list[Action]:
        """Take an offered blob or say why not; the answer to every offer, repeated ones too."""
        key = manifest.transfer_id
        try:
            self._check(peer, manifest)
        except RefusedError as error:
            reason = f"{error.rule}: {error}"
            return [
                _answer(peer, Receipt(transfer_id=key[:_ID_CHARS], status="reject", reason=reason))
            ]
        owner, receipt = self._settled.get(key, (None, None))
        if receipt is not None and owner in (peer, _ANYONE):
            return [_answer(peer, receipt)]
        if key in self._held:
            return []
        self._replace(peer, manifest)
        return self._begin(peer, manifest, now)

    def chunk(self, peer: str, chunk: Chunk, now: float) -> list[Action]:
        """Store a chunk; unknown transfers and other peers' are ignored."""
        transfer = self._active.get(chunk.transfer_id)
        if transfer is None or transfer.peer != peer:
            return []
        need = transfer.take(chunk, now)
        self._timers.set(chunk.transfer_id, transfer.due)
        if transfer.complete:
            return self._finish(transfer, now)
        return [] if need is None else [_answer(peer, need)]

    def accept(self, key: str, now: float) -> list[Action]:
        """``done`` for a held blob, now and whenever it is offered again."""
        transfer = self._held.get(key)
        if transfer is None:
            return []
        return self._settle(transfer.peer, Receipt(transfer_id=key, status="done"), now)

    def reject(self, peer: str, key: str, reason: str, now: float) -> list[Action]:
        """``reject``, now and whenever this peer offers it again; others' transfers go on."""
        receipt = Receipt(transfer_id=key[:_ID_CHARS], status="reject", reason=reason[:500])
        if self._owner(key) not in (peer, None):
            return [_answer(peer, receipt)]
        return self._settle(peer, receipt, now)

    def remember(self, key: str) -> None:
        """The transfer was accepted in an earlier life."""
        self._note(_ANYONE, Receipt(transfer_id=key, status="done"))

    def cancel(self, key: str) -> None:
        """Forget a transfer, its bytes and what was decided about it."""
        self.forget(key, delete=True)
        self._settled.pop(key, None)

    def tick(self, now: float) -> list[Action]:
        """Ask again where it is silent; give up the slot where it stays silent."""
        actions: list[Action] = []
        for key in list(self._timers.expired(now)):
            transfer = self._active[key]
            need = transfer.silent(now)
            if need is None:
                self.forget(key)
            else:
                self._timers.set(key, transfer.due)
                actions.append(_answer(transfer.peer, need))
        return actions + self._admit_waiting(now)

    def due(self) -> float | None:
        """When ``tick`` has something to do; may be early."""
        return self._timers.next()

    def reconnected(self, now: float) -> list[Action]:
        """Whatever was in flight is lost: ask again."""
        return [self._ask(key, now) for key in self._active]

    def forget(self, key: str, *, delete: bool = False) -> None:
        """Drop an unfinished transfer; its partial blob stays unless ``delete``."""
        self._timers.drop(key)
        peer, _ = self._waiting.pop(key, ("", None))
        transfer = self._active.pop(key, None) or self._held.pop(key, None)
        if transfer is not None:
            peer = transfer.peer
            if delete:
                transfer.delete()
            else:
                transfer.close()
        if self._of_peer.get(peer) == key:
            del self._of_peer[peer]

    def close(self) -> None:
        """Close all files; what is unfinished continues in the next process."""
        for transfer in (*self._active.values(), *self._held.values()):
            transfer.close()

    def _check(self, peer: str, manifest: Manifest) -> None:
        check_id(peer, "device")
        expected = transfer_id(manifest.sha256, peer, manifest.round_id)
        rules = (
            (
                "codec",
                manifest.codec in codecs.NAMES,
                f"codec in {codecs.NAMES}",
                manifest.codec[:64],
            ),
            (
                "blob-size",
                1 <= manifest.total_bytes <= self._limits.max_blob_bytes,
                f"1 to {self._limits.max_blob_bytes} bytes",
                manifest.total_bytes,
            ),
            (
                "raw-bytes",
                manifest.codec == codecs.RAW
                or 1 <= manifest.raw_bytes <= self._limits.max_blob_bytes,
                f"1 to {self._limits.max_blob_bytes} bytes before compression",
                manifest.raw_bytes,
            ),
            (
                "base",
                not manifest.base or _DIGEST.fullmatch(manifest.base) is not None,
                "a base of 64 hexadecimal digits, or none",
                manifest.base[:64],
            ),
            (
                "chunk-bytes",
                MIN_DATA_BYTES <= manifest.chunk_bytes <= MAX_DATA_BYTES,
                f"chunks of {MIN_DATA_BYTES} to {MAX_DATA_BYTES} bytes",
                manifest.chunk_bytes,
            ),
            ("transfer-id", manifest.transfer_id == expected, expected, manifest.transfer_id[:64]),
        )
        for rule, holds, wanted, got in rules:
            if not holds:
                raise RefusedError(rule, f"manifest: expected {wanted}, got {got}")

    def _replace(self, peer: str, manifest: Manifest) -> None:
        current = self._of_peer.get(peer)
        if current is None or current in self._held:
            return
        active = self._active.get(current)
        same_grid = active is None or active.manifest.chunk_bytes == manifest.chunk_bytes
        if current != manifest.transfer_id or not same_grid:
            self.forget(current, delete=True)

    def _begin(self, peer: str, manifest: Manifest, now: float) -> list[Action]:
        key = manifest.transfer_id
        transfer = self._active.get(key)
        if transfer is not None:
            need = transfer.offered(now)
            self._timers.set(key, transfer.due)
            return [_answer(peer, need)]
        if len(self._active) < self._limits.concurrent:
            return self._admit(peer, manifest, now)
        if len(self._waiting) >= self._limits.waiting and key not in self._waiting:
            return []
        self._waiting[key] = (peer, manifest)
        self._of_peer[peer] = key
        return [_answer(peer, Need(transfer_id=key, missing=(), credit=0))]

    def _admit(self, peer: str, manifest: Manifest, now: float) -> list[Action]:
        folder = self._folder / peer
        folder.mkdir(parents=True, exist_ok=True)
        keep = (manifest.transfer_id, *self._held)
        for stale in folder.iterdir():
            if not stale.name.startswith(keep):
                stale.unlink()
        transfer = Incoming(folder, peer, manifest, self._limits.window)
        key = manifest.transfer_id
        self._active[key] = transfer
        self._of_peer[peer] = key
        return self._finish(transfer, now) if transfer.complete else [self._ask(key, now)]

    def _admit_waiting(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._waiting and len(self._active) < self._limits.concurrent:
            key = next(iter(self._waiting))
            actions += self._admit(*self._waiting.pop(key), now)
        return actions

    def _ask(self, key: str, now: float) -> Send:
        transfer = self._active[key]
        need = transfer.ask(now)
        self._timers.set(key, transfer.due)
        return _answer(transfer.peer, need)

    def _finish(self, transfer: Incoming, now: float) -> list[Action]:
        key = transfer.manifest.transfer_id
        try:
            right = transfer.verify()
        except RefusedError as error:
            return self.reject(transfer.peer, key, f"{error.rule}: {error}", now)
        if not right:
            return [self._ask(key, now)]
        del self._active[key]
        self._timers.drop(key)
        transfer.close()
        self._held[key] = transfer
        done: list[Action] = [Received(transfer.peer, transfer.manifest, transfer.path)]
        return done + self._admit_waiting(now)

    def _settle(self, peer: str, receipt: Receipt, now: float) -> list[Action]:
        self.forget(receipt.transfer_id, delete=True)
        self._note(peer, receipt)
        return [_answer(peer, receipt), *self._admit_waiting(now)]

    def _owner(self, key: str) -> str | None:
        """Whose transfer it is, as far as anything is known of it."""
        transfer = self._active.get(key) or self._held.get(key)
        if transfer is not None:
            return transfer.peer
        known = self._waiting.get(key) or self._settled.get(key)
        return None if known is None else known[0]

    def _note(self, peer: str, receipt: Receipt) -> None:
        self._settled[receipt.transfer_id] = (peer, receipt)
        while len(self._settled) > self._limits.settled:
            self._settled.popitem(last=False)


def _answer(peer: str, message: Message) -> Send:
    return Send(peer, Lane.ANSWER, encode(message))
