"""One blob for many devices: all have it, few chunks are sent, and nothing depends on it."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from protofleet.errors import RefusedError
from protofleet.wire.messages import Need, Receipt, TransferOffer, decode, encode
from protofleet.wire.transfers.carousel import (
    AGAIN_FROM,
    GATHER_MOST_S,
    GATHER_S,
    MOST_CHUNKS,
    MOST_TURNS,
    SPREAD_MAX_S,
    Carousels,
    shared_version,
)
from protofleet.wire.transfers.chunks import Chunk, ChunkCipher, pack
from protofleet.wire.transfers.inbound import LISTEN_S
from protofleet.wire.transfers.receiver import Receiver
from protofleet.wire.transfers.sender import WINDOW_MAX, Sender
from protofleet.wire.transfers.transfer import Lane, Received, Send, describe

_STEP = 256
_BLOB = random.Random(0).randbytes(10 * _STEP + 7)
_COUNT = 11
_KEY = "ab" * 32


def _offer(name: str, blob: bytes = _BLOB, key: str = "") -> TransferOffer:
    offer = describe(blob, kind="payload", device_id=name, round_id=1, chunk_bytes=_STEP)
    return replace(offer, key=key)


@dataclass
class _Fleet:
    """A coordinator and devices; what it sends to all arrives at those that hear it, at once."""

    folder: Path
    key: str = ""
    blob: bytes = _BLOB
    now: float = 0.0
    shared: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    done: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.devices: dict[str, Receiver] = {}
        self.deaf: set[str] = set()
        self.told: list[str] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """A coordinator that knows of nothing."""
        self.sender = Sender(random.Random(0), content_key=lambda _sha256, _step: self.key)
        self.carousels = Carousels(
            lambda _sha256, _step: self.key,
            offering=lambda: self.sender.offering,
            let_ask=self.let_ask,
        )

    def let_ask(self, key: str, now: float) -> None:
        """A device is offered the blob once more, without a version."""
        (name,) = (one for one in self.devices if self.offer_of(one).transfer_id == key)
        self.told.append(name)
        self.sender.let_ask(key, now)
        self.carry(name, self.devices[name].expect(name, self.offer_of(name), now))

    def offer_of(self, name: str) -> TransferOffer:
        return _offer(name, self.blob, self.key)

    def offer(self, name: str, *, listens: bool = True) -> None:
        """A device gets its task, and answers; one that was here before goes on."""
        offer = self.offer_of(name)
        version = self.carousels.add(name, self.blob, offer)
        self.sender.send(name, self.blob, offer, self.now)
        self.sender.tick(self.now)
        if name not in self.devices:
            self.devices[name] = Receiver(self.folder / name, sealed=bool(self.key))
        known = version if listens else ""
        self.carry(name, self.devices[name].expect(name, offer, self.now, shared=known))

    def offer_again(self, *names: str) -> None:
        """Devices get the offers that follow a new link of the coordinator."""
        for name in names:
            offer = self.offer_of(name)
            version = shared_version(offer.sha256, offer.chunk_bytes)
            actions = self.devices[name].expect(name, offer, self.now, shared=version)
            self.carry(name, actions)

    def carry(self, name: str, actions: list) -> None:
        """Take a device's answers to the coordinator."""
        for one in actions:
            if isinstance(one, Received):
                self.done[name] = one.path.read_bytes()
                key = one.offer.transfer_id
                self.carry(name, self.devices[name].accept(key, self.now))
            else:
                self.carousels.answer(name, one.payload, self.now)
                self.sender.answer(name, one.payload, self.now)

    def turn(self, chunks: int = 10_000, lost: tuple[int, ...] = ()) -> None:
        """Send to all until the carousel stands still, or so many chunks."""
        self.carousels.tick(self.now)
        for place in range(chunks):
            packet = self.carousels.next_chunk()
            if packet is None:
                return
            assert packet.lane is Lane.SHARED
            self.shared += 1
            hearing = set() if place in lost else set(self.devices) - self.deaf - set(self.done)
            for name in sorted(hearing):
                self.carry(name, self.devices[name].shared_chunk(packet.payload, self.now))

    def wait(self, seconds: float) -> None:
        """Let time pass; whoever is silent too long asks, and is answered."""
        self.now += seconds
        for name, device in self.devices.items():
            self.carry(name, device.tick(self.now))
        while (packet := self.sender.next_chunk()) is not None:
            name = packet.device_id
            self.asked[name] = self.asked.get(name, 0) + 1
            self.carry(name, self.devices[name].chunk(name, packet.payload, self.now))


