"""What a rehearsal answers: what a fleet will cost its owners, and what it will bring them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from protofleet.federation.outcomes.outcome import Outcome
from protofleet.federation.schedules.early_stopping import EarlyEnd
from protofleet.firmware_sim.world.habits import DAY_S, HOUR_S
from protofleet.firmware_sim.world.hardware import HostSpeed, Span
from protofleet.firmware_sim.world.simulated_device import SimulatedDevice
from protofleet.rehearsal.fleet_file import DeviceGroup, RehearsalFile
from protofleet.rehearsal.simulation import RehearsedRound, Simulation

_WEEK_DAYS = 7.0
_WH = 3600.0


class RoundLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A round on the fleet's own time line.

    Attributes:
        round_id: of the round.
        opened_d, closed_d: days since the start.
        invited, counted: devices, and updates that count.
        extended: how often its deadline was.
        score: as ``stop.target`` means it; None: not scored.
        loss: mean over owners' test parts.
    """

    round_id: int
    opened_d: float
    closed_d: float
    invited: int
    counted: int
    extended: int = 0
    score: float | None = None
    loss: float | None = None


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What it is for a kind of device; figures are means over its devices.

    Attributes:
        name: of the group.
        devices: how many.
        round_s: how long one trains for a round: likely, and between what.
        rounds_a_week: updates that count.
        train_s, joules, train_joules, connected_joules: a day; the rest of the energy is that of
            transfers.
        battery_percent: of the battery a day; None: it hangs on the mains.
        up_bytes, down_bytes: a day.
        never: devices of which no update counts.
        abandoned: tasks a week that were over before they were finished.
        held_hours: hours a day with a task that could not go on, by what kept it back.
        emptied: how often a battery ran empty, all devices together.
    """

    name: str
    devices: int
    round_s: Span
    rounds_a_week: float
    train_s: float
    joules: float
    train_joules: float
    connected_joules: float
    battery_percent: float | None
    up_bytes: float
    down_bytes: float
    never: int
    abandoned: float
    held_hours: dict[str, float]
    emptied: int

    @property
    def connected_percent(self) -> float:
        """Of the battery a day, for staying connected; 0: it hangs on the mains."""
        if not self.battery_percent:
            return 0.0
        return self.battery_percent * self.connected_joules / self.joules


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rehearsal.

    Attributes:
        label: the settings by which it differs from others; empty: those of the files.
        seed: of owners' days.
        days: that were lived.
        groups: by kind of device.
        rounds: on the time line.
        finished: whether the federation had its last round.
        late_updates: that came too late to count.
        refused: updates that broke a rule.
        target_d: days until the score was good enough; None: never, or none was asked for.
        outcome: for owners; None: nothing was trained.
        early_end: the run ended before its last round.
        lr: learning rate that devices have found.
        host: this machine.
        example_s: what an example costs it in a local round.
        memory_bytes: most that a device's process takes, as tried here.
    """

    label: str
    seed: int
    days: float
    groups: tuple[GroupAnswer, ...]
    rounds: tuple[RoundLine, ...]
    finished: bool
    late_updates: int
    host: HostSpeed
    example_s: float
    memory_bytes: int
    refused: tuple[str, ...] = ()
    target_d: float | None = None
    outcome: Outcome | None = None
    early_end: EarlyEnd | None = None
    lr: float | None = None

    @property
    def final_score(self) -> float | None:
        """Of the last round that was scored."""
        return next((one.score for one in reversed(self.rounds) if one.score is not None), None)


def round_line(done: RehearsedRound, start_s: float) -> RoundLine:
    """A round for people."""
    scores = None if done.record is None else done.record.scores
    return RoundLine(
        round_id=done.round_id,
        opened_d=(done.opened_s - start_s) / DAY_S,
        closed_d=(done.closed_s - start_s) / DAY_S,
        invited=len(set(done.invited)),
        counted=len(done.counted),
        extended=done.extended,
        score=None if scores is None else scores.selecting,
        loss=None if scores is None else scores.loss,
    )


def group_answers(
    file: RehearsalFile,
    lives: Mapping[str, SimulatedDevice],
    rounds: Sequence[RehearsedRound],
    spans: Mapping[str, Span],
    days: float,
) -> tuple[GroupAnswer, ...]:
    """Means over the devices of each group.

    Args:
        file: of the fleet.
        lives: the devices at the end.
        rounds: that have closed.
        spans: how long each device trains for a round.
        days: that were lived.
    """
    counted = Counter(name for one in rounds for name in one.counted)
    members: dict[str, list[str]] = {}
    for name, group in file.devices().items():
        members.setdefault(group.name, []).append(name)
    return tuple(
        _group(file, group, {name: lives[name] for name in names}, counted, spans, days)
        for group, names in zip(file.groups, members.values(), strict=True)
    )


def _group(  # noqa: PLR0913, PLR0917 - all that the figures are made of
    file: RehearsalFile,
    group: DeviceGroup,
    lives: Mapping[str, SimulatedDevice],
    counted: Counter[str],
    spans: Mapping[str, Span],
    days: float,
) -> GroupAnswer:
    count, used = len(lives), [life.used for life in lives.values()]

    def a_day(values: Iterable[float]) -> float:
        return sum(values) / count / days

    held: dict[str, float] = {}
    for one in used:
        for why, seconds in one.held_s.items():
            held[why] = held.get(why, 0.0) + seconds
    longest = sorted(held.items(), key=lambda item: -item[1])
    joules = a_day(one.joules for one in used)
    capacity = file.hardware_of(group).battery_wh * _WH
    return GroupAnswer(
        name=group.name,
        devices=count,
        round_s=Span(
            **{
                end: sum(getattr(spans[name], end) for name in lives) / count
                for end in ("low", "likely", "high")
            }
        ),
        rounds_a_week=a_day(counted[name] for name in lives) * _WEEK_DAYS,
        train_s=a_day(one.train_s for one in used),
        joules=joules,
        train_joules=a_day(one.train_j for one in used),
        connected_joules=a_day(one.connected_j for one in used),
        battery_percent=100 * joules / capacity if capacity else None,
        up_bytes=a_day(one.up_bytes for one in used),
        down_bytes=a_day(one.down_bytes for one in used),
        never=sum(counted[name] == 0 for name in lives),
        abandoned=a_day(one.abandoned for one in used) * _WEEK_DAYS,
        held_hours={why: seconds / HOUR_S / count / days for why, seconds in longest},
        emptied=sum(one.emptied for one in used),
    )


def target_day(lines: Sequence[RoundLine], target: float | None, *, less: bool) -> float | None:
    """When the score was good enough for the first time.

    Args:
        lines: in their order.
        target: score that is.
        less: whether a smaller score is a better one.
    """
    if target is None:
        return None
    for one in lines:
        if one.score is not None and (one.score <= target if less else one.score >= target):
            return one.closed_d
    return None


def lived_days(simulation: Simulation, file: RehearsalFile) -> float:
    """Days from the start to where a simulation has come."""
    return max((simulation.now - file.start_s) / DAY_S, 1e-6)
