from __future__ import annotations

import resource

import pytest
from msgspec.structs import replace

from protofleet.errors import InputError, RefusedError
from protofleet.wire.messages import Need, Receipt
from protofleet.wire.transfers.carousel import shared_version
from protofleet.wire.transfers.chunks import Chunk, pack
from protofleet.wire.transfers.inbound import FIRST_CHUNK_S, LISTEN_S, SILENCE_S
from protofleet.wire.transfers.receiver import Receiver
from protofleet.wire.transfers.transfer import Limits, Received, describe

from .channel import CHUNK, DEVICE, answers_in, blob_of, chunks_of, offer_of


@pytest.fixture
def receiver(tmp_path):
    return Receiver(tmp_path, Limits(max_blob_bytes=100_000))


def test_a_receiver_killed_before_accepting_has_the_blob_without_asking(tmp_path, receiver):
    blob = blob_of(1000)
    offer = offer_of(blob)
    receiver.expect(DEVICE, offer, 0.0)
    for payload in chunks_of(blob, offer):
        receiver.chunk(DEVICE, payload, 0.0)
    again = Receiver(tmp_path, Limits())
    (event,) = again.expect(DEVICE, offer, 1.0)
    assert isinstance(event, Received)
    assert event.path.read_bytes() == blob


def test_done_is_repeated_for_a_repeated_offer(receiver):
    blob = blob_of(100)
    offer = offer_of(blob)
    receiver.expect(DEVICE, offer, 0.0)
    (event,) = receiver.chunk(DEVICE, chunks_of(blob, offer)[0], 0.0)
    assert isinstance(event, Received)
    assert receiver.expect(DEVICE, offer, 0.1) == []
    first = receiver.accept(offer.transfer_id, 0.2)
    assert receiver.expect(DEVICE, offer, 0.3) == first
    assert receiver.accept(offer.transfer_id, 0.4) == []
    assert answers_in(first) == [Receipt(transfer_id=offer.transfer_id, status="done")]


def test_done_is_answered_after_a_restart_that_remembers(receiver):
    offer = offer_of(b"abc")
    receiver.remember(offer.transfer_id)
    (answer,) = answers_in(receiver.expect(DEVICE, offer, 0.0))
    assert answer.status == "done"


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("blob-size", {"total_bytes": 100_001}),
        ("blob-size", {"total_bytes": 0}),
        ("blob-size", {"total_bytes": -1}),
        ("chunk-bytes", {"chunk_bytes": 255}),
        ("chunk-bytes", {"chunk_bytes": 65_000}),
        ("codec", {"codec": "zip"}),
        ("transfer-id", {"transfer_id": "0" * 32}),
        ("chunk-bytes", {"total_bytes": 2**18 * 256 + 1}),
        ("transfer-id", {"round_id": 2}),
        ("transfer-id", {"sha256": "00" * 32}),
    ],
)
def test_an_offer_beyond_the_limits_is_rejected_and_leaves_nothing(tmp_path, rule, change):
    receiver = Receiver(tmp_path, Limits(max_blob_bytes=100_000))
    if change.get("total_bytes", 0) > 10**6:
        receiver = Receiver(tmp_path, Limits())
    offer = replace(offer_of(blob_of(500)), **change)
    (answer,) = answers_in(receiver.expect(DEVICE, offer, 0.0))
    assert answer.status == "reject"
    assert answer.rule == rule
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_no_id_never_becomes_a_folder(receiver, tmp_path):
    with pytest.raises(InputError, match="device"):
        receiver.expect("../x", offer_of(b"abc"), 0.0)
    assert list(tmp_path.iterdir()) == []


def test_chunks_outside_the_grid_are_refused(receiver):
    blob = blob_of(1000)
    offer = offer_of(blob)
    receiver.expect(DEVICE, offer, 0.0)
    bad = {
        "chunk-index": Chunk(transfer_id=offer.transfer_id, index=4, last=True, data=bytes(232)),
        "chunk-grid": Chunk(transfer_id=offer.transfer_id, index=0, last=False, data=b"short"),
    }
    for rule, chunk in bad.items():
        with pytest.raises(RefusedError) as refused:
            receiver.chunk(DEVICE, pack(chunk), 0.0)
        assert refused.value.rule == rule


