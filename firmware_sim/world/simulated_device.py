"""One device in virtual time: what it does until something changes, and what that costs.

Between two changes everything runs at a constant rate: bytes, training, battery. ``advance`` goes
there at once, so that an idle night costs nothing to simulate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from protofleet.edge.owner.policy import NO_TRANSFER, Moment, Platform, Policy, unmet_conditions
from protofleet.edge.presence import HEARTBEAT_S
from protofleet.firmware_sim.world.habits import DAY_S, MINUTE_S, Change, Condition
from protofleet.firmware_sim.world.hardware import Hardware
from protofleet.firmware_sim.world.network import Network

NEVER = math.inf
_WH = 3600.0
_RESTART = 0.05
"""A battery that ran empty has to have so much before its device starts again."""
_LITTLE = 1e-6
"""Seconds or joules that rounding may leave."""
_PAST_S = 1e-3
"""A battery is looked at so long behind a level, so that it has passed it whatever is rounded."""
_MONTH_DAYS = 30
_WAYS = 4
"""One-way delays of a transfer: task or offer, request, data, receipt."""
_IDLE_UP, _IDLE_DOWN = 3.3, 2.3
"""Bytes in a second of a device that waits for its coordinator: heartbeats, announcements and
keep-alives; 20 kB an hour at its socket (docs/device.md)."""


class Phase(StrEnum):
    """What a device does for its task."""

    IDLE = "idle"
    DOWNLOAD = "download"
    TRAIN = "train"
    UPLOAD = "upload"


_OVERHEAD = {Phase.DOWNLOAD: 1600.0, Phase.UPLOAD: 880.0}
"""Bytes beside a payload and an update: task, offer, requests, receipts, headers; measured at the
sockets of four devices (docs/rehearse.md)."""
_FOLLOWING = {
    Phase.DOWNLOAD: Phase.TRAIN,
    Phase.TRAIN: Phase.UPLOAD,
    Phase.UPLOAD: Phase.IDLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A round's task as a device feels it.

    Attributes:
        round_id: of the task.
        down_bytes, up_bytes: of payload and update.
        train_s: how long this device trains.
    """

    round_id: int
    down_bytes: float
    train_s: float
    up_bytes: float

    def amount(self, phase: Phase) -> float:
        """Bytes or seconds of a phase."""
        amounts = {
            Phase.DOWNLOAD: self.down_bytes,
            Phase.TRAIN: self.train_s,
            Phase.UPLOAD: self.up_bytes,
        }
        return amounts.get(phase, 0.0)


