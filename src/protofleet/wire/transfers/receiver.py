"""The receiving side of transfers: admission, receipts, bounded memory and disk.

Pure but for the partial blobs on disk: bytes and times in, actions out. Flow control of a single
blob is in ``inbound.py``.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from protofleet.errors import RefusedError
from protofleet.private_files import PRIVATE_FOLDER
from protofleet.wire import codecs
from protofleet.wire.messages import Message, Need, Receipt, TransferOffer, encode
from protofleet.wire.topics import check_id
from protofleet.wire.transfers.carousel import shared_version
from protofleet.wire.transfers.chunks import MAX_CHUNKS, MAX_DATA_BYTES, MIN_DATA_BYTES, parse
from protofleet.wire.transfers.inbound import InboundTransfer
from protofleet.wire.transfers.transfer import (
    Action,
    Lane,
    Limits,
    Received,
    Send,
    Timers,
    transfer_id,
)
from protofleet.wire.transfers.waiting_offers import WaitingOffers

_ANYONE = ""
_DIGEST = re.compile("[0-9a-f]{64}")


class Receiver:
    """All incoming transfers of one process.

    At most one blob per device is on its way, waits for its turn, or is held by the caller; a newer
    one replaces what is not held.

    Args:
        folder: one sub-folder per device keeps its partial blob, so that a restarted process goes
            on with it.
        limits: admission and sizes.
        sealed: whether chunks must be.

    Attributes:
        spread_s: over how long those are gathered who are to get chunks on the lane SHARED.
    """

    def __init__(self, folder: Path, limits: Limits | None = None, *, sealed: bool = False) -> None:
        self.spread_s = 0.0
        self._sealed = sealed
        self._folder = folder
        self._limits = limits or Limits()
        self._active: dict[str, InboundTransfer] = {}
        self._held: dict[str, InboundTransfer] = {}
        self._waiting = WaitingOffers()
        self._turns_end = float("inf")
        self._landing: OrderedDict[str, InboundTransfer] = OrderedDict()
        self._of_device: dict[str, str] = {}
        # Of most there is no more to say than whose it was: it is done.
        self._settled: OrderedDict[str, str | tuple[str, Receipt]] = OrderedDict()
        self._shared: dict[str, str] = {}
        self._lost_turns: Counter[str] = Counter()
        self._timers: Timers[str] = Timers()

    def expect(
        self, device_id: str, offer: TransferOffer, now: float, *, shared: str = ""
    ) -> list[Action]:
        """Take the offered blob; call it for every offer that comes, repeated ones too.

        An offer that breaks a limit is answered with ``reject`` and nothing is kept.

        Args:
            device_id: whose transfer; on a device: its own id.
            offer: what is offered.
            now: the time.
            shared: version under which its chunks come to all, who have been subscribed to; '':
                they do not. A transfer that begins then listens before it asks.
        """
        key = offer.transfer_id
        try:
            self._check(device_id, offer)
            _check_shared(offer, shared)
        except RefusedError as error:
            return [_answer(device_id, _refusal(key, error.rule, str(error)))]
        owner, receipt = self._decision(key)
        if receipt is not None and owner in (device_id, _ANYONE):
            return [_answer(device_id, receipt)]
        if key in self._held:
            return []
        self._replace(device_id, offer)
        transfer = self._active.get(key)
        if transfer is not None:
            transfer.rekey(offer)
            need = transfer.offered(now, shared)
            self._timers.set(key, transfer.due)
            return [_answer(device_id, need)]
        if shared:
            self._shared[key] = shared
        return self._begin(device_id, offer, now)

    def refusal(self, device_id: str, offer: TransferOffer) -> RefusedError | None:
        """The limit that an offer breaks; None: it keeps all."""
        try:
            self._check(device_id, offer)
        except RefusedError as error:
            return error
        return None

    def chunk(self, device_id: str, payload: bytes, now: float) -> list[Action]:
        """Take a chunk from the lane CHUNK; unknown transfers and other devices' are ignored.

        Raises:
            RefusedError: it broke a rule; nothing has changed.
        """
        chunk = parse(payload)
        key = chunk.transfer_id
        transfer = self._active.get(key) or self._landing.get(key)
        if transfer is None or transfer.device_id != device_id:
            return []
        return self._taken(transfer, transfer.take(chunk, now), now)

    def shared_chunk(self, payload: bytes, now: float) -> list[Action]:
        """Take a chunk from the lane SHARED for the transfers of its blob; raises as ``chunk``."""
        chunk = parse(payload)
        actions: list[Action] = []
        for transfer in list(self._active.values()):
            if transfer.shared == chunk.transfer_id:
                transfer.take_shared(chunk, now)
                actions += self._taken(transfer, None, now)
        return actions

    def _taken(self, transfer: InboundTransfer, need: Need | None, now: float) -> list[Action]:
        key = transfer.offer.transfer_id
        has_slot = key in self._active
        if has_slot:
            self._timers.set(key, transfer.due)
        if transfer.complete:
            return self._finish(transfer, now)
        return [] if need is None or not has_slot else [_answer(transfer.device_id, need)]

    @property
    def listens(self) -> bool:
        """Whether there may be any ``versions``."""
        return bool(self._active or self._shared)

    @property
    def versions(self) -> set[str]:
        """Under which chunks on the lane SHARED are of use to a transfer here."""
        active = {one.shared for one in self._active.values() if one.shared}
        return active.union(self._shared.values())

    @property
    def idle(self) -> bool:
        """Whether no chunk can be for it."""
        return not self._active and not self._landing

    def accept(self, key: str, now: float) -> list[Action]:
        """The received blob is stored: send ``done``, now and whenever it is offered again.

        Its file is deleted unless the caller moved it away.
        """
        transfer = self._held.get(key)
        if transfer is None:
            return []
        return self._settle(transfer.device_id, Receipt(transfer_id=key, status="done"), now)

    def reject(self, device_id: str, key: str, rule: str, reason: str, now: float) -> list[Action]:
        """Send ``reject``, and again whenever this device offers a blob that was here; drop it.

        The blob may be received, in progress or only offered; others' transfers go on. Nothing is
        kept of one that was only offered: whoever refused it is asked again.
        """
        receipt = _refusal(key, rule, reason)
        if self._owner(key) != device_id:
            return [_answer(device_id, receipt)]
        return self._settle(device_id, receipt, now)

    def offers(self) -> Iterator[tuple[str, TransferOffer]]:
        """Each device whose transfer is not over, and what it has offered."""
        begun = (self._active, self._held)
        yield from ((one.device_id, one.offer) for place in begun for one in place.values())
        yield from self._waiting

    def remember(self, key: str) -> None:
        """After a restart: this transfer was accepted before; answer ``done`` when offered."""
        self._note(_ANYONE, Receipt(transfer_id=key, status="done"))

    def cancel(self, key: str) -> None:
        """Forget a transfer, its bytes and what was decided about it."""
        self.forget(key, delete=True)
        self._settled.pop(key, None)

    def tick(self, now: float) -> list[Action]:
        """Ask again where it is silent; take slots from the silent, for others from the slow."""
        actions: list[Action] = []
        for key in list(self._timers.expired(now)):
            transfer = self._active[key]
            need = transfer.silent(now)
            if need is None:
                self._lost_turns[transfer.device_id] += 1
                self.forget(key)
            else:
                self._timers.set(key, transfer.due)
                actions.append(_answer(transfer.device_id, need))
        return actions + self._end_turns(now) + self._admit_waiting(now)

    def due(self) -> float | None:
        """When ``tick`` has something to do; may be early; None: only after another call."""
        timer = self._timers.next()
        turns_end = self._turns_end if self._waiting else float("inf")
        due = turns_end if timer is None else min(timer, turns_end)
        return None if due == float("inf") else due

    def reconnected(self, now: float) -> list[Action]:
        """Our link is new, what was in flight is lost: ask again, or listen again."""
        return [
            self._listen(key, one.shared, now) if one.may_listen else self._ask(key, now)
            for key, one in self._active.items()
        ]

    def forget(self, key: str, *, delete: bool = False) -> None:
        """Drop an unfinished transfer; its partial blob stays unless ``delete``."""
        self._timers.drop(key)
        self._shared.pop(key, None)
        device_id, _ = self._waiting.pop(key) or ("", None)
        places = (self._active, self._landing, self._held)
        transfer = next((found for place in places if (found := place.pop(key, None))), None)
        if transfer is not None:
            device_id = transfer.device_id
            if delete:
                transfer.delete()
            else:
                transfer.close()
        if self._of_device.get(device_id) == key:
            del self._of_device[device_id]

    def close(self) -> None:
        """Close all files; what is unfinished continues in the next process."""
        for place in (self._active, self._landing, self._held):
            for transfer in place.values():
                transfer.close()

    def _check(self, device_id: str, offer: TransferOffer) -> None:
        check_id(device_id, "device")
        least = max(MIN_DATA_BYTES, -(-offer.total_bytes // MAX_CHUNKS))
        expected = transfer_id(offer.sha256, device_id, offer.round_id)
        rules = (
            (
                "codec",
                offer.codec in codecs.NAMES,
                f"codec in {', '.join(codecs.NAMES)}",
                offer.codec[:64],
            ),
            (
                "blob-size",
                1 <= offer.total_bytes <= self._limits.max_blob_bytes,
                f"1 to {self._limits.max_blob_bytes} bytes",
                offer.total_bytes,
            ),
            (
                "raw-bytes",
                offer.codec == codecs.RAW or 1 <= offer.raw_bytes <= self._limits.max_blob_bytes,
                f"1 to {self._limits.max_blob_bytes} bytes before compression",
                offer.raw_bytes,
            ),
            (
                "base",
                not offer.reference or _DIGEST.fullmatch(offer.reference) is not None,
                "a base of 64 hexadecimal digits, or none",
                offer.reference[:64],
            ),
            (
                "chunk-bytes",
                least <= offer.chunk_bytes <= MAX_DATA_BYTES,
                f"chunks of {least} to {MAX_DATA_BYTES} bytes",
                offer.chunk_bytes,
            ),
            (
                "key",
                bool(offer.key) == self._sealed
                and (not offer.key or _DIGEST.fullmatch(offer.key) is not None),
                "a key of 64 hexadecimal digits" if self._sealed else "no key",
                "another" if offer.key else "none",
            ),
            ("transfer-id", offer.transfer_id == expected, expected, offer.transfer_id[:64]),
        )
        for rule, holds, wanted, got in rules:
            if not holds:
                raise RefusedError(rule, f"offer: expected {wanted}, got {got}")

    def _replace(self, device_id: str, offer: TransferOffer) -> None:
        current = self._of_device.get(device_id)
        if current is None or current in self._held:
            return
        active = self._active.get(current)
        same_grid = active is None or active.offer.chunk_bytes == offer.chunk_bytes
        if current != offer.transfer_id or not same_grid:
            self._lost_turns[device_id] += active is not None
            self.forget(current, delete=True)

    def _begin(self, device_id: str, offer: TransferOffer, now: float) -> list[Action]:
        key = offer.transfer_id
        if len(self._waiting) >= self._limits.waiting and key not in self._waiting:
            return []
        # Whoever offers anew does not get in before those that wait already.
        self._waiting.put(key, (device_id, offer), self._lost_turns[device_id])
        if key in self._landing:
            self._landing[key].rekey(offer)
        self._of_device[device_id] = key
        actions = self._admit_waiting(now)
        return [*actions, _wait(device_id, key)] if key in self._waiting else actions

    def _end_turns(self, now: float) -> list[Action]:
        """Let as many slow transfers wait again, behind all others, as there are others."""
        actions: list[Action] = []
        places = len(self._waiting)
        if not places or now < self._turns_end:
            return actions
        for key, transfer in list(self._active.items()):
            if len(actions) >= places:
                break
            if now < transfer.turn_ends:
                continue
            if transfer.keeps_pace(now):
                transfer.begin_turn(now)
            else:
                actions.append(self._suspend(key))
        self._turns_end = min((t.turn_ends for t in self._active.values()), default=float("inf"))
        return actions

    def _suspend(self, key: str) -> Send:
        """Take the slot away; chunks that are still in flight may land for another turn."""
        transfer = self._active.pop(key)
        self._lost_turns[transfer.device_id] += 1
        self._timers.drop(key)
        entry = (transfer.device_id, transfer.offer)
        self._waiting.put(key, entry, self._lost_turns[transfer.device_id])
        self._landing[key] = transfer
        while len(self._landing) > self._limits.concurrent:
            self._landing.popitem(last=False)[1].close()
        return _wait(transfer.device_id, key)

    def _admit(self, device_id: str, offer: TransferOffer, now: float) -> list[Action]:
        folder = self._folder / device_id
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        keep = (offer.transfer_id, *self._held)
        for stale in folder.iterdir():
            if not stale.name.startswith(keep):
                with suppress(OSError):
                    stale.unlink()
        key = offer.transfer_id
        transfer = self._landing.pop(key, None) or InboundTransfer(
            folder, device_id, offer, self._limits.window
        )
        transfer.begin_turn(now)
        self._turns_end = min(self._turns_end, transfer.turn_ends)
        self._active[key] = transfer
        self._of_device[device_id] = key
        shared = self._shared.pop(key, "")
        if transfer.complete:
            return self._finish(transfer, now)
        return [self._listen(key, shared, now) if shared else self._ask(key, now)]

    def _admit_waiting(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._waiting and len(self._active) < self._limits.concurrent:
            # Whoever lost turns comes behind everybody who lost fewer: offers without a blob cost
            # the others one turn each and not one in every round.
            key = self._waiting.first()
            entry = self._waiting.pop(key)
            if entry is None:
                continue
            try:
                actions += self._admit(*entry, now)
            except OSError:
                self._waiting.put(key, entry, self._lost_turns[entry[0]])
                raise
        return actions

    def _listen(self, key: str, shared: str, now: float) -> Send:
        transfer = self._active[key]
        need = transfer.listen(shared, now, self.spread_s)
        self._timers.set(key, transfer.due)
        return _answer(transfer.device_id, need)

    def _ask(self, key: str, now: float) -> Send:
        transfer = self._active[key]
        need = transfer.ask(now)
        self._timers.set(key, transfer.due)
        return _answer(transfer.device_id, need)

    def _finish(self, transfer: InboundTransfer, now: float) -> list[Action]:
        key = transfer.offer.transfer_id
        try:
            right = transfer.verify()
        except RefusedError as error:
            return self.reject(transfer.device_id, key, error.rule, str(error), now)
        if not right:
            return [self._ask(key, now)] if key in self._active else []
        self.forget(key)
        self._lost_turns.pop(transfer.device_id, None)
        self._of_device[transfer.device_id] = key
        self._held[key] = transfer
        done: list[Action] = [Received(transfer.device_id, transfer.offer, transfer.path)]
        return done + self._admit_waiting(now)

    def _settle(self, device_id: str, receipt: Receipt, now: float) -> list[Action]:
        self.forget(receipt.transfer_id, delete=True)
        self._note(device_id, receipt)
        return [_answer(device_id, receipt), *self._admit_waiting(now)]

    def _owner(self, key: str) -> str | None:
        """Whose transfer it is, as far as anything is known of it."""
        transfer = self._active.get(key) or self._held.get(key)
        if transfer is not None:
            return transfer.device_id
        waiting = self._waiting.get(key)
        return self._decision(key)[0] if waiting is None else waiting[0]

    def _decision(self, key: str) -> tuple[str | None, Receipt | None]:
        """Whose transfer was settled, and how; None twice if that is not known."""
        found = self._settled.get(key, (None, None))
        return (found, Receipt(transfer_id=key, status="done")) if isinstance(found, str) else found

    def _note(self, device_id: str, receipt: Receipt) -> None:
        done = Receipt(transfer_id=receipt.transfer_id, status="done")
        noted = device_id if receipt == done else (device_id, receipt)
        self._settled[receipt.transfer_id] = noted
        while len(self._settled) > self._limits.settled:
            self._settled.popitem(last=False)


def _check_shared(offer: TransferOffer, shared: str) -> None:
    if shared and shared != (named := shared_version(offer.sha256, offer.chunk_bytes)):
        raise RefusedError("shared", f"task: expected the version {named} or none, got {shared}")


def _refusal(key: str, rule: str, reason: str) -> Receipt:
    return Receipt(transfer_id=key, status="reject", reason=reason[:500], rule=rule)


def _wait(device_id: str, key: str) -> Send:
    return _answer(device_id, Need(transfer_id=key, missing=(), credit=0))


def _answer(device_id: str, message: Message) -> Send:
    return Send(device_id, Lane.ANSWER, encode(message))
