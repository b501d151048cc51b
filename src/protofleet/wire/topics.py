"""Topics: where each message travels (``docs/protocol.md``, section Topics).

One ``Topics`` builds and reads every topic of a federation; nobody else joins strings.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from protofleet.errors import InputError

PREFIX = "fl/v2"
ANNOUNCEMENTS = f"{PREFIX}/+/all/ctl"
"""Of every federation on the broker; access lists need not allow it."""
COORDINATOR = "coordinator"
"""The coordinator's account at the broker."""
INVITED = "invite."
"""What accounts of open invitations begin with."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Channel(Enum):
    """What a topic carries; the value is the topic below the federation, without the device."""

    ANNOUNCEMENT = "all/ctl"
    LEASE = "all/lease"
    PRESENCE = "st"
    UP_OFFER = "up/m"
    UP_CHUNK = "up/c"
    UP_REQUEST = "up/q"
    UP_STATUS = "up/s"
    DOWN_ANSWER = "dn/a"
    DOWN_CHUNK = "dn/c"
    DOWN_TASK = "dn/t"
    DOWN_BUNDLE = "dn/b"
    SHARED_CHUNK = "all/c"


class TopicAddress(NamedTuple):
    """A parsed topic: its channel and the device it names.

    Below ``all`` that is '', and of a shared chunk the version of its blob.
    """

    channel: Channel
    device_id: str


def check_id(value: str, what: str = "id") -> str:
    """``value`` itself, if it can be part of a topic.

    Raises:
        InputError: not 1 to 64 characters of ``A-Z a-z 0-9 . _ -``.
    """
    if not _ID.fullmatch(value):
        raise InputError(
            f"{what}: expected 1 to 64 characters of A-Z a-z 0-9 . _ -, got {value[:80]!r}"
        )
    return value


def check_device_id(value: str) -> str:
    """``value`` itself, if a device may be called so.

    A device's account at the broker is called as the device, and two other kinds of accounts are
    not to be mistaken for devices.

    Raises:
        InputError: not as ``check_id`` says, the coordinator's account, or one of an invitation.
    """
    check_id(value, "device id")
    if _is_reserved(value):
        raise InputError(
            f"device id {value!r}: expected another one; {COORDINATOR!r} and names that begin with "
            f"{INVITED!r} are accounts of the broker for other purposes"
        )
    return value


def _is_reserved(name: str) -> bool:
    return name == COORDINATOR or name.startswith(INVITED)


def invited_account(device_id: str) -> str:
    """The account of a device's invitation, at the broker and in its topics.

    Raises:
        InputError: no id of a device, or too long a one.
    """
    return check_id(INVITED + check_device_id(device_id), "device id, invited")


def announced_federation(topic: str) -> str | None:
    """The federation whose announcement the topic carries; None for any other topic."""
    head, _, name = topic.removesuffix("/all/ctl").rpartition("/")
    known = topic.endswith("/all/ctl") and head == PREFIX and _ID.fullmatch(name)
    return name if known else None


@dataclass(frozen=True, slots=True)
class Topics:
    """Builds and parses the topics of one federation.

    Raises:
        InputError: the federation or a device id has characters that a topic must not have.
    """

    federation: str

    def __post_init__(self) -> None:
        check_id(self.federation, "federation")

    @property
    def announcement(self) -> str:
        """Retained announcement, coordinator → all."""
        return self._join(Channel.ANNOUNCEMENT.value)

    @property
    def lease(self) -> str:
        """Retained lease, coordinator → coordinators."""
        return self._join(Channel.LEASE.value)

    def shared_chunks(self, version: str) -> str:
        """Chunks of one blob for all devices, coordinator → all."""
        return self._join(f"{Channel.SHARED_CHUNK.value}/{check_id(version, 'version')}")

    def of(self, channel: Channel, device_id: str) -> str:
        """The topic of a channel that belongs to one device.

        Raises:
            InputError: the channel is for all, or the id cannot be part of a topic.
        """
        head, _, leaf = channel.value.partition("/")
        if head == "all":
            raise InputError(f"topic {channel.value}: belongs to no device")
        check_device_id(device_id)
        return self._join("/".join(filter(None, (head, device_id, leaf))))

    def device_filters(self, device_id: str) -> tuple[str, ...]:
        """What a device subscribes to: 2 filters; managed brokers allow as few as 8."""
        return (self.announcement, self._join(f"dn/{check_device_id(device_id)}/+"))

    def coordinator_filters(self) -> tuple[str, ...]:
        """What the coordinator subscribes to.

        The lease and the announcement, because another one may run; first, because a broker may
        have more presences for it than its queue holds.
        """
        return (self.lease, self.announcement, self._join("up/+/+"), self._join("st/+"))

    def enrolment_request(self, device_id: str) -> str:
        """Where an invited device asks for its grant.

        Raises:
            InputError: the id cannot be part of it.
        """
        return self._join(f"en/{invited_account(device_id)}/q")

    def enrolment_answer(self, device_id: str) -> str:
        """Where it is answered; raises as ``enrolment_request``."""
        return self._join(f"en/{invited_account(device_id)}/a")

    @property
    def enrolment_filter(self) -> str:
        """What whoever answers invited devices subscribes to."""
        return self._join("en/+/q")

    def enrolling(self, topic: str) -> str | None:
        """The device that asks for its grant on ``topic``; None for any other topic."""
        head, tail = self._join(f"en/{INVITED}"), "/q"
        device_id = topic.removeprefix(head).removesuffix(tail)
        known = topic == head + device_id + tail and _ID.fullmatch(device_id)
        return device_id if known and not _is_reserved(device_id) else None

    def parse(self, topic: str) -> TopicAddress | None:
        """Channel and device of a topic; None for any topic that is not of this federation."""
        prefix = self._join("")
        if not topic.startswith(prefix):
            return None
        parts = topic[len(prefix) :].split("/")
        head, rest = parts[0], parts[1:]
        if head == "all":
            if rest[:1] == ["c"] and len(rest) == 2:
                return TopicAddress(Channel.SHARED_CHUNK, rest[1])
            for_all = _FOR_ALL.get("/".join(parts))
            return None if for_all is None else TopicAddress(for_all, "")
        if not rest or not _ID.fullmatch(rest[0]) or _is_reserved(rest[0]):
            return None
        channel = _BY_PARTS.get((head, *rest[1:]))
        # Who hears of a device may keep its name: one string for all its messages.
        return None if channel is None else TopicAddress(channel, sys.intern(rest[0]))

    def _join(self, tail: str) -> str:
        return f"{PREFIX}/{self.federation}/{tail}"


_BY_PARTS = {
    tuple(channel.value.split("/")): channel
    for channel in Channel
    if not channel.value.startswith("all")
}


_FOR_ALL = {one.value: one for one in (Channel.ANNOUNCEMENT, Channel.LEASE)}
RETAINED = frozenset({Channel.ANNOUNCEMENT, Channel.LEASE, Channel.PRESENCE})
"""Channels whose messages are retained; those of others never count."""


def is_retained(topic: str) -> bool:
    """Whether messages of this topic are retained, in any federation."""
    levels = topic.split("/")[PREFIX.count("/") + 2 :]
    of_a_device = len(levels) == 2 and levels[0] == Channel.PRESENCE.value
    return of_a_device or "/".join(levels) in _FOR_ALL