@dataclass(slots=True)
class Used:
    """What a device has spent on the federation so far.

    Attributes:
        train_s: seconds of training.
        train_j, radio_j: energy of training and of transfers.
        connected_j: of the radio while no transfer runs: it wakes for keep-alives and heartbeats.
        up_bytes, down_bytes: transferred.
        held_s: seconds with a task that each unmet condition, or a missing network, has kept back.
        trained, delivered: rounds.
        abandoned: tasks that were over, or replaced by the next one, before they were finished.
        emptied: how often the battery ran empty.
    """

    train_s: float = 0.0
    train_j: float = 0.0
    radio_j: float = 0.0
    connected_j: float = 0.0
    up_bytes: float = 0.0
    down_bytes: float = 0.0
    held_s: dict[str, float] = field(default_factory=dict)
    trained: int = 0
    delivered: int = 0
    abandoned: int = 0
    emptied: int = 0

    @property
    def joules(self) -> float:
        """Energy of all three."""
        return self.train_j + self.radio_j + self.connected_j


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a device lives with.

    Attributes:
        hardware: of it.
        home, away: its networks; None: none there.
        policy: of its owner.
        changes: of its owner's days, in order.
        train_w: what its training draws beside the idle device.
        keepalive_s: after which an idle MQTT connection is used.
    """

    hardware: Hardware
    home: Network | None
    away: Network | None
    policy: Policy
    changes: Iterator[Change]
    train_w: float
    keepalive_s: float = 30.0


class SimulatedDevice:
    """A device from change to change.

    Args:
        around: what it lives with.

    Attributes:
        now: seconds since the midnight before the start.
        phase: what it does.
        work: its task; None: it has none.
        used: what it has spent.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.now = 0.0
        self.phase = Phase.IDLE
        self.work: Work | None = None
        self.used = Used()
        self._left = self._lag_s = 0.0
        self._capacity_j = around.hardware.battery_wh * _WH
        self._charge_j = self._capacity_j
        self._empty = False
        self._open: Counter[Condition] = Counter()
        self._next = next(around.changes, None)
        self._day_bytes = self._month_bytes = 0.0
        self._look()

    @classmethod
    def at(cls, around: Surroundings, start_s: float) -> Self:
        """One that has lived since midnight and has spent nothing on a federation yet."""
        life = cls(around)
        life.advance(0.0)
        while life.now < start_s:
            life.advance(min(start_s, life.next_s))
        life.used = Used()
        return life

    def give(self, work: Work) -> None:
        """Begin a task; one that is not finished is dropped."""
        self.used.abandoned += self.work is not None
        self.work = work
        self._enter(Phase.DOWNLOAD)
        self._look()

    def drop(self) -> None:
        """Forget the task: nobody waits for its update any longer."""
        self.used.abandoned += self.work is not None
        self.work, self.phase = None, Phase.IDLE
        self._look()

    @property
    def is_present(self) -> bool:
        """Whether a coordinator would take it for one that may be invited."""
        return self._reachable and not self.held

    @property
    def battery_percent(self) -> float | None:
        """Charge; None: it hangs on the mains."""
        return 100 * self._charge_j / self._capacity_j if self._capacity_j else None

    @property
    def next_s(self) -> float:
        """When something changes by itself at the latest; it is no later than that."""
        found = [NEVER if self._next is None else self._next.at_s, *self._midnights()]
        if self._runs:
            found.append(self.now + self._lag_s + self._left / self._rate)
        found.append(self._battery_s())
        return max(self.now, min(found))

    def advance(self, to_s: float) -> None:
        """Live on until then, which may be no later than ``next_s``."""
        self._spend(to_s - self.now)
        before, self.now = self.now, to_s
        if to_s // DAY_S > before // DAY_S:
            self._day_bytes = 0.0
            if int(to_s // DAY_S) % _MONTH_DAYS == 0:
                self._month_bytes = 0.0
        while self._next is not None and self._next.at_s <= to_s + _LITTLE:
            self._open[self._next.condition] += 1 if self._next.begins else -1
            self._next = next(self._around.changes, None)
        self._look()

    def finished(self) -> Phase | None:
        """The phase that has just come to its end, once; the next one has begun."""
        if self.phase is Phase.IDLE or self._lag_s + self._left / self._rate > _LITTLE:
            return None
        done = self.phase
        if done is not Phase.TRAIN and self._network is not None:
            self.used.radio_j += self._network.tail_j
        self.used.trained += done is Phase.TRAIN
        self.used.delivered += done is Phase.UPLOAD
        if _FOLLOWING[done] is Phase.IDLE:
            self.work = None
        self._enter(_FOLLOWING[done])
        self._look()
        return done

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._left = self.work.amount(phase) + _OVERHEAD.get(phase, 0.0) if self.work else 0.0
        delay_ms = 0.0 if self._network is None else self._network.delay_ms
        self._lag_s = 0.0 if phase is Phase.TRAIN else _WAYS * delay_ms / 1000

    def _look(self) -> None:
        """Find out anew what is so, and what may run."""
        is_so = self._open
        is_on = not is_so[Condition.OFF] and not self._empty
        away = is_so[Condition.AWAY]
        self._network = self._around.away if away else self._around.home
        if is_so[Condition.OFFLINE] or not is_on:
            self._network = None
        self._plugged = bool(is_so[Condition.CHARGING]) or not self._capacity_j
        self._busy = bool(is_so[Condition.BUSY])
        self._reachable = self._network is not None
        self.held = self._unmet() if is_on else ()
        moves = self.phase in {Phase.DOWNLOAD, Phase.UPLOAD}
        may_move = self._reachable and NO_TRANSFER.isdisjoint(self.held)
        may_train = is_on and not self.held
        self._runs = (moves and may_move) or (self.phase is Phase.TRAIN and may_train)
        self._rate = 1.0
        if moves and self._network is not None:
            self._rate = self._network.bytes_per_s(up=self.phase is Phase.UPLOAD)
        self._is_on = is_on

    def _unmet(self) -> tuple[str, ...]:
        network, work = self._network, self.work
        platform = Platform(
            charging=self._plugged,
            unmetered=None if network is None else not network.metered,
            idle=not self._busy,
            battery_percent=self.battery_percent,
        )
        moment = Moment(
            minute=int(self.now % DAY_S // MINUTE_S),
            day_bytes=int(self._day_bytes),
            month_bytes=int(self._month_bytes),
            round_bytes=0 if work is None else int(work.down_bytes + work.up_bytes),
        )
        return tuple(
            one.condition for one in unmet_conditions(self._around.policy, platform, moment)
        )

    def _spend(self, seconds: float) -> None:
        if seconds <= 0:
            return
        draw = self._own_w + self._connected_w
        self._stay_connected(seconds)
        if self._runs:
            lag = min(seconds, self._lag_s)
            self._lag_s -= lag
            self._left = max(0.0, self._left - (seconds - lag) * self._rate)
            draw += self._work_w
            joules = (seconds - lag) * self._work_w
            if self.phase is Phase.TRAIN:
                self.used.train_s += seconds
                self.used.train_j += joules
            else:
                self._transferred((seconds - lag) * self._rate, joules)
        if not self._runs and self.phase is not Phase.IDLE:
            why = self._why
            self.used.held_s[why] = self.used.held_s.get(why, 0.0) + seconds
        if self._capacity_j:
            gain = (self._around.hardware.charge_w if self._plugged else 0.0) - draw
            self._charge_j = min(self._capacity_j, max(0.0, self._charge_j + gain * seconds))
            self._check_battery()

    def _stay_connected(self, seconds: float) -> None:
        if not self._is_idle_line:
            return
        self.used.connected_j += seconds * self._connected_w
        self.used.up_bytes += seconds * _IDLE_UP
        self.used.down_bytes += seconds * _IDLE_DOWN

    def _transferred(self, count: float, joules: float) -> None:
        self.used.radio_j += joules
        self._day_bytes += count
        self._month_bytes += count
        if self.phase is Phase.UPLOAD:
            self.used.up_bytes += count
        else:
            self.used.down_bytes += count

    def _check_battery(self) -> None:
        if not self._empty and self._charge_j <= _LITTLE:
            self._empty = True
            self.used.emptied += 1
        elif self._empty and self._charge_j >= _RESTART * self._capacity_j - _LITTLE:
            self._empty = False

    @property
    def _why(self) -> str:
        """What keeps the task back now."""
        if not self._is_on:
            return "battery empty" if self._empty else "switched off"
        if self.held:
            return self.held[0]
        return "no network"

    @property
    def _is_idle_line(self) -> bool:
        """Whether the device is connected and nothing travels.

        One that is held, and has nothing to transfer, rests (``edge.resting``).
        """
        moves = self.phase in {Phase.DOWNLOAD, Phase.UPLOAD}
        rests = self.held and not (moves and NO_TRANSFER.isdisjoint(self.held))
        return self._reachable and not rests and not (self._runs and moves)

    @property
    def _connected_w(self) -> float:
        """What the radio draws on average because it wakes for keep-alives and heartbeats."""
        if self._network is None or not self._is_idle_line:
            return 0.0
        every_s = min(self._around.keepalive_s, HEARTBEAT_S)
        return self._network.tail_j / max(every_s, self._network.tail_s)

    @property
    def _own_w(self) -> float:
        """What the device draws without the federation."""
        if not self._is_on:
            return 0.0
        hardware = self._around.hardware
        return hardware.used_w if self._busy else hardware.idle_w

    @property
    def _work_w(self) -> float:
        """What the running phase draws beside that."""
        if self.phase is Phase.TRAIN:
            return self._around.train_w
        return 0.0 if self._network is None else self._network.watts(up=self.phase is Phase.UPLOAD)

    def _battery_s(self) -> float:
        """When the battery crosses a level at which something changes."""
        if not self._capacity_j:
            return NEVER
        gain = self._around.hardware.charge_w if self._plugged else 0.0
        gain -= self._own_w + self._connected_w + (self._work_w if self._runs else 0.0)
        levels = [_RESTART if self._empty else 0.0, 1.0]
        if (least := self._around.policy.least_battery_percent) is not None:
            levels.append(least / 100)
        found = NEVER
        for level in levels:
            missing = level * self._capacity_j - self._charge_j
            if abs(missing) > _LITTLE and missing * gain > 0:
                found = min(found, self.now + missing / gain + _PAST_S)
        return found

    def _midnights(self) -> Iterator[float]:
        """When the policy's own clock changes something: a day's data, quiet hours."""
        policy, today = self._around.policy, self.now // DAY_S * DAY_S
        if policy.data_per_day_mb is not None or policy.data_per_month_mb is not None:
            yield today + DAY_S
        for text in policy.quiet_hours:
            for clock in text.split("-"):
                hours, minutes = clock.split(":")
                at = today + (60 * int(hours) + int(minutes)) * MINUTE_S
                yield at if at > self.now else at + DAY_S