@pytest.fixture(params=["", _KEY], ids=["plain", "sealed"])
def fleet(request, tmp_path):
    return _Fleet(tmp_path, request.param)


def test_each_chunk_goes_out_once_for_all_who_listen(fleet):
    for name in "abcde":
        fleet.offer(name)
    fleet.turn()
    assert fleet.shared == _COUNT
    assert fleet.done == dict.fromkeys("abcde", _BLOB)
    assert not fleet.asked
    assert fleet.carousels.idle


def test_who_has_not_answered_is_waited_for_only_shortly(fleet):
    fleet.carousels.add("late", _BLOB, _offer("late"))
    fleet.offer("a")
    fleet.turn()
    assert (fleet.shared, fleet.carousels.due()) == (0, GATHER_S)
    fleet.now = GATHER_S
    fleet.turn()
    assert fleet.done == {"a": _BLOB}


def test_who_joins_late_gets_the_rest_and_asks_for_what_was_before(fleet):
    """Only that: what it is told to ask for does not go to all once more."""
    fleet.offer("a")
    fleet.turn(chunks=4)
    for name in "bc":
        fleet.offer(name)
    fleet.turn()
    assert (fleet.done, fleet.told) == ({"a": _BLOB}, [])
    fleet.turn()
    assert fleet.told == ["b", "c"]
    fleet.wait(0.0)
    assert fleet.done == dict.fromkeys("abc", _BLOB)
    assert (fleet.shared, fleet.asked) == (_COUNT, {"b": 4, "c": 4})


def test_many_who_join_late_get_what_was_before_in_another_turn(fleet):
    fleet.offer("a")
    fleet.turn(chunks=4)
    late = [f"late{number}" for number in range(AGAIN_FROM)]
    for name in late:
        fleet.offer(name)
    fleet.turn()
    assert fleet.done == {"a": _BLOB}
    fleet.turn()
    assert fleet.done == dict.fromkeys(["a", *late], _BLOB)
    assert (fleet.shared, fleet.asked) == (4 + _COUNT, {})


def test_no_turn_goes_to_more_who_do_not_need_it_than_to_others(fleet):
    """Those whose turn is still on its way hear the next one, too; so it is waited for them."""
    early = [f"early{number}" for number in range(AGAIN_FROM + 1)]
    late = [f"late{number}" for number in range(AGAIN_FROM)]
    for name in early:
        fleet.offer(name)
    fleet.turn(lost=(2,))  # of a turn that has left here, a chunk is still on its way
    for name in late:
        fleet.offer(name)
    fleet.now = GATHER_S
    fleet.turn()
    assert (fleet.shared, fleet.told) == (_COUNT, [])
    fleet.now = GATHER_MOST_S
    fleet.turn()
    assert (fleet.shared, fleet.told) == (_COUNT, late)
    for _ in range(4):
        fleet.wait(0.0)
    assert fleet.done == dict.fromkeys([*early, *late], _BLOB)
    assert fleet.asked == {**dict.fromkeys(early, 1), **dict.fromkeys(late, _COUNT)}


