from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest
from msgspec.structs import replace

from protofleet.errors import RefusedError
from protofleet.wire.messages import Need, Receipt, Task, decode, encode
from protofleet.wire.transfers.sender import UNANSWERED_MAX, Sender
from protofleet.wire.transfers.transfer import Lane, Rejected, describe

from .channel import CHUNK, DEVICE, blob_of, offer_of

_HELD_BYTES = 700
"""For each device, its id included."""


@pytest.fixture
def sender():
    return Sender(random.Random(0))


@pytest.mark.parametrize("missing", [((0, 0),), ((2, 1),), ((-1, 1),), ((0, 3),), ((9, 10),)])
def test_ranges_outside_the_blob_are_refused(sender, missing):
    offer = offer_of(blob_of(300))
    sender.send(DEVICE, blob_of(300), offer, 0.0)
    need = Need(transfer_id=offer.transfer_id, missing=missing, credit=1)
    with pytest.raises(RefusedError) as refused:
        sender.answer(DEVICE, encode(need), 0.0)
    assert refused.value.rule == "need-range"
    assert sender.next_chunk() is None


def test_a_greedy_need_gets_one_window(sender):
    blob = blob_of(100 * CHUNK)
    offer = offer_of(blob)
    sender.send(DEVICE, blob, offer, 0.0)
    need = Need(transfer_id=offer.transfer_id, missing=((0, 100),), credit=10**9)
    for _ in range(3):
        sender.answer(DEVICE, encode(need), 0.0)
    sent = 0
    while sender.next_chunk() is not None:
        sent += 1
    assert sent == 16


def test_an_unanswered_offer_is_repeated_ever_more_slowly(sender):
    sender.send(DEVICE, b"blob", offer_of(b"blob"), 0.0)
    assert [a.lane for a in sender.tick(0.0)] == [Lane.OFFER]
    times = [0.0]
    while times[-1] < 600.0:
        times.append(sender.due())
        assert [a.lane for a in sender.tick(times[-1])] == [Lane.OFFER]
    gaps = [late - early for early, late in pairwise(times)]
    assert 2.25 <= gaps[0] <= 3.75
    assert all(45.0 <= gap <= 75.0 for gap in gaps[6:])


def test_where_answers_take_long_offers_are_repeated_later(sender):
    """An answer to a repeated offer tells nothing: the first one may have been lost."""
    patience = []
    for answer_s, repeated in ((2.0, False), (0.0, False), (30.0, True)):
        for number in range(60):
            name = f"device-{number}"
            offer = describe(b"blob", kind="payload", device_id=name, round_id=1)
            sender.send(name, b"blob", offer, 0.0)
            sender.tick(0.0)
            patience.append(sender._open[offer.transfer_id].due)
            if repeated:
                sender.tick(patience[-1])
            done = Receipt(transfer_id=offer.transfer_id, status="done")
            sender.answer(name, encode(done), answer_s)
    assert 2.25 <= patience[0] <= 3.75
    assert all(0.75 * 4 * 1.9 <= one <= 1.25 * 4 * 2.0 for one in patience[40:60])
    assert all(2.25 <= one <= 3.75 for one in patience[100:])


def test_a_task_is_the_offer_and_its_chunks_shrink_with_the_broker(sender):
    """After a reconnect to a smaller limit the same blob is offered in smaller chunks."""
    blob = blob_of(1000)
    offer = offer_of(blob, chunk_bytes=512)
    task = Task(task="train", round_id=1, federation="lab", payload=offer)
    sender.send(DEVICE, blob, offer, 0.0, task=task)
    (first,) = sender.tick(0.0)
    sender.reconnected(1.0, max_chunk_bytes=300)
    (again,) = sender.tick(1.0)
    assert decode(first.payload, Task).payload == offer
    assert decode(again.payload, Task).payload == replace(offer, chunk_bytes=300)


def _offered(actions):
    return [action.device_id for action in actions]


def _send_to(sender, names):
    offers = {name: describe(b"blob", kind="payload", device_id=name, round_id=1) for name in names}
    for name, offer in offers.items():
        sender.send(name, b"blob", offer, 0.0)
    return {name: offer.transfer_id for name, offer in offers.items()}


