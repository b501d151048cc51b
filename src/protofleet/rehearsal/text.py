"""A rehearsal's answer for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev

from protofleet.federation.outcomes.intervals import half_interval
from protofleet.firmware_sim.world.hardware import PI_4_GFLOPS, PI_4_PRIMES
from protofleet.rehearsal.answer import Answer, GroupAnswer
from protofleet.units import NOTHING, byte_text, duration_text

_MUCH_PERCENT = 1.0
"""Of a battery a day: an owner would notice."""
_HEAD = (
    "devices",
    "a round trains",
    "rounds a week",
    "a day: trains",
    "energy",
    "of it connected",
    "battery",
    "up",
    "down",
    "never counted",
)


def answer_lines(answer: Answer) -> Iterator[str]:
    """What one rehearsal says, line by line."""
    rounds = len(answer.rounds)
    end = "" if answer.finished else ", the federation goes on"
    named = f"{answer.label}: " if answer.label else ""
    yield f"{named}{rounds} rounds in {answer.days:.1f} days{end}"
    yield from table([_HEAD, *(_row(group) for group in answer.groups)])
    yield from _score_lines(answer)
    for group in answer.groups:
        yield from _trouble_lines(group)
    if answer.late_updates:
        yield f"{answer.late_updates} updates came too late to count; round.deadline_s may be short"
    if answer.refused:
        yield f"{len(answer.refused)} updates broke a rule, such as {answer.refused[0]}"
    yield f"a device's process takes {byte_text(answer.memory_bytes)} of memory, as tried here"
    integers, floats = answer.host.primes / PI_4_PRIMES, answer.host.gflops / PI_4_GFLOPS
    yield (
        f"times follow from {answer.example_s * 1000:.3g} ms for an example on this machine, which "
        f"is {integers:.1f} (integers) to {floats:.1f} (floating point) times a Raspberry Pi 4"
    )


def comparison_lines(answers: Sequence[Answer]) -> Iterator[str]:
    """Variants beside each other, each the mean over its seeds with a 95 % interval."""
    labels = list(dict.fromkeys(one.label for one in answers))
    head = ("", "rounds", "days", "last score", "target after", "energy a day", "bytes a day")
    rows = [head]
    for label in labels:
        those = [one for one in answers if one.label == label]
        rows.append(
            (
                label,
                _mean([float(len(one.rounds)) for one in those], "{:.0f}"),
                _mean([one.days for one in those], "{:.1f}"),
                _mean([one.final_score for one in those], "{:.3f}"),
                _mean([one.target_d for one in those], "{:.2f} d"),
                _mean([_fleet(one, "joules") for one in those], "{:.3g} J"),
                _mean([_bytes(one) / 1e6 for one in those], "{:.3g} MB"),
            )
        )
    yield from table(rows)


def sensitivity_lines(answers: Sequence[Answer]) -> Iterator[str]:
    """What becomes of a fleet where one assumption is otherwise; the first is as assumed."""
    rows = [("assumption", "rounds", "days", "energy a day", "never counted")]
    for one in answers:
        never = sum(group.never for group in one.groups)
        joules = _fleet(one, "joules") / sum(group.devices for group in one.groups)
        rows.append(
            (one.label, str(len(one.rounds)), f"{one.days:.1f}", f"{joules:.3g} J", str(never))
        )
    yield from table(rows)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns that are as wide as they have to be; the first one to the left."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        first, *others = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join((first, *others)).rstrip()


def _row(group: GroupAnswer) -> tuple[str, ...]:
    battery, span = group.battery_percent, group.round_s
    return (
        f"{group.name} ({group.devices})",
        f"{_short(span.likely)} ({_short(span.low)} to {_short(span.high)})",
        f"{group.rounds_a_week:.1f}",
        duration_text(group.train_s),
        f"{group.joules:.3g} J",
        f"{group.connected_joules:.3g} J",
        NOTHING if battery is None else f"{battery:.2g} %",
        byte_text(group.up_bytes),
        byte_text(group.down_bytes),
        str(group.never),
    )


def _short(seconds: float) -> str:
    return duration_text(seconds) if seconds >= 60 else f"{seconds:.2g} s"


def _score_lines(answer: Answer) -> Iterator[str]:
    scored = [one for one in answer.rounds if one.score is not None]
    if scored:
        first, last = scored[0], scored[-1]
        yield f"score {first.score:.3f} after round {first.round_id}, {last.score:.3f} at the end"
    if answer.target_d is not None:
        yield f"good enough after {answer.target_d:.2f} days"
    if answer.outcome is not None:
        yield from answer.outcome.lines()
    if (end := answer.early_end) is not None:
        why = "its target is reached" if end.why == "target" else "they bring nothing more"
        yield f"ends after {end.after} of {end.planned} rounds: {why}"


def _trouble_lines(group: GroupAnswer) -> Iterator[str]:
    if group.never:
        yield f"{group.name}: of {group.never} of {group.devices} devices no update ever counted"
    if group.abandoned:
        yield (
            f"{group.name}: a device gives up {group.abandoned:.1f} tasks a week unfinished: it is "
            f"slower than the round (round.deadline_s, round.quorum, stragglers.budget_s)"
        )
    if group.connected_percent >= _MUCH_PERCENT:
        yield (
            f"{group.name}: staying connected alone takes {group.connected_percent:.2g} % of the "
            "battery a day, as the radio wakes for each keep-alive and heartbeat: is it worth a "
            "network away from home?"
        )
    if group.emptied:
        yield f"{group.name}: batteries ran empty {group.emptied} times"
    waits = {why: hours for why, hours in group.held_hours.items() if hours >= 1 / 60}
    if waits:
        told = ", ".join(f"{why} {duration_text(3600 * hours)}" for why, hours in waits.items())
        yield f"{group.name}: a device with a task waited each day for: {told}"


def _fleet(answer: Answer, name: str) -> float:
    """A figure of all devices together."""
    return float(sum(getattr(group, name) * group.devices for group in answer.groups))


def _bytes(answer: Answer) -> float:
    return _fleet(answer, "up_bytes") + _fleet(answer, "down_bytes")


def _mean(values: Sequence[float | None], form: str) -> str:
    present = [value for value in values if value is not None]
    if not present:
        return NOTHING
    text = form.format(fmean(present))
    spread = pstdev(present)
    half = half_interval(spread, len(present)) if len(present) > 1 else None
    lacks = "" if len(present) == len(values) else f" (of {len(present)} of {len(values)})"
    interval = "" if half is None else f" ± {form.split(maxsplit=1)[0].format(half)}"
    return f"{text}{interval}{lacks}"
