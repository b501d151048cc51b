"""The receiving half of one transfer: asks for chunks, writes them, checks the hash.

Flow control is the receiver's alone. It names the chunks that it wants now (``Need``), never more
than its window, and asks for the next half window when half of the last one has come. The window
starts small and doubles while nothing is lost, so that a slow link is not filled with repetitions.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack, suppress
from pathlib import Path

from protofleet.errors import RefusedError
from protofleet.wire.messages import Need, TransferOffer
from protofleet.wire.transfers.carousel import MOST_CHUNKS, MOST_TURNS, most_spread
from protofleet.wire.transfers.chunks import Chunk, ChunkCipher
from protofleet.wire.transfers.transfer import ranges_of

SILENCE_S = 1.5
"""Ask again after this long without a chunk: several round trips of any usable link."""
FIRST_SILENCE_S = 5.0
"""The same before the first chunk, when the link's pace is unknown: 64 KiB at 256 kbit/s is 2 s."""
LISTEN_S = 8.0
"""The same of chunks that travel to all: first those who are to get them are gathered."""
SILENCE_MAX_S = 30.0
"""Doubling stops here; below the keep-alive's own detection of a dead link."""
SILENT_ASKS_MAX = 6
"""After so many unanswered asks (some two minutes) others get the slot until the next offer."""
TURN_S = 30.0
"""While others wait, a transfer keeps its slot that takes a window of chunks in this time."""
FIRST_CHUNK_S = 10.0
"""While others wait, a turn without any chunk ends: an ask was lost twice, or nobody sends."""
START_WINDOW = 4
MIN_WINDOW = 2
HASH_ATTEMPTS = 2
"""A wrong hash may come from a disk that lost writes: fetch all once more, then give up."""

_WANTED, _FLYING, _HERE = 0, 1, 2
_BLOCK = 1 << 20


