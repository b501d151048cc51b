"""When nothing comes: what a device waits for, since when, and what may be wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from protofleet.wire.messages import Announcement

FIRST_S = 10.0
"""A coordinator that runs has announced itself and sent its task long before."""
TRANSFER_S = 30.0
"""Most payloads and receipts have come long before."""
ANSWER_S = 2.0
"""For a broker's answer about other federations."""
LONGEST_S = 3600.0
_LOOK = (
    "look at the coordinator's lines, and at what the broker passes on: protofleet doctor --broker"
)
_ENROLL = "protofleet device enroll INVITATION"
_SHOWN = 5
_NEVER = float("inf")
_HOLDS = {
    "paused": "waits, its operator has paused the federation",
    "stopped": "waits, its operator has stopped the coordinator for now",
}


class AskingEndpoint(Protocol):
    """What is asked of ``wire.device_endpoint.DeviceEndpoint``."""

    @property
    def connected(self) -> bool:
        """Whether the link is up."""

    @property
    def in_force(self) -> bool:
        """Whether no coordinator has signed that this device's grant is over."""

    def ask_for_federations(self) -> bool:
        """Ask which federations are announced on the broker."""

    def take_federations(self) -> dict[str, Announcement]:
        """Those that were announced since, and no more."""


class WaitingLog:
    """Tells, at intervals that double from 10 s to an hour, what an idle device waits for.

    Args:
        federation: of the device.
        endpoint: asked for the broker's other federations where the own one is not running there.
        enrol: what to do where the federation has keys and this device none.
    """

    def __init__(self, federation: str, endpoint: AskingEndpoint, enrol: str = "") -> None:
        self._federation, self._endpoint, self._enrol = federation, endpoint, enrol
        self._announcement: Announcement | None = None
        self._retained = False
        self._mismatch = ""
        self._keys = self._asked = self._told_mismatch = False
        self.due = _NEVER

    def begin(self, now: float) -> None:
        """Nothing is to be done from now on (monotonic seconds), until a task comes."""
        self._since, self._since_clock = now, time.localtime()
        self._interval_s = FIRST_S
        self.due = now + FIRST_S

    def end(self) -> None:
        """A task has come."""
        self._take_federations()
        self.due = _NEVER

    def announced(self, announcement: Announcement, *, retained: bool, mismatch: str = "") -> None:
        """The federation's announcement; ``mismatch`` says why it is not this device's.

        The first mismatch is told at once where the device waits.
        """
        self._announcement, self._retained = announcement, retained
        self._mismatch = mismatch
        if mismatch and not self._told_mismatch and self.due < _NEVER:
            self._told_mismatch = True
            self.due = 0.0

    def has_keys(self) -> None:
        """The federation's announcement cannot be read, because this device is not enrolled.

        Told at once, but believed no longer than until one can be read: anybody may have sent it.
        """
        if not self._keys and self._announcement is None and self.due < _NEVER:
            self.due = 0.0
        self._keys = True

    def report(self, now: float) -> dict[str, Any] | None:
        """What to tell now that ``due`` is over; None if there is nothing to tell yet."""
        if not self._endpoint.connected:
            self.due = now + self._interval_s  # the lost link is told of by itself
            return None
        if not self._asked and not self._is_running() and self._endpoint.ask_for_federations():
            self._asked = True
            self.due = now + ANSWER_S
            return None
        others = self._take_federations()
        self._interval_s = min(2 * self._interval_s, LONGEST_S)
        self.due = now + self._interval_s
        return {
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z", self._since_clock),
            "waited_s": round(now - self._since, 1),
            "awaited": self._awaited(),
            "federations": {name: one.phase for name, one in _nearest(others).items()},
        }

    def _take_federations(self) -> dict[str, Announcement]:
        others = self._endpoint.take_federations() if self._asked else {}
        self._asked = False
        return others

    def _is_running(self) -> bool:
        known = self._announcement
        if known is None:
            return self._keys
        return known.phase != "finished" and not self._mismatch

    def _awaited(self) -> str:
        known, name = self._announcement, self._federation
        if known is None and self._keys:
            return (
                f"an enrolment: federation '{name}' has keys, and this device none; {self._enrol}"
            )
        if not self._endpoint.in_force:
            return (
                f"an enrolment: this device's grant in federation '{name}' is no longer in force; "
                f"ask for a new invitation, and: {_ENROLL}"
            )
        if known is None:
            return f"a coordinator of federation '{name}'; none has announced itself"
        if self._mismatch:
            return f"another coordinator: {self._mismatch}"
        if known.phase == "finished":
            return f"a new run of federation '{name}', which has finished"
        stands = f"round {known.round_id} of {known.rounds}"
        if known.hold in _HOLDS:
            doing = _HOLDS[known.hold]
        elif known.phase == "waiting":
            doing = "waits for devices"
        else:
            doing = "runs, this device has nothing to do in it now"
        kept = "; the broker remembers this, the coordinator itself may be down"
        return f"the next task: {stands} {doing}{kept if self._retained else ''}"


class TransferWait:
    """Tells, at intervals that double from 30 s to an hour, which transfer is not over yet."""

    def __init__(self) -> None:
        self._what = ""
        self.due = _NEVER

    def begin(self, what: str, now: float, count: int) -> None:
        """``what`` is awaited from ``now`` on (monotonic seconds), unless it was before.

        ``count``: bytes that the link has carried in its direction.
        """
        if what == self._what:
            return
        self._what, self._count = what, count
        self._since, self._since_clock = now, time.localtime()
        self._interval_s = TRANSFER_S
        self.due = now + TRANSFER_S

    def end(self) -> None:
        """It has come, or nobody waits for it."""
        self._what, self.due = "", _NEVER

    def report(self, now: float, count: int) -> dict[str, Any]:
        """What to tell now that ``due`` is over; figures as of ``WaitingLog.report``."""
        self._interval_s = min(2 * self._interval_s, LONGEST_S)
        self.due = now + self._interval_s
        passed = f"{count - self._count:,} bytes have passed this device's link since"
        return {
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z", self._since_clock),
            "waited_s": round(now - self._since, 1),
            "awaited": f"{self._what}; {passed}; if that stays so, {_LOOK}",
            "federations": {},
        }


def _nearest(others: Mapping[str, Announcement]) -> dict[str, Announcement]:
    """A few of them, those that run first."""
    ordered = sorted(others.items(), key=lambda pair: (pair[1].phase == "finished", pair[0]))
    return dict(ordered[:_SHOWN])
