from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from protofleet.errors import InputError, RefusedError
from protofleet.wire.chunks import Chunk, pack
from protofleet.wire.messages import Manifest, Need, Receipt, Task, decode, encode
from protofleet.wire.transfer import (
    Courier,
    Delivered,
    Lane,
    Limits,
    Received,
    Rejected,
    Send,
    describe,
    transfer_id,
)

from .channel import Channel, Faults

_CHUNK = 256
_PEER = "pi-7"
_RATES = st.floats(0.0, 0.4)


def _manifest(blob: bytes, *, round_id: int = 1, chunk_bytes: int = _CHUNK) -> Manifest:
    return describe(
        blob, kind="update", device_id=_PEER, round_id=round_id, chunk_bytes=chunk_bytes
    )


def _blob(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _count(blob: bytes) -> int:
    return -(-len(blob) // _CHUNK)


@pytest.fixture
def courier(tmp_path):
    return Courier(tmp_path, Limits(max_blob_bytes=100_000), random.Random(0))


def _chunks(blob: bytes, manifest: Manifest) -> list[bytes]:
    step = manifest.chunk_bytes
    count = -(-len(blob) // step)
    return [
        pack(
            Chunk(
                transfer_id=manifest.transfer_id,
                index=i,
                last=i == count - 1,
                data=blob[i * step : (i + 1) * step],
            )
        )
        for i in range(count)
    ]


def _answers(actions: list) -> list:
    return [decode(a.payload, Need | Receipt) for a in actions if isinstance(a, Send)]


def test_the_id_is_the_specified_hash():
    assert transfer_id("ab" * 32, "pi-7", 3) == "cabe5cf183b117ab492041e61422fe86"


@given(st.integers(1, 60 * _CHUNK))
@settings(max_examples=30, deadline=None)
def test_a_perfect_channel_carries_each_chunk_once(size):
    blob = _blob(size)
    with tempfile.TemporaryDirectory() as folder:
        channel = Channel(Path(folder), random.Random(1))
        channel.send(blob, _manifest(blob))
        channel.run()
    assert channel.received == blob
    assert channel.chunks_sent == _count(blob)
    assert channel.kinds["offer"] == 1


@given(
    size=st.integers(1, 60 * _CHUNK),
    seed=st.integers(0, 2**32),
    faults=st.builds(Faults, loss=_RATES, duplicate=_RATES, reorder=_RATES, corrupt=_RATES),
)
@settings(max_examples=60, deadline=None)
def test_a_bad_channel_delays_but_never_damages(size, seed, faults):
    """Equal bytes arrive, and each fault costs at most one window of repetitions."""
    blob = _blob(size)
    with tempfile.TemporaryDirectory() as folder:
        channel = Channel(Path(folder), random.Random(seed), faults)
        channel.send(blob, _manifest(blob))
        channel.run()
    assert isinstance(channel.outcome, Delivered)
    assert channel.received == blob
    assert channel.chunks_sent <= _count(blob) + 16 * faults.done


@given(size=st.integers(20 * _CHUNK, 60 * _CHUNK), stop=st.integers(1, 19))
@settings(max_examples=30, deadline=None)
def test_a_restarted_receiver_continues_from_its_disk(size, stop):
    """After a kill in the middle only what was in flight is sent again."""
    blob = _blob(size)
    with tempfile.TemporaryDirectory() as folder:
        channel = Channel(Path(folder), random.Random(1))
        channel.send(blob, _manifest(blob))
        channel.run(until=stop)
        channel.restart_receiver()
        channel.run()
    assert channel.received == blob
    assert channel.chunks_sent <= _count(blob) + 2 * 16


def test_a_receiver_killed_before_accepting_has_the_blob_without_asking(tmp_path, courier):
    blob = _blob(1000)
    manifest = _manifest(blob)
    courier.expect(_PEER, manifest, 0.0)
    for payload in _chunks(blob, manifest):
        courier.handle(_PEER, Lane.CHUNK, payload, 0.0)
    again = Courier(tmp_path, Limits(), random.Random(0))
    (event,) = again.expect(_PEER, manifest, 1.0)
    assert isinstance(event, Received)
    assert event.path.read_bytes() == blob


def test_done_is_repeated_for_a_repeated_offer(courier):
    blob = _blob(100)
    manifest = _manifest(blob)
    courier.expect(_PEER, manifest, 0.0)
    (event,) = courier.handle(_PEER, Lane.CHUNK, _chunks(blob, manifest)[0], 0.0)
    assert isinstance(event, Received)
    assert courier.expect(_PEER, manifest, 0.1) == []
    first = courier.accept(manifest.transfer_id, 0.2)
    assert courier.expect(_PEER, manifest, 0.3) == first
    assert courier.accept(manifest.transfer_id, 0.4) == []
    assert _answers(first) == [Receipt(transfer_id=manifest.transfer_id, status="done")]


def test_done_is_answered_after_a_restart_that_remembers(courier):
    manifest = _manifest(b"abc")
    courier.remember(manifest.transfer_id)
    (answer,) = _answers(courier.expect(_PEER, manifest, 0.0))
    assert answer.status == "done"


def test_reject_reaches_the_sender_with_its_reason(courier, tmp_path):
    blob = _blob(100)
    manifest = _manifest(blob)
    other = Courier(tmp_path / "other", Limits(), random.Random(0))
    other.send(_PEER, blob, manifest, 0.0)
    (send,) = courier.reject(_PEER, manifest.transfer_id, "round 1 is over", 0.0)
    events = other.handle(_PEER, Lane.ANSWER, send.payload, 0.0)
    assert events == [Rejected(_PEER, manifest, "round 1 is over")]
    assert other.due() is None or other.tick(1000.0) == []


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("blob-size", {"total_bytes": 100_001}),
        ("blob-size", {"total_bytes": 0}),
        ("blob-size", {"total_bytes": -1}),
        ("chunk-bytes", {"chunk_bytes": 255}),
        ("chunk-bytes", {"chunk_bytes": 65_000}),
        ("codec", {"codec": "zip"}),
        ("transfer-id", {"transfer_id": "../../etc/passwd"}),
        ("transfer-id", {"round_id": 2}),
        ("transfer-id", {"sha256": "00" * 32}),
    ],
)
def test_a_manifest_beyond_the_limits_is_rejected_and_leaves_nothing(
    courier, tmp_path, rule, change
):
    manifest = replace(_manifest(_blob(500)), **change)
    (answer,) = _answers(courier.expect(_PEER, manifest, 0.0))
    assert answer.status == "reject"
    assert answer.reason.startswith(rule)
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_is_no_id_never_becomes_a_folder(courier, tmp_path):
    with pytest.raises(InputError, match="device"):
        courier.expect("../x", _manifest(b"abc"), 0.0)
    assert list(tmp_path.iterdir()) == []


def test_chunks_outside_the_grid_are_refused(courier):
    blob = _blob(1000)
    manifest = _manifest(blob)
    courier.expect(_PEER, manifest, 0.0)
    bad = {
        "chunk-index": Chunk(transfer_id=manifest.transfer_id, index=4, last=True, data=bytes(232)),
        "chunk-grid": Chunk(transfer_id=manifest.transfer_id, index=0, last=False, data=b"short"),
    }
    for rule, chunk in bad.items():
        with pytest.raises(RefusedError) as refused:
            courier.handle(_PEER, Lane.CHUNK, pack(chunk), 0.0)
        assert refused.value.rule == rule


def test_chunks_and_answers_of_unknown_or_foreign_transfers_are_ignored(courier):
    blob = _blob(100)
    manifest = _manifest(blob)
    (chunk,) = _chunks(blob, manifest)
    assert courier.handle(_PEER, Lane.CHUNK, chunk, 0.0) == []
    courier.expect(_PEER, manifest, 0.0)
    assert courier.handle("mallory", Lane.CHUNK, chunk, 0.0) == []
    courier.send(_PEER, blob, manifest, 0.0)
    done = encode(Receipt(transfer_id=manifest.transfer_id, status="done"))
    assert courier.handle("mallory", Lane.ANSWER, done, 0.0) == []
    assert courier.handle(_PEER, Lane.ANSWER, done, 0.0) == [Delivered(_PEER, manifest)]


def test_a_peer_cannot_reject_anothers_transfer_by_its_id(courier):
    """Neither one in progress nor one that is done: its owner goes on and hears done again."""
    blob = _blob(300)
    manifest = _manifest(blob)
    courier.expect(_PEER, manifest, 0.0)
    courier.reject("thief", manifest.transfer_id, "not wanted", 0.0)
    for chunk in _chunks(blob, manifest):
        done = courier.handle(_PEER, Lane.CHUNK, chunk, 0.0)
    assert isinstance(done[0], Received)
    courier.accept(manifest.transfer_id, 0.0)
    courier.reject("thief", manifest.transfer_id, "not wanted", 0.0)
    (answer,) = _answers(courier.expect(_PEER, manifest, 0.0))
    assert answer.status == "done"


def test_an_endless_transfer_id_is_neither_kept_nor_echoed(courier):
    (answer,) = _answers(courier.reject(_PEER, "f" * 60_000, "not wanted", 0.0))
    assert len(answer.transfer_id) == 64


def test_a_cancelled_transfer_is_fetched_again_when_it_is_offered_again(courier):
    """Whoever gives a finished payload up must be able to get it once more."""
    blob = _blob(100)
    manifest = _manifest(blob)
    courier.expect(_PEER, manifest, 0.0)
    courier.handle(_PEER, Lane.CHUNK, *_chunks(blob, manifest), 0.0)
    courier.accept(manifest.transfer_id, 0.0)
    courier.cancel(manifest.transfer_id)
    (answer,) = _answers(courier.expect(_PEER, manifest, 1.0))
    assert isinstance(answer, Need)


def test_a_blob_that_never_has_its_hash_is_fetched_twice_and_rejected(courier):
    """Chunks may be right one by one and still be another blob's."""
    manifest = _manifest(_blob(300))
    courier.expect(_PEER, manifest, 0.0)
    wrong = _chunks(bytes(300), manifest)
    answers = []
    for payload in wrong * 2:
        answers += _answers(courier.handle(_PEER, Lane.CHUNK, payload, 0.0))
    assert [type(answer) for answer in answers] == [Need, Receipt]
    assert answers[-1].reason.startswith("sha256")


@pytest.mark.parametrize("missing", [((0, 0),), ((2, 1),), ((-1, 1),), ((0, 3),), ((9, 10),)])
def test_ranges_outside_the_blob_are_refused(courier, missing):
    manifest = _manifest(_blob(300))
    courier.send(_PEER, _blob(300), manifest, 0.0)
    need = Need(transfer_id=manifest.transfer_id, missing=missing, credit=1)
    with pytest.raises(RefusedError) as refused:
        courier.handle(_PEER, Lane.ANSWER, encode(need), 0.0)
    assert refused.value.rule == "need-range"
    assert courier.next_chunk() is None


def test_a_greedy_need_gets_one_window(courier):
    blob = _blob(100 * _CHUNK)
    manifest = _manifest(blob)
    courier.send(_PEER, blob, manifest, 0.0)
    need = Need(transfer_id=manifest.transfer_id, missing=((0, 100),), credit=10**9)
    for _ in range(3):
        courier.handle(_PEER, Lane.ANSWER, encode(need), 0.0)
    sent = 0
    while courier.next_chunk() is not None:
        sent += 1
    assert sent == 16


def test_uploads_wait_their_turn_and_each_gets_one(tmp_path):
    """Never more than ``concurrent`` windows are in flight, whoever offers."""
    courier = Courier(tmp_path, Limits(concurrent=2), random.Random(0))
    blob = _blob(100)
    peers = [f"d{i}" for i in range(5)]
    manifests = {peer: describe(blob, kind="update", device_id=peer, round_id=1) for peer in peers}
    granted = {
        peer: _answers(courier.expect(peer, manifests[peer], 0.0))[0].credit for peer in peers
    }
    assert list(granted.values()) == [1, 1, 0, 0, 0]
    (chunk,) = _chunks(blob, manifests["d0"])
    actions = courier.handle("d0", Lane.CHUNK, chunk, 0.1)
    assert [type(a).__name__ for a in actions] == ["Received", "Send"]
    assert actions[1].peer == "d2"


def test_a_silent_peer_loses_its_slot_to_those_who_wait(tmp_path):
    courier = Courier(tmp_path, Limits(concurrent=1), random.Random(0))
    for peer in ("dead", "alive"):
        manifest = describe(b"blob", kind="update", device_id=peer, round_id=1)
        courier.expect(peer, manifest, 0.0)
    now, peers = 0.0, []
    while "alive" not in peers and now < 300.0:
        now = courier.due()
        peers += [action.peer for action in courier.tick(now)]
    assert peers == ["dead"] * 6 + ["alive"]


def test_an_unanswered_offer_is_repeated_ever_more_slowly(courier):
    courier.send(_PEER, b"blob", _manifest(b"blob"), 0.0)
    times = [0.0]
    while times[-1] < 600.0:
        times.append(courier.due())
        assert [a.lane for a in courier.tick(times[-1])] == [Lane.OFFER]
    gaps = [late - early for early, late in pairwise(times)]
    assert 2.25 <= gaps[0] <= 3.75
    assert all(45.0 <= gap <= 75.0 for gap in gaps[6:])


def test_a_task_is_the_offer_and_its_chunks_shrink_with_the_broker(courier):
    """After a reconnect to a smaller limit the same blob is offered in smaller chunks."""
    blob = _blob(1000)
    manifest = _manifest(blob, chunk_bytes=512)
    task = Task(task="train", round_id=1, federation="lab", payload=manifest)
    (first,) = courier.send(_PEER, blob, manifest, 0.0, offer=task)
    (again,) = courier.reconnected(1.0, max_chunk_bytes=300)
    assert decode(first.payload, Task).payload == manifest
    assert decode(again.payload, Task).payload == replace(manifest, chunk_bytes=300)


def test_a_vanished_source_ends_the_transfer(courier, tmp_path):
    source = tmp_path / "update"
    source.write_bytes(_blob(1000))
    manifest = describe(source, kind="update", device_id=_PEER, round_id=1)
    courier.send(_PEER, source, manifest, 0.0)
    need = Need(transfer_id=manifest.transfer_id, missing=((0, 1),), credit=1)
    courier.handle(_PEER, Lane.ANSWER, encode(need), 0.0)
    source.unlink()
    event = courier.next_chunk()
    assert isinstance(event, Rejected)
    assert event.reason.startswith("source:")


def test_a_newer_blob_replaces_the_peers_older_one_on_disk(courier, tmp_path):
    """A peer that offers one blob after the other never fills the disk."""
    for round_id in range(1, 20):
        courier.expect(_PEER, _manifest(_blob(5000), round_id=round_id), float(round_id))
    assert len(list((tmp_path / _PEER).iterdir())) == 2


def test_an_empty_blob_has_no_manifest():
    with pytest.raises(InputError, match="expected bytes, got none"):
        _manifest(b"")