def test_a_device_cannot_reject_anothers_transfer_by_its_id(receiver):
    """Neither one in progress nor one that is done: its owner goes on and hears done again."""
    blob = blob_of(300)
    offer = offer_of(blob)
    receiver.expect(DEVICE, offer, 0.0)
    receiver.reject("thief", offer.transfer_id, "offer", "not wanted", 0.0)
    for chunk in chunks_of(blob, offer):
        done = receiver.chunk(DEVICE, chunk, 0.0)
    assert isinstance(done[0], Received)
    receiver.accept(offer.transfer_id, 0.0)
    receiver.reject("thief", offer.transfer_id, "offer", "not wanted", 0.0)
    (answer,) = answers_in(receiver.expect(DEVICE, offer, 0.0))
    assert answer.status == "done"


def test_a_cancelled_transfer_is_fetched_again_when_it_is_offered_again(receiver):
    """Whoever gives a finished payload up must be able to get it once more."""
    blob = blob_of(100)
    offer = offer_of(blob)
    receiver.expect(DEVICE, offer, 0.0)
    receiver.chunk(DEVICE, *chunks_of(blob, offer), 0.0)
    receiver.accept(offer.transfer_id, 0.0)
    receiver.cancel(offer.transfer_id)
    (answer,) = answers_in(receiver.expect(DEVICE, offer, 1.0))
    assert isinstance(answer, Need)


def test_a_blob_that_never_has_its_hash_is_fetched_twice_and_rejected(receiver):
    """Chunks may be right one by one and still be another blob's."""
    offer = offer_of(blob_of(300))
    receiver.expect(DEVICE, offer, 0.0)
    wrong = chunks_of(bytes(300), offer)
    answers = []
    for payload in wrong * 2:
        answers += answers_in(receiver.chunk(DEVICE, payload, 0.0))
    assert [type(answer) for answer in answers] == [Need, Receipt]
    assert answers[-1].rule == "sha256"


def test_uploads_wait_their_turn_and_each_gets_one(tmp_path):
    """Never more than ``concurrent`` windows are in flight, whoever offers."""
    receiver = Receiver(tmp_path, Limits(concurrent=2))
    blob = blob_of(100)
    devices = [f"d{i}" for i in range(5)]
    offers = {
        device_id: describe(blob, kind="update", device_id=device_id, round_id=1)
        for device_id in devices
    }
    granted = {
        device_id: answers_in(receiver.expect(device_id, offers[device_id], 0.0))[0].credit
        for device_id in devices
    }
    assert list(granted.values()) == [1, 1, 0, 0, 0]
    (chunk,) = chunks_of(blob, offers["d0"])
    actions = receiver.chunk("d0", chunk, 0.1)
    assert [type(a).__name__ for a in actions] == ["Received", "Send"]
    assert actions[1].device_id == "d2"


def test_a_silent_device_loses_its_slot_to_those_who_wait(tmp_path):
    receiver = Receiver(tmp_path, Limits(concurrent=1))
    for device_id in ("dead", "alive"):
        offer = describe(b"blob", kind="update", device_id=device_id, round_id=1)
        receiver.expect(device_id, offer, 0.0)
    now, devices = 0.0, []
    while "alive" not in devices:
        now = receiver.due()
        devices += [action.device_id for action in receiver.tick(now)]
    assert (now, set(devices[:-1])) == (FIRST_CHUNK_S, {"dead"})


def test_a_newer_blob_replaces_the_devices_older_one_on_disk(receiver, tmp_path):
    """A device that offers one blob after the other never fills the disk."""
    for round_id in range(1, 20):
        receiver.expect(DEVICE, offer_of(blob_of(5000), round_id=round_id), float(round_id))
    assert len(list((tmp_path / DEVICE).iterdir())) == 2