def test_many_who_are_late_get_a_turn_when_the_others_are_through(fleet):
    late = [f"late{number}" for number in range(AGAIN_FROM)]
    early = [f"early{number}" for number in range(AGAIN_FROM + 1)]
    for name in early:
        fleet.offer(name)
    fleet.turn(lost=(2,))
    for name in late:
        fleet.offer(name)
    for name in early:
        fleet.carry(name, [fleet.devices[name]._ask(_offer(name).transfer_id, fleet.now)])
    fleet.wait(GATHER_S)
    assert fleet.done == dict.fromkeys(early, _BLOB)
    fleet.turn()
    assert fleet.done == dict.fromkeys([*early, *late], _BLOB)
    assert (fleet.shared, fleet.asked) == (2 * _COUNT, dict.fromkeys(early, 1))


def test_an_answer_that_crosses_the_turn_costs_an_offer_and_no_chunk(fleet):
    """A repeated offer is answered before the turn arrives, and the answer comes behind it."""
    fleet.offer("a")
    offer = fleet.offer_of("a")
    version = shared_version(offer.sha256, _STEP)
    stale = fleet.devices["a"].expect("a", offer, 0.0, shared=version)
    fleet.carousels.tick(0.0)
    packets = [fleet.carousels.next_chunk() for _ in range(_COUNT)]
    for _ in range(3):
        fleet.carry("a", stale)
    for packet in packets:
        fleet.carry("a", fleet.devices["a"].shared_chunk(packet.payload, 0.0))
    fleet.turn()
    fleet.wait(LISTEN_S)
    assert fleet.done == {"a": _BLOB}
    assert (fleet.shared, fleet.asked) == (0, {})


def test_who_was_told_to_ask_is_told_once_and_named_no_version_again(fleet):
    fleet.offer("a")
    fleet.turn()
    fleet.deaf = {"b"}
    fleet.offer("b")
    need = Need(transfer_id=_offer("b").transfer_id, missing=(), credit=0, listening=True)
    for _ in range(3):
        fleet.turn()
        fleet.carousels.answer("b", encode(need), fleet.now)
    assert fleet.told == ["b"]
    assert fleet.carousels.add("b", _BLOB, _offer("b")) == ""
    assert fleet.carousels.add("c", _BLOB, _offer("c")) != ""


def test_no_turn_begins_while_offers_wait_or_answers_keep_coming(fleet):
    """Within a bound, which is later in a large fleet: who answered first soon asks by itself."""
    fleet.carousels.spread_s = 20.0
    for name in ("silent", "unheard"):
        fleet.carousels.add(name, _BLOB, _offer(name))
    fleet.sender.send("unheard", _BLOB, _offer("unheard"), 0.0)
    fleet.offer("a")  # offers both
    fleet.sender.send("silent", _BLOB, _offer("silent"), 0.0)  # waits to be offered
    fleet.now = 10.0
    fleet.turn()
    assert fleet.shared == 0
    fleet.sender.tick(fleet.now)
    for number in range(10):  # 2 s between answers are little behind the first 20
        fleet.offer(f"b{number}")
        fleet.turn()
        assert fleet.shared == 0
        fleet.now += 0.9
    fleet.offer("last")
    fleet.now = GATHER_MOST_S + 20.0
    fleet.turn()
    assert fleet.shared == _COUNT
    assert len(fleet.done) == 12


def test_who_lost_its_connection_in_a_turn_asks_for_what_it_missed(fleet):
    """It listens again, says what has come, and is sent nothing else."""
    for name in "abc":
        fleet.offer(name)
    fleet.deaf = {"a"}
    fleet.turn(chunks=3)
    fleet.deaf = {"a", "b"}
    fleet.turn()
    assert fleet.done == {"c": _BLOB}
    fleet.deaf = set()
    for name in "ab":
        fleet.carry(name, fleet.devices[name].reconnected(fleet.now))
    fleet.turn()
    for _ in range(4):
        fleet.wait(0.0)
    assert fleet.done == dict.fromkeys("abc", _BLOB)
    assert (fleet.shared, fleet.asked) == (_COUNT, {"a": _COUNT, "b": _COUNT - 3})


