"""Leases of one federation: several coordinators, one broker in memory, time given."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofleet.coordinator import events
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.process.lease import Lease, LeaseClaim, LeaseTerm
from protofleet.errors import UnavailableError
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import MOST_EPOCH, LeaseRecord
from protofleet.wire.mqtt.link import Connected, Disconnected

_LEASE_S = 30.0


@dataclass
class Broker:
    """What is retained, and who is connected; messages arrive in order, when they are fetched."""

    now: float = 1000.0
    retained: LeaseRecord | None = None
    queues: dict[str, list] = field(default_factory=dict)
    passed: list[LeaseRecord] = field(default_factory=list)
    deaf: bool = False

    def publish(self, sender, record):
        if sender not in self.queues:
            return False
        self.passed.append(record)
        if record.step != "claim":
            self.retained = record
        for queue in () if self.deaf else self.queues.values():
            queue.append(PeerMessage("", record, retained=False))
        return True

    def connect(self, name):
        queue = [Connected("5")]
        if self.retained is not None:
            queue.append(PeerMessage("", self.retained, retained=True))
        self.queues[name] = queue


class Process:
    """A coordinator's process as far as its lease goes.

    Attributes:
        ended: why it has; None: it runs.
        did: what it was allowed to act on.
    """

    def __init__(self, broker, name, *, epoch=0, former="", **changes):
        self.broker, self.name, self.ended, self.did, self.told = broker, name, None, [], []
        self.noted = []
        claim = LeaseClaim(federation="lab", boot_id=name, lease_s=_LEASE_S, **changes)
        tenure = LeaseTerm(epoch=epoch, boot_id=former, note=self.noted.append)
        self.lease = Lease(
            claim,
            tenure,
            lambda record: broker.publish(name, record),
            self.told.append,
            lambda: broker.now,
        )

    def connect(self):
        if self.name in self.broker.queues:
            self.cut()
        self.broker.connect(self.name)
        return self.turn()

    def cut(self):
        """The link is lost; nobody has told the broker's others."""
        self.broker.queues.pop(self.name, None)
        self._take(Disconnected("cut"))

    def turn(self):
        """Everything that has arrived, and the clock."""
        queue = self.broker.queues.get(self.name, [])
        while queue and self.ended is None:
            self._take(queue.pop(0))
        self._take(None)
        return self

    def _take(self, event):
        if self.ended is not None:
            return
        try:
            self.did += self.lease.pass_on(event)
        except UnavailableError as error:
            self.ended = str(error)
            self.broker.queues.pop(self.name, None)

    @property
    def acts(self):
        return self.ended is None and self.lease.held


def _settle(broker, *processes, seconds=0.0, step=1.0):
    for advance in (*[step] * int(seconds / step), 0.0, 0.0, 0.0):
        broker.now += advance
        for process in processes:
            process.turn()


@pytest.fixture
def broker():
    return Broker()


def test_the_first_has_the_lease_in_a_round_trip_and_notes_its_epoch_before(broker):
    first = Process(broker, "a")
    assert first.lease.idle
    first.connect().turn()
    assert first.acts
    assert first.noted == [first.lease.epoch]
    assert first.did == [Connected("5")]
    assert (broker.retained.step, broker.retained.epoch) == ("held", first.lease.epoch)
    first.lease.release()
    assert broker.retained.step == "released"


def test_a_second_is_refused_at_once_and_the_first_goes_on(broker):
    first, second = Process(broker, "a"), Process(broker, "b")
    first.connect()
    _settle(broker, first)
    second.connect()
    _settle(broker, first, second)
    assert "another coordinator serves it" in second.ended
    assert second.did == []
    assert second.noted == []
    assert first.acts


def test_a_second_takes_over_when_nothing_is_heard_of_the_first(broker):
    first, second = Process(broker, "a"), Process(broker, "b")
    first.connect()
    _settle(broker, first)
    first.cut()  # killed: no word of it any more
    second.connect()
    _settle(broker, second, seconds=_LEASE_S - 2)
    assert not second.acts
    assert [(one.alive, one.silent_s) for one in second.told] == [(False, _LEASE_S)]
    _settle(broker, second, seconds=4)
    assert second.acts
    assert second.lease.epoch > first.lease.epoch
    first.connect()
    _settle(broker, first, second)
    assert "has taken over" in first.ended
    assert [type(one) for one in first.told] == [events.LeaseLost]
    assert second.acts


