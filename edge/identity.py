"""What a device says about itself and its data, and what it must agree on with a federation."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from protofleet.edge.journal import Binding
from protofleet.edge.meter import peak_rss_bytes
from protofleet.errors import RefusedError
from protofleet.federation.records import Sends
from protofleet.strategies import DESCRIPTIONS
from protofleet.wire.messages import Announcement, Heartbeat, HeartbeatPhase, Presence, Task

_log = logging.getLogger(__name__)

WILLS_OUT_S = 60.0
"""After 45 s of silence, at the default keep-alive, a broker publishes the will of a connection."""
SPREAD_MIN_S = 0.5
"""However often the roll is called, a device answers about four times a second at most."""
SPREAD_MAX_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """What the presence says of the data.

    Attributes:
        num_examples: training samples; 1 or 0 where the owner keeps their number back.
        class_counts: of each class; empty unless the federation's strategy asks for them.
    """

    num_examples: int
    class_counts: tuple[int, ...] = ()


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
    """How many training samples there are in a round; ``edge.training.Learner`` knows."""

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
        self.summary = DataSummary(num_examples=sends.count(data.num_examples(1)))

    def update(self, strategy: str, round_id: int) -> bool:
        """Bring ``summary`` up to date; whether it changed, so that the presence is due again."""
        before, data = self.summary, self._data
        asked = strategy in DESCRIPTIONS and DESCRIPTIONS[strategy].class_counts
        if asked and not self._sends.counts:
            _log.warning(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One device in one process.

    Attributes:
        device_id: the durable identity.
        boot_id: drawn anew by every process.
        binding: the federation and the bundle that it has.
        num_examples: training samples at the start.
        sends: what the owner allows to be told beside tensors.
    """

    device_id: str
    boot_id: str
    binding: Binding
    num_examples: int
    sends: Sends = field(default_factory=Sends)

    def presence(
        self,
        status: Literal["online", "offline", "left"],
        data: DataSummary | None = None,
        held: tuple[str, ...] = (),
    ) -> Presence:
        """The retained record with what is said of the ``data``; without it, the last will.

        ``held``: the owner's conditions that are not met.
        """
        data = data or DataSummary(num_examples=self.sends.count(self.num_examples))
        return Presence(
            device_id=self.device_id,
            boot_id=self.boot_id,
            status=status,
            bundle=self.binding.bundle,
            layout_hash=self.binding.layout_hash,
            num_examples=data.num_examples,
            class_counts=data.class_counts,
            strategies=tuple(DESCRIPTIONS) if status == "online" else (),
            held=held,
        )

    def heartbeat(self, phase: HeartbeatPhase, round_id: int, totals: tuple[int, int]) -> Heartbeat:
        """Liveness and costs; ``totals`` are bytes up and down at the socket."""
        return Heartbeat(
            device_id=self.device_id,
            boot_id=self.boot_id,
            round_id=round_id,
            phase=phase,
            bytes_up=totals[0],
            bytes_down=totals[1],
            peak_rss_bytes=peak_rss_bytes(),
        )

    def figures(self) -> dict[str, Any]:
        """For people and programs that watch the device."""
        return {
            "device_id": self.device_id,
            "federation": self.binding.federation,
            "bundle": self.binding.bundle,
            "num_examples": self.num_examples,
        }

    def check(self, message: Announcement | Task) -> None:
        """Raise RefusedError unless the coordinator runs what this device is bound to.

        The rule is ``federation``, ``bundle`` or ``layout``.
        """
        rules = {"federation": "federation", "bundle": "bundle", "layout_hash": "layout"}
        for name, rule in rules.items():
            ours, theirs = getattr(self.binding, name), getattr(message, name, None)
            if theirs is None or ours == theirs:
                continue
            if name != "federation":
                ours, theirs = ours[:16], theirs[:16]  # as other commands show digests
            raise RefusedError(
                rule,
                f"federation '{message.federation[:64]}': its {name} is '{theirs[:64]}', this "
                f"device has '{ours}'; join with the federation's own bundle",
            )