class InboundTransfer:
    """One blob on its way here; survives a restart through two files beside each other.

    Attributes:
        device_id: of the transfer; on a device: its own.
        offer: what was offered, within limits.
        path: the blob's bytes, allocated in full when the transfer is opened.
        due: when to call ``silent`` unless a chunk comes.
        shared: version under which its chunks travel to all; empty: they do not, or count no more.
    """

    def __init__(self, folder: Path, device_id: str, offer: TransferOffer, window: int) -> None:
        self.device_id = device_id
        self.offer = offer
        self.count = -(-offer.total_bytes // offer.chunk_bytes)
        stem = f"{offer.transfer_id}-{offer.total_bytes}-{offer.chunk_bytes}"
        self.path = folder / f"{stem}.part"
        self._map = folder / f"{stem}.map"
        self._limit = window
        self._window = min(START_WINDOW, window)
        self._state = bytearray(self.count)
        self._missing = self.count
        self._cursor = 0
        self._flying: dict[int, int] = {}
        self._late: dict[int, int] = {}
        self._asked_again: set[int] = set()
        self._asks = 0
        self._silent_asks = 0
        self._failures = 0
        self._last = self._gap = 0.0
        self.shared = ""
        self._shared_cipher: ChunkCipher | None = None
        self._listening, self._listens = False, 0
        self._turn_began, self._turn_missing = 0.0, self.count
        self.due = float("inf")
        self.rekey(offer)
        self._files = self._open()

    @property
    def complete(self) -> bool:
        """Whether every chunk is here (the hash is another question)."""
        return self._missing == 0

    @property
    def turn_ends(self) -> float:
        """When ``keeps_pace`` may be asked next."""
        fruitless = self._missing == self._turn_missing
        return self._turn_began + (FIRST_CHUNK_S if fruitless else TURN_S)

    def begin_turn(self, now: float) -> None:
        """It has a slot from now on, or deserves it anew."""
        self._turn_began, self._turn_missing = now, self._missing

    def keeps_pace(self, now: float) -> bool:
        """Whether a window, or all that was missing, came in each ``TURN_S`` of this turn."""
        due = self._limit * (now - self._turn_began) / TURN_S
        return self._turn_missing - self._missing >= min(self._turn_missing, due)

    def rekey(self, offer: TransferOffer) -> None:
        """The same blob in the same grid is offered again, by a process with another key."""
        self.offer = offer
        self._cipher = ChunkCipher(offer.key, offer.transfer_id) if offer.key else None
        if self.shared:
            self._shared_cipher = ChunkCipher(offer.key, self.shared) if offer.key else None

    def offered(self, now: float, shared: str = "") -> Need:
        """The answer to an offer: ask, or only say that we are still waiting for the last ask.

        An offer that names no version ``shared`` ends the hope for chunks that travel to all.
        """
        if self._listening and not shared:
            self._listens = MOST_TURNS
            return self._hope_no_more(now) or self._alive()
        if now < self.due and (self._flying or self._listening):
            return self._hopeful() if self._listening else self._alive()
        return self.ask(now)

    @property
    def may_listen(self) -> bool:
        """Whether to hope, on a new connection, for chunks that travel to all."""
        return bool(self.shared) and self._listens < MOST_TURNS

    def listen(self, version: str, now: float, spread_s: float = 0.0) -> Need:
        """Ask for nothing while chunks come that travel to all, under a version.

        ``spread_s``: over how long those who are to get them are gathered.
        """
        self.shared, self._listening = version, True
        self._listens += 1
        self._forget_late()
        self._land(list(self._flying))
        self._shared_cipher = ChunkCipher(self.offer.key, version) if self.offer.key else None
        self._last = now
        self.due = now + LISTEN_S + most_spread(spread_s)
        return self._hopeful()

    def ask(self, now: float) -> Need:
        """Take all that was in flight for lost and start again with a small window."""
        self._listening = False
        self._forget_late()
        self._land(list(self._flying))
        self._window = min(START_WINDOW, self._window)
        self._last = now
        return self._need(now) or self._alive()

    def silent(self, now: float) -> Need | None:
        """``due`` has come: ask again with a smaller window; None: it is no use.

        What was asked for may be lost, or late: it is not asked for a second time before the first
        of it comes, but for its end. A link keeps the order, so if the end comes first, the rest is
        lost; and if the rest begins to come, it was late, and nothing need be asked for. So it is,
        too, with what was to come to all.
        """
        self._silent_asks += 1
        if self._silent_asks > SILENT_ASKS_MAX:
            return None
        if self._listening:
            left = [index for index, state in enumerate(self._state) if state == _WANTED]
            return self._request(left[-MIN_WINDOW:], now) if left else self.ask(now)
        self._window = max(MIN_WINDOW, self._window // 2)
        self._late |= self._flying
        if not self._late:
            return self.ask(now)
        self._window = min(START_WINDOW, self._window)
        self._land(list(self._flying))
        self._last = now
        left = sorted(self._late.keys() - self._asked_again) or sorted(self._late)
        again = left[-MIN_WINDOW:]
        self._asked_again.update(again)
        return self._request(again, now)

    def take(self, chunk: Chunk, now: float) -> Need | None:
        """Store a chunk; repeated ones change nothing. Returns what to ask for next, if due.

        Raises:
            RefusedError: rule ``chunk-index``, ``chunk-grid`` (not of this offer's grid), or
                ``chunk-seal`` (not made by who offered it).
        """
        stored = self._store(chunk, self._cipher, now)
        if self._listening:
            return self._hope_no_more(now)  # it comes behind the turn, so the rest of that is lost
        return self._need(now) if stored and self._missing else None

    def take_shared(self, chunk: Chunk, now: float) -> None:
        """As ``take``, of a chunk that came to all: a turn is on, and may bring the rest."""
        if self._store(chunk, self._shared_cipher, now):
            self._listening = True

    def _store(self, chunk: Chunk, cipher: ChunkCipher | None, now: float) -> bool:
        """Keep a chunk; whether it was not here."""
        if cipher is not None:
            chunk = cipher.open(chunk)
        elif chunk.sealed:
            raise RefusedError("chunk-seal", f"chunk {chunk.index}: sealed, but not its transfer")
        self._check(chunk)
        if self._state[chunk.index] == _HERE:
            return False
        _write_at(self._files[0], chunk.data, chunk.index * self.offer.chunk_bytes)
        _write_at(self._files[1], b"\1", chunk.index)
        self._state[chunk.index] = _HERE
        self._missing -= 1
        self._observe(now)
        self._arrived(chunk.index)
        self.due = now + self._patience()
        return True

    def verify(self) -> bool:
        """Whether the complete blob has the offer's sha256; if not, all is wanted again.

        Raises:
            RefusedError: rule ``sha256``: it was wrong after a second complete fetch too.
        """
        digest = hashlib.sha256()
        with self.path.open("rb") as blob:
            while block := blob.read(_BLOCK):
                digest.update(block)
        if digest.hexdigest() == self.offer.sha256:
            return True
        self._failures += 1
        self.shared = ""  # what came to all may be what was wrong
        self._state = bytearray(self.count)
        self._missing, self._cursor = self.count, 0
        _write_at(self._files[1], bytes(self.count), 0)
        if self._failures >= HASH_ATTEMPTS:
            raise RefusedError(
                "sha256",
                f"transfer {self.offer.transfer_id}: expected {self.offer.sha256}, "
                f"got {digest.hexdigest()}",
            )
        return False

    def close(self) -> None:
        """Close the files; a later ``InboundTransfer`` of the same offer continues from them."""
        for file in self._files:
            with suppress(OSError):
                os.close(file)
        self._files = ()

    def delete(self) -> None:
        """Close and remove the files (the blob may have been moved away already)."""
        self.close()
        for path in (self.path, self._map):
            # What a disk that takes no writes keeps is swept with the device's next transfer.
            with suppress(OSError):
                path.unlink()

    def _open(self) -> tuple[int, ...]:
        fresh = not (self.path.exists() and self._map.exists())
        with ExitStack() as failed:
            blob = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            failed.callback(os.close, blob)
            marks = os.open(self._map, os.O_RDWR | os.O_CREAT, 0o600)
            failed.callback(os.close, marks)
            if fresh:
                os.ftruncate(marks, 0)
            os.ftruncate(blob, self.offer.total_bytes)
            os.ftruncate(marks, self.count)
            for index, mark in enumerate(os.pread(marks, self.count, 0)):
                if mark == 1:
                    self._state[index] = _HERE
                    self._missing -= 1
            failed.pop_all()
        return blob, marks

    def _check(self, chunk: Chunk) -> None:
        if chunk.index >= self.count:
            raise RefusedError(
                "chunk-index", f"chunk: expected index < {self.count}, got {chunk.index}"
            )
        last = chunk.index == self.count - 1
        step = self.offer.chunk_bytes
        size = self.offer.total_bytes - step * chunk.index if last else step
        if len(chunk.data) != size or chunk.last != last:
            raise RefusedError(
                "chunk-grid",
                f"chunk {chunk.index} of {self.count}: expected {size} bytes, last {last}, "
                f"got {len(chunk.data)} bytes, last {chunk.last}",
            )

    def _observe(self, now: float) -> None:
        gap = now - self._last
        self._gap = gap if self._gap == 0.0 else 0.75 * self._gap + 0.25 * gap
        self._last = now
        self._silent_asks = 0

    def _patience(self) -> float:
        usual = max(SILENCE_S, 4.0 * self._gap) if self._gap else FIRST_SILENCE_S
        wait: float = usual * 2.0**self._silent_asks
        return min(wait, SILENCE_MAX_S)

    def _arrived(self, index: int) -> None:
        """Conclude from a chunk that is here now what is lost, late, or on its way."""
        ask, late = self._flying.pop(index, None), self._late.pop(index, None)
        if ask is not None:
            self._forget_late()
            self._notice_losses(ask)
        elif late is not None and index not in self._asked_again:
            for other, earlier in self._late.items():
                if self._state[other] == _WANTED:
                    self._state[other], self._flying[other] = _FLYING, earlier
            self._forget_late()

    def _forget_late(self) -> None:
        self._late.clear()
        self._asked_again.clear()

    def _notice_losses(self, ask: int) -> None:
        # Packets keep their order on one connection, so what an ask two before this one still
        # misses is lost; one before is spared because a little reordering does happen.
        lost = [index for index, earlier in self._flying.items() if earlier < ask - 1]
        if lost:
            self._land(lost)
        elif ask == self._asks:
            self._window = min(self._limit, self._window * 2)

    def _land(self, indices: list[int]) -> None:
        for index in indices:
            del self._flying[index]
            self._state[index] = _WANTED
            self._cursor = min(self._cursor, index)

    def _need(self, now: float) -> Need | None:
        room = self._window - len(self._flying)
        if room < max(1, self._window // 2):
            return None
        wanted = self._pick(room)
        return self._request(wanted, now) if wanted else None

    def _request(self, wanted: list[int], now: float) -> Need:
        self._asks += 1
        for index in wanted:
            self._state[index], self._flying[index] = _FLYING, self._asks
        self.due = now + self._patience()
        missing = ranges_of(wanted)
        return Need(transfer_id=self.offer.transfer_id, missing=missing, credit=len(wanted))

    def _alive(self) -> Need:
        return Need(transfer_id=self.offer.transfer_id, missing=(), credit=0)

    def _hope_no_more(self, now: float) -> Need | None:
        """Ask for what came to all and not here; what was asked for meanwhile is on its way."""
        self._listening, self._last = False, now
        return self._need(now)

    def _hopeful(self) -> Need:
        """What we lack, and leave to chunks that travel to all."""
        lacks = ranges_of(index for index, state in enumerate(self._state) if state != _HERE)
        named = lacks[: MOST_CHUNKS // 2]  # more no blob has that travels so
        key = self.offer.transfer_id
        return Need(transfer_id=key, missing=named, credit=0, listening=True)

    def _pick(self, room: int) -> list[int]:
        wanted: list[int] = []
        while len(wanted) < room:
            index = self._state.find(_WANTED, self._cursor)
            if index < 0:
                break
            wanted.append(index)
            self._cursor = index + 1
        return wanted


def _write_at(file: int, data: bytes | memoryview, at: int) -> None:
    """All of it: a disk that fills up takes a part, and refuses only the rest."""
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, at)
        left, at = left[written:], at + written