def test_what_a_new_link_has_lost_is_sent_again_and_nothing_else(fleet):
    """A coordinator's window was on its way: no device is sent what it has."""
    for name in "ab":
        fleet.offer(name)
    fleet.turn(chunks=8, lost=(5, 6, 7))
    fleet.carousels.reconnected(fleet.now)
    fleet.offer_again("a", "b")
    fleet.turn()
    assert fleet.done == dict.fromkeys("ab", _BLOB)
    assert (fleet.shared, fleet.asked) == (_COUNT + 3, {})


def test_a_new_link_has_lost_nothing_of_the_one_before_it(fleet):
    """What devices said behind that of it holds."""
    for name in "ab":
        fleet.offer(name)
    fleet.deaf = {"a"}
    fleet.turn(lost=(_COUNT - 1,))
    fleet.carousels.reconnected(fleet.now)
    fleet.offer_again("b")
    fleet.carousels.reconnected(fleet.now)
    fleet.offer_again("a")
    fleet.now = GATHER_S
    fleet.turn()
    fleet.turn()
    fleet.wait(0.0)
    assert fleet.done == dict.fromkeys("ab", _BLOB)
    assert (fleet.shared, fleet.asked) == (_COUNT + 1, {"a": _COUNT})


@given(cuts=st.lists(st.integers(0, 3 * WINDOW_MAX), max_size=4), rng=st.randoms())
@settings(max_examples=40, deadline=None)
def test_a_link_that_breaks_costs_a_window_whoever_was_deaf(cuts, rng):
    """Of chunks that go to all, for each new connection of the coordinator."""
    blob = random.Random(1).randbytes(3 * WINDOW_MAX * _STEP - 9)
    with tempfile.TemporaryDirectory() as folder:
        fleet = _Fleet(Path(folder), blob=blob)
        for name in "abc":
            fleet.offer(name)
        for chunks in cuts:
            fleet.deaf = set(rng.sample("abc", rng.randrange(3)))
            on_link = range(chunks - rng.randrange(WINDOW_MAX + 1), chunks)
            fleet.turn(chunks, lost=tuple(on_link))
            fleet.deaf = set()
            fleet.carousels.reconnected(fleet.now)
            fleet.offer_again(*(set("abc") - fleet.done.keys()))
        fleet.now += GATHER_MOST_S
        fleet.turn()
        for _ in range(60):
            fleet.wait(1.0)
            fleet.turn()
    assert fleet.done == dict.fromkeys("abc", blob)
    assert fleet.shared <= 3 * WINDOW_MAX + WINDOW_MAX * len(cuts)


def test_a_new_coordinator_goes_on_where_listeners_say_that_they_are(fleet):
    """What one of them has went to all before: who lacks it asks, and a turn brings the rest."""
    for name in "abc":
        fleet.offer(name)
    fleet.deaf = {"c"}
    fleet.turn(chunks=8)
    fleet.deaf = set()
    fleet.begin_anew()
    fleet.shared = 0
    for name in "abc":
        fleet.carousels.add(name, _BLOB, fleet.offer_of(name))  # all are known before one answers
    for name in "abc":
        fleet.offer(name)
    fleet.turn()
    fleet.turn()
    for _ in range(4):
        fleet.wait(0.0)
    assert fleet.done == dict.fromkeys("abc", _BLOB)
    assert (fleet.shared, fleet.asked) == (_COUNT - 8, {"c": 8})


def test_what_somebody_has_all_of_is_not_sent_to_all_for_a_few_others(fleet):
    """It has it from an earlier process, whose turn it was."""
    fleet.carousels.add("a", _BLOB, _offer("a"))
    receipt = Receipt(transfer_id=_offer("a").transfer_id, status="done")
    fleet.offer("b")
    fleet.carousels.answer("a", encode(receipt), 0.0)
    fleet.now = GATHER_S
    fleet.turn()
    for _ in range(4):
        fleet.wait(0.0)
    assert fleet.done == {"b": _BLOB}
    assert (fleet.shared, fleet.told) == (0, ["b"])


