"""Upload slots: members that are slow, silent or many do not keep the others out."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from protofleet.wire.messages import Need, Receipt, decode
from protofleet.wire.transfers.chunks import Chunk, pack
from protofleet.wire.transfers.inbound import FIRST_CHUNK_S, TURN_S
from protofleet.wire.transfers.receiver import Receiver
from protofleet.wire.transfers.transfer import Limits, Received, Send, describe

_STEP = 256
_BLOB = random.Random(0).randbytes(100 * _STEP)


def _offer(name, round_id=1, blob=_BLOB):
    return describe(blob, kind="update", device_id=name, round_id=round_id, chunk_bytes=_STEP)


class _Uploads:
    """Devices that send ``pace`` asked-for chunks a second; the links lose nothing.

    Attributes:
        done: when each device's blob was complete.
    """

    def __init__(self, folder, slots, paces):
        self.receiver = Receiver(folder, Limits(concurrent=slots))
        self.paces, self.now, self.done = paces, 0.0, {}
        self._wanted = {name: {} for name in paces}
        self._owed = dict.fromkeys(paces, 0.0)
        for name in paces:
            self._take(self.receiver.expect(name, _offer(name), 0.0))

    def run(self, until, longest=3600.0):
        while not until(self):
            self.now += 1.0
            self._take(self.receiver.tick(self.now))
            for name in self.paces.keys() - self.done.keys():
                self._send(name)
                if self.now % 15 == 0:
                    self._take(self.receiver.expect(name, _offer(name), self.now))
            assert self.now < longest, self.done
        return self

    def _send(self, name):
        self._owed[name] = min(self._owed[name] + self.paces[name], 16.0)
        wanted = self._wanted[name]
        while wanted and self._owed[name] >= 1.0 and name not in self.done:
            self._owed[name] -= 1.0
            index = next(iter(wanted))
            del wanted[index]
            self._take(self.receiver.chunk(name, _packet(name, index), self.now))

    def _take(self, actions):
        for action in actions:
            if isinstance(action, Received):
                self.done[action.device_id] = self.now
                accepted = self.receiver.accept(action.offer.transfer_id, self.now)
                self._take(accepted)
            elif isinstance(action, Send):
                answer = decode(action.payload, Need | Receipt)
                if isinstance(answer, Need):
                    wanted = self._wanted[action.device_id]
                    wanted |= dict.fromkeys(i for a, b in answer.missing for i in range(a, b))


def _packet(name, index):
    data = _BLOB[index * _STEP : (index + 1) * _STEP]
    last = index == len(_BLOB) // _STEP - 1
    chunk = Chunk(transfer_id=_offer(name).transfer_id, index=index, last=last, data=data)
    return pack(chunk)


@pytest.mark.parametrize("pace", [0.0, 0.1])
def test_slow_and_silent_members_hold_no_slot_for_longer_than_a_turn(tmp_path, pace):
    """32 of them kept an honest one out for 38 minutes with 20 MB each, and could go on."""
    paces = {f"slow-{i}": pace for i in range(32)} | {"honest": 20.0}
    uploads = _Uploads(tmp_path, 32, paces).run(lambda one: "honest" in one.done)
    assert uploads.done["honest"] <= TURN_S + 10


def test_offers_without_a_blob_cost_others_one_short_turn_each_and_no_more(tmp_path):
    """A thousand of them kept honest devices out for a quarter of an hour in every round."""
    paces = {f"silent-{i}": 0.0 for i in range(1000)} | {"honest": 20.0}
    uploads = _Uploads(tmp_path, 32, paces).run(lambda one: "honest" in one.done)
    assert uploads.done["honest"] <= 1000 / 32 * (FIRST_CHUNK_S + 2)
    receiver, again = uploads.receiver, []
    for round_id in (2, 3):
        for name in paces:
            again = receiver.expect(name, _offer(name, round_id), uploads.now)
    uploads.now += FIRST_CHUNK_S
    granted = [*again, *receiver.tick(uploads.now)]
    assert any(
        one.device_id == "honest" and decode(one.payload, Need | Receipt).credit for one in granted
    )


def test_honest_devices_on_bad_links_finish_though_they_lose_their_turns(tmp_path):
    """What they sent stays, and what was in flight lands: nothing is sent twice for long."""
    paces = {f"slow-{i}": 0.2 for i in range(4)}
    uploads = _Uploads(tmp_path, 2, paces).run(lambda one: len(one.done) == 4, longest=7200.0)
    # Two at a time with 100 chunks at 0.2 a second: 1000 s without any loss.
    assert max(uploads.done.values()) < 2000


def test_whoever_offers_one_blob_after_the_other_waits_behind_the_others(tmp_path):
    receiver = Receiver(tmp_path, Limits(concurrent=1))
    receiver.expect("hopper", _offer("hopper"), 0.0)
    receiver.expect("honest", _offer("honest"), 0.1)
    actions = receiver.expect("hopper", _offer("hopper", 2), 0.2)
    granted = {one.device_id: decode(one.payload, Need | Receipt).credit for one in actions}
    assert granted["hopper"] == 0
    assert granted["honest"] > 0


def test_nothing_is_kept_of_offers_that_were_never_wanted(tmp_path):
    receiver = Receiver(tmp_path, Limits(max_blob_bytes=10**6))
    for i in range(1000):
        name = f"invented-{i}"
        receiver.reject(name, _offer(name).transfer_id, "cohort", "x" * 500, 0.0)
        huge = describe(b"x", kind="update", device_id=name, round_id=1)
        (answer,) = receiver.expect(name, _enlarged(huge), 0.0)
        assert decode(answer.payload, Receipt).rule == "blob-size"
    kept = (receiver._settled, receiver._waiting, receiver._of_device, receiver._active)
    assert [len(one) for one in kept] == [0, 0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def _enlarged(offer):

    return replace(offer, total_bytes=512 * 2**20)