def test_a_process_that_was_stopped_does_not_act_before_it_knows(broker):
    """It was stopped with its link, and what the broker has sent since waits in its socket."""
    first, second = Process(broker, "a"), Process(broker, "b")
    first.connect()
    _settle(broker, first)
    broker.now += 1000
    broker.queues["a"].append("an update")
    second.connect()
    _settle(broker, second, seconds=_LEASE_S + 2)
    assert second.acts
    before = list(first.did)
    _settle(broker, first, second)
    assert "has taken over" in first.ended
    assert first.did == before
    assert second.acts


def test_a_takeover_is_by_wish_and_ends_the_first(broker):
    first, second = Process(broker, "a"), Process(broker, "b", take_over=True)
    first.connect()
    _settle(broker, first)
    second.connect()
    _settle(broker, second, first)
    assert "has taken over" in first.ended
    assert second.acts


def test_who_waits_follows_when_the_first_is_done_and_no_earlier(broker):
    first, second = Process(broker, "a"), Process(broker, "b", wait=True)
    first.connect()
    _settle(broker, first)
    second.connect()
    _settle(broker, first, second, seconds=10 * _LEASE_S)
    assert (first.acts, second.acts) == (True, False)
    assert [one.alive for one in second.told] in ([True], [False])
    first.lease.release()
    _settle(broker, second)
    assert second.acts
    assert second.lease.epoch > first.lease.epoch


def test_a_restart_in_the_same_folder_waits_for_nobody(broker):
    first = Process(broker, "a").connect()
    _settle(broker, first)
    first.cut()
    again = Process(broker, "b", epoch=first.lease.epoch, former="a").connect()
    _settle(broker, again)
    assert again.acts
    assert again.lease.epoch > first.lease.epoch


def test_a_busy_holder_is_renewed_by_another_thread(broker):
    first, second = Process(broker, "a"), Process(broker, "b", wait=True)
    first.connect()
    _settle(broker, first)
    second.connect()
    for _ in range(100):  # its own thread aggregates
        broker.now += 1
        first.lease.keep()
        second.turn()
    assert not second.acts
    _settle(broker, first, second)
    assert first.acts


def test_without_its_own_claim_coming_back_a_coordinator_ends_with_the_remedy(broker):
    broker.deaf = True
    alone = Process(broker, "a").connect()
    _settle(broker, alone, seconds=50)
    assert (alone.acts, alone.ended) == (False, None)
    _settle(broker, alone, seconds=20)
    assert "fl/v2/+/all/#" in alone.ended


def test_records_of_the_time_before_neither_keep_out_nor_end_anybody(broker):
    """Whoever has recorded them may publish them again."""
    first = Process(broker, "a").connect()
    _settle(broker, first)
    recorded = list(broker.passed)
    first.lease.release()
    recorded += broker.passed[-1:]
    first.cut()
    second = Process(broker, "b").connect()
    _settle(broker, second)
    assert second.acts
    for record in recorded:
        broker.publish("b", record)
        _settle(broker, second)
        broker.now += 2
    assert second.acts
    _settle(broker, second, seconds=10)
    assert (broker.retained.boot_id, broker.retained.step) == ("b", "held")
    for record in recorded:
        third = Process(broker, "c", wait=True).connect()
        broker.publish("b", record)
        _settle(broker, second, third, seconds=3)
        assert (second.acts, third.acts) == (True, False)
        third.cut()


def test_a_record_of_another_federation_says_nothing(broker):
    first = Process(broker, "a").connect()
    _settle(broker, first)
    other = msgspec.structs.replace(broker.retained, federation="other", epoch=2**40, boot_id="z")
    broker.publish("a", other)
    _settle(broker, first)
    assert first.acts


def test_a_folder_knows_its_former_process_but_a_copy_of_it_does_not(tiny, tmp_path):
    run_dir = tiny.plan.config.run_dir
    with Ledger(run_dir, tiny.plan.identity) as ledger:
        tenure = ledger.run.tenure("first")
        assert (tenure.epoch, tenure.boot_id) == (0, "")
        tenure.note(7)
    with Ledger(run_dir, tiny.plan.identity) as ledger:
        tenure = ledger.run.tenure("second")
        assert (tenure.epoch, tenure.boot_id) == (7, "first")
    run_dir.rename(tmp_path / "before")
    run_dir.mkdir(mode=0o700)
    (run_dir / "ledger.sqlite").write_bytes((tmp_path / "before/ledger.sqlite").read_bytes())
    (run_dir / "ledger.sqlite").chmod(0o600)
    with Ledger(run_dir, tiny.plan.identity) as ledger:
        assert (ledger.run.tenure("third").epoch, ledger.run.tenure("third").boot_id) == (7, "")