def test_who_waits_for_a_turn_is_patient_with_a_large_fleet(tmp_path):
    for spread_s, patience_s in ((0.5, LISTEN_S + 0.5), (600.0, LISTEN_S + SPREAD_MAX_S)):
        receiver = Receiver(tmp_path / str(spread_s))
        receiver.spread_s = spread_s
        offer = _offer("a")
        version = shared_version(offer.sha256, offer.chunk_bytes)
        receiver.expect("a", offer, 100.0, shared=version)
        assert receiver.due() == pytest.approx(100.0 + patience_s)


def test_nothing_is_gathered_for_those_who_ask_by_themselves(fleet):
    """The next who listens is waited with as if it were the first."""
    fleet.carousels.add("silent", _BLOB, _offer("silent"))
    fleet.offer("a")
    fleet.deaf = {"a"}
    fleet.now = 0.1
    fleet.carry("a", [fleet.devices["a"]._ask(_offer("a").transfer_id, fleet.now)])
    assert fleet.carousels.due() is None
    fleet.now = GATHER_MOST_S
    fleet.offer("b")
    fleet.turn()
    assert fleet.shared == 0
    assert fleet.carousels.due() == GATHER_MOST_S + GATHER_S


def test_chunks_that_there_are_not_are_refused(fleet):
    fleet.offer("a")
    missing = ((0, _COUNT + 1),)
    need = Need(transfer_id=_offer("a").transfer_id, missing=missing, credit=0, listening=True)
    with pytest.raises(RefusedError) as caught:
        fleet.carousels.answer("a", encode(need), 0.0)
    assert caught.value.rule == "need-range"


def test_what_is_lost_is_asked_for(fleet):
    for name in "ab":
        fleet.offer(name)
    fleet.turn(lost=(2, 7))
    assert not fleet.done
    fleet.wait(LISTEN_S)
    assert fleet.done == {"a": _BLOB, "b": _BLOB}
    assert fleet.asked == {"a": 2, "b": 2}


def test_who_does_not_know_of_it_is_sent_everything_beside_those_who_listen(fleet):
    """Pages in browsers do not."""
    fleet.deaf = {"page"}
    fleet.offer("page", listens=False)
    for name in "ab":
        fleet.offer(name)
    fleet.turn()
    for _ in range(4):
        fleet.wait(0.1)
    assert fleet.done == dict.fromkeys(("a", "b", "page"), _BLOB)
    assert (fleet.shared, fleet.asked) == (_COUNT, {"page": _COUNT})


def test_who_hears_nothing_gets_everything_by_asking(fleet):
    fleet.deaf = {"a"}
    fleet.offer("a")
    fleet.turn()
    fleet.wait(LISTEN_S)
    for _ in range(4):
        fleet.wait(0.1)
    assert fleet.done == {"a": _BLOB}
    assert fleet.asked == {"a": _COUNT}


def test_a_forged_chunk_costs_one_fetch_and_no_bit(tmp_path):
    """Where a broker lets anybody speak to all and nothing is sealed."""
    fleet = _Fleet(tmp_path)
    fleet.offer("a")
    version = shared_version(_offer("a").sha256, _STEP)
    forged = pack(Chunk(transfer_id=version, index=0, last=False, data=b"x" * _STEP))
    fleet.carry("a", fleet.devices["a"].shared_chunk(forged, 0.0))
    fleet.turn()
    fleet.carry("a", fleet.devices["a"].shared_chunk(forged, 0.0))
    for _ in range(6):
        fleet.wait(0.1)
    assert fleet.done == {"a": _BLOB}
    assert fleet.asked == {"a": _COUNT}


def test_a_chunk_sealed_for_one_device_or_not_at_all_is_refused(tmp_path):
    fleet = _Fleet(tmp_path, _KEY)
    fleet.offer("a")
    version = shared_version(_offer("a").sha256, _STEP)
    plain = Chunk(transfer_id=version, index=0, last=False, data=_BLOB[:_STEP])
    wrong = ChunkCipher(_KEY, _offer("a").transfer_id).seal(plain)
    for chunk in (plain, wrong):
        with pytest.raises(RefusedError) as caught:
            fleet.devices["a"].shared_chunk(pack(chunk), 0.0)
        assert caught.value.rule == "chunk-seal"


