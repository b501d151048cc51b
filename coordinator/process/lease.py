"""One coordinator for a federation on a broker, whatever folders others have.

::

    CLAIMING ── own claim came back, and nobody else holds the lease ──► HELD
       ▲    └── a holder answers: refused, or taken over ─────────────►   │
       └──── connected anew, or no renewal has come back for too long ────┘

Who holds the lease renews it as a retained record; whoever wants it publishes a claim, which comes
back behind what the broker retains, so the answer is known within a round trip. A holder answers
claims; one of which nothing was heard for ``valid_s`` is dead. A holder whose renewals do not come
back stops to act earlier than that, and claims anew before it goes on.

Each lease has an epoch, higher than of every lease before it. Devices take nothing of a lower one,
and a holder that hears of a higher one ends: it was cut off, and another has taken over.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from protofleet.coordinator import events
from protofleet.errors import UnavailableError
from protofleet.wire.endpoint import Event
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import MOST_EPOCH, LeaseRecord
from protofleet.wire.mqtt.link import Connected, Disconnected

_ANSWER_S = 1.0
"""At most one answer to claims in this time: anybody may repeat one."""
_ECHO_S = 60.0
"""For a coordinator's own claim to come back."""
_RENEWALS, _CLAIMS = 6, 15
"""In the time that a lease stands: how often it is renewed, and claimed by who wants it."""


_KEEP_S = 0.5
"""How often it is looked whether the thread that acts is late with a renewal."""
_Step = Literal["claim", "held", "released"]