def test_who_is_to_ask_is_offered_the_same_blob_without_a_version(sender):
    """Soon, and whenever it is offered again; other transfers of the task keep theirs."""
    blob = blob_of(300)
    task = Task(task="train", round_id=1, federation="lab", shared="ab" * 16)
    offers = {
        name: describe(blob, kind="payload", device_id=name, round_id=1) for name in (DEVICE, "b")
    }
    for name, offer in offers.items():
        sender.send(name, blob, offer, 0.0, task=task)
    assert [decode(one.payload, Task).shared for one in sender.tick(0.0)] == [task.shared] * 2
    sender.let_ask(offers[DEVICE].transfer_id, 0.1)
    assert sender.tick(0.1) == []
    (again,) = sender.tick(1.0)
    assert (again.device_id, decode(again.payload, Task).shared) == (DEVICE, "")
    sender.reconnected(2.0)
    again = {one.device_id: decode(one.payload, Task).shared for one in sender.tick(2.0)}
    assert again == {DEVICE: "", "b": task.shared}
    sender.let_ask("0" * 32, 2.0)  # of another sender


def test_no_more_is_offered_at_once_than_there_is_room_for(sender):
    names = [f"pi-{number}" for number in range(10)]
    _send_to(sender, names)
    assert sender.offering
    assert _offered(sender.tick(0.0, 4)) == names[:4]
    assert _offered(sender.tick(0.0, 4)) == names[4:8]
    assert sender.due() < 0.0
    assert _offered(sender.tick(0.0, 4)) == names[8:]
    assert not sender.offering
    assert sender.tick(0.0, 4) == []
    assert sender.due() > 0.0


def test_answers_that_a_broker_would_drop_are_not_asked_for(sender):
    """Only so many are out that were never answered; an answer or a repetition makes room."""
    names = [f"pi-{number:04d}" for number in range(UNANSWERED_MAX + 3)]
    ids = _send_to(sender, names)
    assert _offered(sender.tick(0.0)) == names[:UNANSWERED_MAX]
    assert sender.tick(0.1) == []
    alive = Need(transfer_id=ids[names[5]], missing=(), credit=0)
    sender.answer(names[5], encode(alive), 0.1)
    assert _offered(sender.tick(0.1)) == [names[UNANSWERED_MAX]]
    sender.forget(ids[names[6]])
    assert _offered(sender.tick(0.1)) == [names[UNANSWERED_MAX + 1]]
    sender.tick(sender.due())  # nobody answers: the first is repeated
    assert _offered(sender.tick(0.1)) == [names[-1]]


def test_a_new_link_offers_everything_anew_in_its_order(sender):
    names = ["pi-1", "pi-2", "pi-3"]
    _send_to(sender, names)
    sender.tick(0.0, 2)
    sender.reconnected(1.0)
    assert _offered(sender.tick(1.0, 2)) == names[:2]
    assert _offered(sender.tick(1.0, 2)) == names[2:]
    assert sender.tick(1.0) == []


def test_a_vanished_source_ends_the_transfer(sender, tmp_path):
    source = tmp_path / "update"
    source.write_bytes(blob_of(1000))
    offer = describe(source, kind="update", device_id=DEVICE, round_id=1)
    sender.send(DEVICE, source, offer, 0.0)
    need = Need(transfer_id=offer.transfer_id, missing=((0, 1),), credit=1)
    sender.answer(DEVICE, encode(need), 0.0)
    source.unlink()
    event = sender.next_chunk()
    assert isinstance(event, Rejected)
    assert event.rule == "source"


def test_what_is_held_for_each_device_with_an_open_offer_is_bounded():
    """So much and no more stays for a device whose task is out: most devices only wait."""
    count, blob = 500, b"payload"
    offers = [
        describe(blob, kind="payload", device_id=f"pi-{number:05d}", round_id=1)
        for number in range(count)
    ]
    sender = Sender()
    sender.send("warm", blob, describe(blob, kind="payload", device_id="warm", round_id=1), 0.0)
    sender.tick(0.0)
    tracemalloc.start()
    try:
        for number, offer in enumerate(offers):
            sender.send(f"pi-{number:05d}", blob, offer, 0.0)
            sender.tick(0.0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / count < _HELD_BYTES
