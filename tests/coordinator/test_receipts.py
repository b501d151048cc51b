"""The last announcement has the receipts that devices may not have heard."""

from __future__ import annotations

from fake_endpoint import CONNECTED

from protofleet.coordinator.devices.receipts import Receipts
from protofleet.federation.settings import RoundSettings
from protofleet.wire.messages import MOST_RECEIPTS, Announcement, decode, encode


def _ended(fed, *names):
    """Whose receipts the last announcement has, of these."""
    last = fed.endpoint.published[-1]
    assert last.phase == "finished"
    sent = {name: fed.offered(fed.update(name))[1].transfer_id for name in names}
    return [name for name in names if last.has_receipt(sent[name])], len(last.receipts)


def test_only_who_has_not_said_that_it_knows_is_told_at_the_end(open_federation):
    """``b`` beats while it still sends, and is heard no more; ``c``'s update never came."""
    fed = open_federation(minimum=3, round=RoundSettings(quorum=2, deadline_s=30.0))
    fed.play(
        CONNECTED,
        [fed.online(name) for name in "abc"],
        fed.delivers("a"),
        fed.delivers("b"),
        fed.beat("a"),
        fed.beat("b", phase="send"),
        fed.beat("c", round_id=0),
        fed.after(31.0),
        fed.after(5.0),
    )
    assert [one.receipts for one in fed.endpoint.published[:-1]] == [()] * 2
    assert _ended(fed, "a", "b", "c") == (["b"], 1)


def test_a_coordinator_that_starts_behind_the_end_tells_everybody(open_federation):
    fed = open_federation()
    steps = [fed.online("a"), fed.online("b"), fed.delivers("a"), fed.delivers("b")]
    fed.play(CONNECTED, *steps, fed.beat("a"), fed.beat("b"), fed.after(5.0))
    assert _ended(fed, "a", "b") == ([], 0)
    fed.play(CONNECTED, fed.after(5.0))
    assert _ended(fed, "a", "b") == (["a", "b"], 2)


class _Many:
    """A ledger of more devices than a packet has room for."""

    def last_accepted(self):
        return [(f"pi-{n}", 9, f"{n:032x}") for n in range(5000, 0, -1)]


def test_receipts_fit_half_of_a_packet_and_the_record_its_limit():
    receipts = Receipts(_Many())
    assert len(receipts.unheard(64_976)) == MOST_RECEIPTS
    assert len(receipts.unheard(256)) == 8
    told = Announcement(
        federation="lab",
        boot_id="c1",
        phase="finished",
        round_id=9,
        rounds=9,
        strategy="fedavg",
        bundle="cd" * 32,
        layout_hash="ef" * 32,
        receipts=receipts.unheard(64_976),
    )
    data = encode(told)
    assert len(data) < 64_976 // 2
    assert decode(data, Announcement).has_receipt(f"{5000:032x}")