def boot_clock() -> float:
    """Monotonic seconds that go on while the machine sleeps, where the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerm:
    """What a run folder remembers of leases.

    Attributes:
        epoch: of its last one; 0: it had none.
        boot_id: of the process that had it, if that has ended for certain; else empty.
        note: keeps an epoch, before it is used.
    """

    epoch: int
    boot_id: str
    note: Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClaim:
    """Who wants a lease.

    Attributes:
        federation: whose.
        boot_id: of this process.
        lease_s: how long others wait for an answer of this process.
        take_over: from a holder that answers, too.
        wait: until a holder that answers is gone.
    """

    federation: str
    boot_id: str
    lease_s: float
    take_over: bool = False
    wait: bool = False


class Lease:
    """This process's part in who coordinates; pure but for what it is given.

    Args:
        claim: who this is.
        tenure: of its run folder.
        publish: sends a record; False if the link is down.
        sink: told of others.
        clock: monotonic seconds.

    Attributes:
        epoch: of the lease; 0 before there is one.
        held: whether this process may act.
    """

    def __init__(
        self,
        claim: LeaseClaim,
        tenure: LeaseTerm,
        publish: Callable[[LeaseRecord], bool],
        sink: events.Sink,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._own, self._tenure = claim, tenure
        self._publish, self._sink, self._clock = publish, sink, clock
        self.epoch, self.held = 0, False
        self._seen_epoch = tenure.epoch
        self._other: LeaseRecord | None = None
        self._backlog: list[Event] = []
        self._connected = self._echoed = self._told = self._alive = False
        self._nonce = ""
        self._ending = threading.Lock()
        self._sent_at = self._silent_since = self._good_until = 0.0
        self._answer_at = self._heal_at = self._announce_at = self._next_at = 0.0

    @property
    def boot_id(self) -> str:
        """Of this process."""
        return self._own.boot_id

    def pass_on(self, event: Event | None) -> list[Event]:
        """The events that may be acted on now; others wait until the lease is held.

        Raises:
            UnavailableError: another coordinator has the lease, or takes it.
        """
        now = self._clock()
        if isinstance(event, PeerMessage) and isinstance(event.message, LeaseRecord):
            self._hear(event.message, now, retained=event.retained)
        elif isinstance(event, Disconnected) and (event.final or not self._backlog):
            self._connected = self.held = False
            return [event]
        elif event is not None:
            self._backlog.append(event)
            if isinstance(event, Disconnected):
                self._connected = False
            elif isinstance(event, Connected):
                self._connected = True
                self._begin(now)
        self._tick(now)
        return self._take_backlog() if self.held else []

    def keep(self) -> None:
        """Renew from another thread, while the one that acts is busy with something long."""
        with self._ending:
            if self.held and self._clock() >= self._next_at + self._own.lease_s / _RENEWALS:
                self._say("held", nonce=secrets.token_hex(16))

    @property
    def idle(self) -> bool:
        """Whether nothing may be done: it is not known whether another has taken over."""
        return not self.held and (self._connected or not self.epoch)

    def release(self) -> None:
        """This process ends and needs the lease no more."""
        with self._ending:  # what is retained last must not say that it is held
            if self.held:
                self._say("released")
            self.held = False

    def outranked(self, epoch: int) -> bool:
        """Another coordinator acts with a lease of this epoch.

        Returns:
            Whether to announce this one again, at most once a second: the other was cut off and
            does not know yet, and what the broker retains must be of this one.

        Raises:
            UnavailableError: its lease is later than ours.
        """
        if epoch > self.epoch > 0:
            raise self._lost(epoch)
        now = self._clock()
        if not self.held or epoch == self.epoch or now < self._announce_at:
            return False
        self._announce_at = now + _ANSWER_S
        return True

    def _begin(self, now: float) -> None:
        """LeaseClaim: before the first lease, after a reconnect, and when renewals are lost."""
        self.held = self._echoed = False
        self._other = None
        self._silent_since, self._nonce = now, secrets.token_hex(16)
        self._claim(now)

    def _claim(self, now: float) -> None:
        self._sent_at, self._next_at = now, now + self._own.lease_s / _CLAIMS
        self._say("claim")

    def _tick(self, now: float) -> None:
        if not self._connected:
            return
        if self.held and now >= self._good_until:
            self._begin(now)
        elif self.held and now >= self._next_at:
            self._renew(now)
        elif not self.held:
            self._pursue(now)

    def _pursue(self, now: float) -> None:
        if self._echoed and self._is_free(now):
            self._acquire(now)
        elif not self._echoed and now >= self._silent_since + _ECHO_S:
            raise UnavailableError(
                f"federation '{self._own.federation}': the broker does not pass on this "
                "coordinator's own lease; let its account read and write fl/v2/+/all/#"
            )
        elif now >= self._next_at:
            self._tell_other()
            self._claim(now)

    def _tell_other(self) -> None:
        other = self._other
        if other is not None and not self._told:
            self._told = True
            told = events.LeaseAwaited(epoch=other.epoch, alive=self._alive, silent_s=other.valid_s)
            self._sink(told)

    def _is_free(self, now: float) -> bool:
        other = self._other
        if other is None or other.boot_id == self._tenure.boot_id or self._own.take_over:
            return True
        return now >= self._silent_since + other.valid_s

    def _acquire(self, now: float) -> None:
        if not self.epoch:
            epoch = max(self._seen_epoch + 1, int(time.time()))
            if epoch > MOST_EPOCH:
                raise self._no_later()
            self._tenure.note(epoch)
            self.epoch = epoch
        self.held, self._told = True, False
        # The claim that came back is as good as a renewal.
        self._good_until = self._sent_at + self._stands_s
        self._renew(now)

    def _renew(self, now: float, answers: str = "") -> None:
        self._sent_at = now
        self._next_at = now + self._own.lease_s / _RENEWALS
        self._nonce = secrets.token_hex(16)
        self._say("held", answers)

    @property
    def _stands_s(self) -> float:
        """How long this process acts on a renewal: others wait longer."""
        return self._own.lease_s * 2 / 3

    def _hear(self, record: LeaseRecord, now: float, *, retained: bool) -> None:
        if record.federation != self._own.federation:
            return
        if record.boot_id == self._own.boot_id:
            self._hear_own(record)
        elif record.step == "claim":
            if self.held and now >= self._answer_at:
                self._answer_at = now + _ANSWER_S
                self._renew(now, record.nonce)
        elif self.epoch:
            self._compare(record, now)
        else:
            self._hear_other(record, now, retained=retained)

    def _hear_own(self, record: LeaseRecord) -> None:
        if record.nonce != self._nonce:
            return
        if record.step == "claim":
            self._echoed = True
        elif self.held:
            self._good_until = self._sent_at + self._stands_s

    def _compare(self, record: LeaseRecord, now: float) -> None:
        """Another process's lease, while this one has one or had one before it was cut off."""
        theirs, ours = (record.epoch, record.boot_id), (self.epoch, self._own.boot_id)
        if theirs > ours:
            raise self._lost(record.epoch)
        if self.held and now >= self._heal_at:
            self._heal_at = now + _ANSWER_S
            self._renew(now)

    def _hear_other(self, record: LeaseRecord, now: float, *, retained: bool) -> None:
        """Another process's lease, before this one has any."""
        if record.epoch < self._seen_epoch:
            return  # of the time before
        self._seen_epoch = record.epoch
        if record.step == "released":
            self._other = None
            return
        self._other = record
        answered = not retained
        if answered and not (self._own.take_over or self._own.wait):
            raise UnavailableError(
                f"federation '{self._own.federation}': another coordinator serves it on this "
                f"broker (epoch {record.epoch}); end that one, or start this one with --wait, to "
                "follow it, or --take-over, to replace it"
            )
        if answered:
            self._silent_since = now
        self._alive = answered

    def _no_later(self) -> UnavailableError:
        name, highest = self._own.federation, self._seen_epoch
        place = f"fl/v2/{name}/all/lease"
        if self._tenure.epoch == highest:
            remedy = "choose another run_dir"
        else:
            remedy = f"clear it (mosquitto_pub --retain --null-message --topic {place})"
        return UnavailableError(
            f"federation '{name}': the lease on '{place}' has epoch {highest}, behind which there "
            f"is none; no coordinator wrote it: {remedy}, and let no stranger write there"
        )

    def _lost(self, epoch: int) -> UnavailableError:
        self.held = False
        self._sink(events.LeaseLost(epoch=self.epoch, by_epoch=epoch))
        return UnavailableError(
            f"federation '{self._own.federation}': another coordinator has taken over (epoch "
            f"{epoch}, this one had {self.epoch}); this one must not go on beside it"
        )

    def _say(self, step: _Step, answers: str = "", *, nonce: str = "") -> None:
        self._publish(
            LeaseRecord(
                federation=self._own.federation,
                boot_id=self._own.boot_id,
                step=step,
                epoch=0 if step == "claim" else self.epoch,
                valid_s=self._own.lease_s,
                nonce=nonce or self._nonce,
                answers=answers,
                time_s=round(time.time(), 3),
            )
        )

    def _take_backlog(self) -> list[Event]:
        taken, self._backlog = self._backlog, []
        return taken


@contextmanager
def kept(lease: Lease) -> Iterator[None]:
    """Within the block the lease is renewed by a thread of its own where the caller is busy."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(_KEEP_S):
            lease.keep()

    thread = threading.Thread(target=keep, name="protofleet-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