_names = st.sampled_from("abc")
_acts = st.one_of(
    st.tuples(st.sampled_from(["connect", "cut", "turn", "turn", "keep", "release"]), _names),
    st.tuples(st.just("time"), st.floats(0.1, 45.0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_acts, max_size=80), st.sets(_names))
def test_of_any_number_of_coordinators_the_latest_epoch_alone_can_act(timed, hasty):
    """Whatever is cut, stopped and delayed: no two ever have the same epoch and both act."""
    broker = Broker()
    processes = {
        name: Process(broker, name, take_over=name in hasty, wait=name not in hasty)
        for name in "abc"
    }
    for act, what in timed:
        if act == "time":
            broker.now += what
            continue
        process = processes[what]
        if process.ended is not None:
            continue
        if act in ("keep", "release"):
            getattr(process.lease, act)()
        else:
            getattr(process, act)()
        # Who may act, and has heard all that was sent to it, has the highest epoch.
        epochs = [one.lease.epoch for one in processes.values() if one.lease.epoch]
        if act == "turn" and process.acts:
            assert process.lease.epoch == max(epochs)
    for process in processes.values():
        if process.ended is None:
            process.connect()
    _settle(broker, *processes.values(), seconds=2 * _LEASE_S)
    acting = [one for one in processes.values() if one.acts]
    assert len(acting) == 1 or all(one.ended for one in processes.values())


def _foreign(epoch):
    return LeaseRecord(
        federation="lab", boot_id="z", step="released", epoch=epoch, valid_s=1.0, nonce="n"
    )


def test_behind_the_last_epoch_nobody_begins_and_no_folder_is_spoiled(broker):
    """Without keys a stranger may retain it: what came after it no device could read."""
    broker.retained = _foreign(MOST_EPOCH)
    first = Process(broker, "a").connect()
    _settle(broker, first)
    assert "mosquitto_pub --retain --null-message --topic fl/v2/lab/all/lease" in first.ended
    assert (first.noted, first.did) == ([], [])
    broker.retained = None
    again = Process(broker, "a", epoch=5).connect()
    _settle(broker, again)
    assert again.acts
    broker.retained = _foreign(MOST_EPOCH - 1)
    last = Process(broker, "b").connect()
    _settle(broker, last)
    assert last.noted == [MOST_EPOCH]


def test_a_folder_that_had_the_last_epoch_says_that_it_is_used_up(broker):
    first = Process(broker, "a", epoch=MOST_EPOCH).connect()
    _settle(broker, first)
    assert "choose another run_dir" in first.ended


def test_who_was_cut_off_is_answered_each_second_whatever_it_repeats(broker):
    first = Process(broker, "a")
    assert not first.lease.outranked(1)
    first.connect()
    _settle(broker, first)
    answered = []
    for _ in range(40):
        answered.append(first.lease.outranked(first.lease.epoch - 1))
        broker.now += 0.25
    assert sum(answered) == 10
    assert not first.lease.outranked(first.lease.epoch)
    with pytest.raises(UnavailableError, match="taken over"):
        first.lease.outranked(first.lease.epoch + 1)


def test_a_holder_whose_renewals_are_lost_stops_before_another_may_begin(broker):
    """Records that come back late, or that somebody repeats, renew nothing."""
    first = Process(broker, "a").connect()
    _settle(broker, first)
    broker.deaf = True
    began = broker.now
    while broker.now < began + _LEASE_S * 2 / 3 - 1:
        _settle(broker, first, seconds=1)
        assert first.acts
        broker.queues["a"] += [PeerMessage("", one, retained=False) for one in broker.passed[:2]]
    _settle(broker, first, seconds=2)
    assert first.lease.idle
    assert broker.now < began + _LEASE_S


def test_claims_are_answered_once_a_second_however_many_come(broker):
    first = Process(broker, "a").connect()
    _settle(broker, first)
    before = len(broker.passed)
    claim = msgspec.structs.replace(_foreign(0), step="claim")
    for _ in range(40):
        broker.queues["a"].append(PeerMessage("", claim, retained=False))
        first.turn()
        broker.now += 0.05
    assert sum(one.answers == "n" for one in broker.passed[before:]) == 2


def test_of_two_with_one_epoch_the_higher_boot_id_stays():
    """Each began on its side of a broker that was divided."""
    sides = [Broker(), Broker()]
    first, second = Process(sides[0], "a", epoch=2**40), Process(sides[1], "b", epoch=2**40)
    for side, one in zip(sides, (first, second), strict=True):
        one.connect()
        _settle(side, one)
    assert first.lease.epoch == second.lease.epoch
    for mine, theirs in ((0, 1), (1, 0)):
        queue = sides[mine].queues["ab"[mine]]
        queue.append(PeerMessage("", sides[theirs].retained, retained=False))
    first.turn()
    second.turn()
    assert "has taken over" in first.ended
    assert second.acts
