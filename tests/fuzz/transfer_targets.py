"""The two ends of transfers: records of one input, a line each, one after the other."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import suppress

from fuzz.target import Target, scratch

from protofleet.errors import RefusedError
from protofleet.wire.messages import Need, Receipt, TransferOffer, decode, encode
from protofleet.wire.transfers.chunks import Chunk, pack
from protofleet.wire.transfers.receiver import Receiver
from protofleet.wire.transfers.sender import Sender
from protofleet.wire.transfers.transfer import Limits, describe, transfer_id

_DEVICE = "pi-7"
_BLOB = bytes(range(256)) * 100
_STEP_S = 7.0
_MOST_LINES = 50


def _offer(round_id: int = 3) -> TransferOffer:
    return describe(_BLOB, kind="update", device_id=_DEVICE, round_id=round_id, chunk_bytes=256)


def _answers() -> Iterator[bytes]:
    key = _offer().transfer_id
    needs = [
        Need(transfer_id=key, missing=((0, 50), (60, 100)), credit=16),
        Need(transfer_id=key, missing=(), credit=0),
    ]
    done = Receipt(transfer_id=key, status="done")
    late = Receipt(transfer_id=key, status="reject", reason="late", rule="codec")
    yield b"\n".join(map(encode, [*needs, needs[0], done, late]))


def _answered(data: bytes) -> None:
    """What a receiver may answer to a blob that is offered to it."""
    sender = Sender(random.Random(0))
    sender.send(_DEVICE, _BLOB, _offer(), 0.0)
    for k, line in enumerate(data.split(b"\n")[:_MOST_LINES]):
        now = k * _STEP_S
        with suppress(RefusedError):
            sender.answer(_DEVICE, line, now)
        handed_out = 0
        while sender.next_chunk() is not None:
            handed_out += 1
        assert handed_out <= 16, handed_out
        sender.tick(now)
        sender.due()


def _offers() -> Iterator[bytes]:
    yield b"\n".join(encode(_offer(round_id)) for round_id in (3, 4, 3))


def _offered(data: bytes) -> None:
    """What a sender may offer; its transfer's id is made to fit, as a liar would."""
    folder = scratch() / "incoming"
    receiver = Receiver(folder, Limits(max_blob_bytes=1 << 30, concurrent=2, waiting=2))
    try:
        for k, line in enumerate(data.split(b"\n")[:_MOST_LINES]):
            with suppress(RefusedError):
                _expect(receiver, decode(line, TransferOffer), k * _STEP_S)
            receiver.tick(k * _STEP_S)
            receiver.due()
    finally:
        receiver.close()
        shutil.rmtree(folder, ignore_errors=True)


def _expect(receiver: Receiver, offer: TransferOffer, now: float) -> None:
    receiver.expect(_DEVICE, offer, now)
    key = transfer_id(offer.sha256, _DEVICE, offer.round_id)
    fields = {name: getattr(offer, name) for name in offer.__struct_fields__}
    receiver.expect(_DEVICE, TransferOffer(**{**fields, "transfer_id": key}), now)
    for index in (0, 99, 2**32 - 1):
        chunk = Chunk(transfer_id=key, index=index, last=index > 90, data=bytes(256))
        with suppress(RefusedError):
            receiver.chunk(_DEVICE, pack(chunk), now)


TARGETS = (
    Target("transfer-answers", _answered, _answers),
    Target("transfer-offers", _offered, _offers, constant=4 << 20),
)