def test_a_chunk_that_a_full_disk_took_in_part_is_not_taken(receiver):
    """The kernel writes what fits and says so; only the rest is an error."""
    blob = blob_of(1000)
    offer = offer_of(blob)
    receiver.expect(DEVICE, offer, 0.0)
    first, *others = chunks_of(blob, offer)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (offer.chunk_bytes // 2, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            receiver.chunk(DEVICE, first, 0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for payload in others:
        assert not any(isinstance(one, Received) for one in receiver.chunk(DEVICE, payload, 0.0))
    *_, event = receiver.chunk(DEVICE, first, 0.0)
    assert event.path.read_bytes() == blob


class _Listener:
    """A device that listens to chunks for all, of a blob of twelve."""

    def __init__(self, receiver):
        self.receiver, self.blob = receiver, blob_of(12 * CHUNK)
        self.offer = offer_of(self.blob)
        self.version = shared_version(self.offer.sha256, CHUNK)
        self.own = chunks_of(self.blob, self.offer)
        self.shared = chunks_of(self.blob, replace(self.offer, transfer_id=self.version))
        (self.first,) = self.offered(0.0)

    def offered(self, now, *, listens=True):
        version = self.version if listens else ""
        return answers_in(self.receiver.expect(DEVICE, self.offer, now, shared=version))

    def hear(self, now, *indices):
        return [one for i in indices for one in self.receiver.shared_chunk(self.shared[i], now)]

    def get(self, now, *indices):
        return [one for i in indices for one in self.receiver.chunk(DEVICE, self.own[i], now)]


@pytest.fixture
def listener(receiver):
    return _Listener(receiver)


def test_a_silent_turn_may_be_late_so_its_end_is_asked_for_first(listener):
    """If more of it comes, nothing is lost, and nothing else is asked for."""
    assert listener.first.listening
    listener.hear(1.0, 0, 1, 2)
    (need,) = answers_in(listener.receiver.tick(1.0 + 4 * SILENCE_S))
    assert (need.missing, need.credit, need.listening) == (((10, 12),), 2, False)
    assert listener.hear(8.0, *range(3, 11)) == []
    (done,) = listener.hear(9.0, 11)
    assert isinstance(done, Received)


def test_a_chunk_of_its_own_tells_that_the_rest_of_the_turn_is_lost(listener):
    """It comes behind the turn; what was asked for with it is on its way."""
    listener.hear(1.0, 0, 1, 2)
    listener.receiver.tick(1.0 + 4 * SILENCE_S)
    (need,) = answers_in(listener.get(8.0, 10))
    assert (need.missing, need.credit) == (((3, 10),), 7)
    assert listener.get(8.1, 11, *range(3, 9)) == []
    (done,) = listener.get(8.2, 9)
    assert isinstance(done, Received)


def test_a_turn_that_stays_silent_is_asked_for_ever_further_from_its_end(listener):
    asked, now = [], LISTEN_S
    for _ in range(3):
        (need,) = answers_in(listener.receiver.tick(now))
        asked.append(need.missing)
        now = listener.receiver.due()
    assert asked == [((10, 12),), ((8, 10),), ((6, 8),)]


def test_an_offer_without_a_version_ends_the_listening_for_good(listener):
    """It asks for what it lacks, and does not listen on a new connection either."""
    listener.hear(1.0, 0, 1, 2)
    (need,) = listener.offered(1.1)
    assert (need.missing, need.listening) == (((3, 12),), True)
    (need,) = listener.offered(1.2, listens=False)
    assert (need.missing, need.credit, need.listening) == (((3, 7),), 4, False)
    listener.hear(1.3, 3)  # what was on its way is taken all the same
    (need,) = answers_in(listener.receiver.reconnected(2.0))
    assert (need.missing, need.listening) == (((4, 8),), False)


def test_what_was_asked_for_is_on_its_way_when_the_listening_ends(listener):
    listener.hear(1.0, 0, 1, 2)
    now = 1.0 + 4 * SILENCE_S
    listener.receiver.tick(now)
    (need,) = listener.offered(now, listens=False)
    assert (need.missing, need.credit) == (((3, 5),), 2)


def test_what_was_late_on_a_connection_is_lost_with_it(listener):
    listener.hear(1.0, 0, 1, 2)
    (need,) = answers_in(listener.get(1.1, 11))
    assert need.missing == ((3, 7),)
    listener.receiver.tick(listener.receiver.due())
    (need,) = answers_in(listener.receiver.reconnected(20.0))
    assert (need.missing, need.listening) == (((3, 11),), True)
    listener.hear(20.1, 3)
    (need,) = answers_in(listener.get(20.2, 10))
    assert need.missing[0][0] == 4


def test_who_asks_and_hears_a_turn_asks_for_nothing_that_it_brings(listener):
    """Until what it had asked for comes, which is behind the turn."""
    (need,) = listener.offered(0.1, listens=False)
    assert need.missing == ((0, 4),)
    assert listener.hear(0.2, *range(10)) == []
    (need,) = answers_in(listener.get(0.3, 0))
    assert need.missing == ((10, 12),)
