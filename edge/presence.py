"""When a device says who is here, and that it lives."""

from __future__ import annotations

import logging
import random
from typing import Protocol

from msgspec import UNSET, UnsetType

from protofleet.edge.device_info import DataSummary, DeviceInfo
from protofleet.edge.log_tail import LogTail
from protofleet.edge.log_throttle import WarningThrottle
from protofleet.federation.records import Sends
from protofleet.strategies import DESCRIPTIONS
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.messages import Announcement, BundleProgress, CalibrationAnswer, HeartbeatPhase

_log = logging.getLogger(__name__)

HEARTBEAT_S = 60.0
"""Below every sensible liveness limit of a coordinator; 15 kB an hour."""
WILLS_OUT_S = 60.0
"""After 45 s of silence, at the default keep-alive, a broker publishes the will of a connection."""
SPREAD_MIN_S = 0.5
"""However often the roll is called, a device answers about four times a second at most."""
SPREAD_MAX_S = 600.0


class PresenceTimer:
    """When this process is to publish its presence again."""

    def __init__(self) -> None:
        self._called = self._wills_out = float("inf")
        self._answered: tuple[str, int] | None = None
        self._rng = random.Random()  # noqa: S311 - spread over time, no secret

    def connected(self, now: float) -> None:
        """The presence goes out now, and again when the will of a lost connection is out, too."""
        self._wills_out = now + WILLS_OUT_S

    @property
    def due(self) -> float:
        """Monotonic seconds; infinite: not before something happens."""
        return min(self._called, self._wills_out)

    def answered(self, now: float) -> None:
        """The presence went out because it was due."""
        self._called = float("inf")
        if now >= self._wills_out:
            self._wills_out = float("inf")

    def announced(self, announcement: Announcement, now: float, *, retained: bool) -> None:
        """Presence is due soon if the announcement calls the roll.

        The first one that the broker kept is older than this process's presence, which has
        answered it.
        """
        call = (announcement.boot_id, announcement.roll_call)
        if call != self._answered and (self._answered is not None or not retained):
            spread_s = min(max(announcement.spread_s, SPREAD_MIN_S), SPREAD_MAX_S)
            self._called = min(self._called, now + self._rng.uniform(0.0, spread_s))
        self._answered = call


class RoundData(Protocol):
    """How many training samples there are in a round; ``edge.learning.training.Learner`` knows."""

    def num_examples(self, round_id: int) -> int:
        """In all."""
        ...

    def class_counts(self, round_id: int) -> tuple[int, ...]:
        """Of each class."""
        ...


class Registration:
    """What a device says of its data for a strategy and a round; class counts only if asked.

    Args:
        data: of each round.
        sends: what the device's owner allows.
    """

    def __init__(self, data: RoundData, sends: Sends) -> None:
        self._data, self._sends = data, sends
        self._warn = WarningThrottle(_log).warning
        self.summary = DataSummary(num_examples=sends.count(data.num_examples(1)))

    def update(self, strategy: str, round_id: int) -> bool:
        """Bring ``summary`` up to date; whether it changed, so that the presence is due again."""
        before, data = self.summary, self._data
        asked = strategy in DESCRIPTIONS and DESCRIPTIONS[strategy].class_counts
        if asked and not self._sends.counts:
            self._warn(
                "strategy '%s' asks how many examples of each class there are, which --no-counts "
                "keeps here: this device cannot take part",
                strategy,
            )
            asked = False
        self.summary = DataSummary(
            num_examples=self._sends.count(data.num_examples(round_id)),
            class_counts=data.class_counts(round_id) if asked else (),
        )
        return self.summary != before


class PresencePublisher:
    """Publishes one device's presence and heartbeats.

    Args:
        endpoint: of the device.
        who: what it says about itself.
        registration: what it says of its data.
        tail: of the log, which may go with a round that has failed; None: it may not.

    Attributes:
        heartbeat_due: monotonic seconds; infinite before the first connection.
        progress: with the bundle that was offered last; None: there is none.
        calibration: what came of learning rates; not set: the device can try none.
    """

    def __init__(
        self,
        endpoint: DeviceEndpoint,
        who: DeviceInfo,
        registration: Registration,
        tail: LogTail | None = None,
    ) -> None:
        self._endpoint, self._who, self._registration = endpoint, who, registration
        self._tail = tail
        self._timer = PresenceTimer()
        self._held: tuple[str, ...] = ()
        self._published = False
        self.progress: BundleProgress | None = None
        self.calibration: CalibrationAnswer | UnsetType = UNSET
        self.heartbeat_due = float("inf")

    @property
    def is_told(self) -> bool:
        """Whether the broker was given the presence as it is now."""
        return self._published

    @property
    def due(self) -> float:
        """When something is to be published, monotonic seconds."""
        return min(self.heartbeat_due, self._timer.due)

    def publish(self, held: tuple[str, ...]) -> None:
        """Say who is here, and which of the owner's conditions hold the device.

        Without a link that is due when it is back; with keys it waits until a coordinator has
        announced itself.
        """
        self._held = held
        presence = self._who.presence(
            "online", self._registration.summary, held, self.progress, self.calibration
        )
        self._published = self._endpoint.publish(presence)

    def connected(self, held: tuple[str, ...], now: float) -> None:
        """The link is up."""
        self.publish(held)
        self._timer.connected(now)
        self.heartbeat_due = now + HEARTBEAT_S

    def announced(self, announcement: Announcement, now: float, *, retained: bool) -> None:
        """A coordinator has announced itself, whoever it is."""
        if (retained and not self._published) or self._endpoint.overtakes:
            self.publish(self._held)
        self._timer.announced(announcement, now, retained=retained)

    def register(self, strategy: str, round_id: int) -> None:
        """Tell what the strategy asks of the round's data, if that is not what was told."""
        if self._registration.update(strategy, round_id):
            self.publish(self._held)

    def answer(self, now: float) -> None:
        """Publish the presence again if that is due."""
        if now >= self._timer.due:
            self._timer.answered(now)
            self.publish(self._held)

    def heartbeat(
        self, phase: HeartbeatPhase, round_id: int, totals: tuple[int, int], now: float
    ) -> None:
        """Say that the device lives, and what it has paid."""
        self.heartbeat_due = now + HEARTBEAT_S
        self._endpoint.publish(self._who.heartbeat(phase, round_id, totals))

    def failed(self, phase: HeartbeatPhase, round_id: int, totals: tuple[int, int]) -> None:
        """A round has failed in ``phase``: send the last lines of the log, if they may go."""
        if self._tail is not None:
            self._endpoint.publish(self._who.heartbeat(phase, round_id, totals, self._tail.text()))

    def leave(self) -> None:
        """Say that the device is gone."""
        self._endpoint.publish(self._who.presence("left"))