def test_a_version_of_another_blob_is_refused(tmp_path):
    receiver = Receiver(tmp_path)
    (answer,) = receiver.expect("a", _offer("a"), 0.0, shared=shared_version("cd" * 32, _STEP))
    receipt = decode(answer.payload, Receipt)
    assert (receipt.status, receipt.rule) == ("reject", "shared")


def test_nobody_turns_it_for_ever_and_nobody_turns_anothers(fleet):
    names = [f"pi-{number}" for number in range(AGAIN_FROM)]
    fleet.deaf = set(names)
    for name in names:
        fleet.offer(name)
    fleet.turn()
    for _ in range(50):
        for name in names:
            need = Need(transfer_id=_offer(name).transfer_id, missing=(), credit=0, listening=True)
            fleet.carousels.answer(name, encode(need), fleet.now)
            fleet.carousels.answer("c", encode(need), fleet.now)
        fleet.turn()
    assert fleet.shared == MOST_TURNS * _COUNT


def test_a_new_link_ends_the_turn_and_a_long_blob_has_none(fleet):
    fleet.offer("a")
    fleet.turn(chunks=3)
    fleet.carousels.reconnected(fleet.now)
    assert fleet.carousels.next_chunk() is None
    long = bytes(MOST_CHUNKS * _STEP + 1)
    assert fleet.carousels.add("b", long, _offer("b", long)) == ""


def test_a_file_that_is_gone_ends_its_carousel_alone(tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(_BLOB)
    carousels = Carousels()
    offer = _offer("a")
    carousels.add("a", path, offer)
    need = Need(transfer_id=offer.transfer_id, missing=(), credit=0, listening=True)
    carousels.answer("a", encode(need), 0.0)
    carousels.tick(0.0)
    assert isinstance(carousels.next_chunk(), Send)
    path.unlink()
    assert carousels.next_chunk() is None
    assert carousels.idle


def test_a_file_that_is_gone_stops_no_other_carousel(tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(_BLOB[::-1])
    carousels = Carousels()
    gone, other = _offer("a", _BLOB[::-1]), _offer("b")
    for name, source, offer in (("a", path, gone), ("b", _BLOB, other)):
        carousels.add(name, source, offer)
        need = Need(transfer_id=offer.transfer_id, missing=(), credit=0, listening=True)
        carousels.answer(name, encode(need), 0.0)
    carousels.tick(0.0)
    path.unlink()
    assert carousels.next_chunk().device_id == shared_version(other.sha256, _STEP)


def test_a_carousel_ends_with_the_transfer_that_replaces_its_last():
    carousels = Carousels()
    carousels.add("a", _BLOB, _offer("a"))
    newer = describe(_BLOB[1:], kind="payload", device_id="a", round_id=2, chunk_bytes=_STEP)
    carousels.add("a", _BLOB[1:], newer)
    other_grid = replace(newer, chunk_bytes=2 * _STEP)
    carousels.add("a", _BLOB[1:], other_grid)
    carousels.forget(newer.transfer_id)
    assert carousels.idle


def test_a_grid_that_fits_no_longer_is_not_sent(fleet):
    fleet.offer("a")
    fleet.carousels.reconnected(0.0, _STEP - 1)
    assert fleet.carousels.idle


def test_after_a_new_link_all_listen_again_and_soon_ask(fleet):
    for name in "ab":
        fleet.offer(name)
    for _ in range(MOST_TURNS - 1):
        fleet.turn(chunks=1)
        fleet.carousels.reconnected(fleet.now)
        for name in "ab":
            fleet.carry(name, fleet.devices[name].reconnected(fleet.now))
    fleet.carry("b", fleet.devices["b"].reconnected(fleet.now))
    fleet.wait(0.0)
    assert fleet.asked.keys() == {"b"}
    fleet.turn()
    assert fleet.done == {"a": _BLOB, "b": _BLOB}
