"""Two device reports side by side: every figure that both have, and which became worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from protofleet.benchmarks._rows import aligned, short
from protofleet.benchmarks.device.report import RANDOM, DeviceReport, DeviceRun
from protofleet.errors import InputError

_NOTABLE = 1.1
_NOTABLE_F1 = 0.005
"""Half a point."""
_HEAD = ("", "A", "B", "B / A", "")


class Figure(NamedTuple):
    """One number of a report.

    Attributes:
        value: in whatever unit its name says.
        good: ``low``, ``high``, or ``score``: high, and compared by difference.
        owner: whose it is: a run, or a strategy.
        depends_on: ``chance`` for the 99th percentile, which a few slow calls of other work make;
            ``data`` for compressed bytes; else empty.
    """

    value: float
    good: str
    owner: str
    depends_on: str = ""


def compare_devices(first: DeviceReport, second: DeviceReport) -> list[str]:
    """Lines for a person: a figure of both reports in each, those of one report alone at the end.

    Raises:
        InputError: no figure is in both.
    """
    a, b = figures(first), figures(second)
    both = [name for name in a if name in b]
    if not both:
        raise InputError("device reports: no figure is in both; measure the same combinations")
    unfair = _unfair(first, second)
    rows = [
        (name, *cells, "" if unfair is None or a[name].depends_on in unfair else verdict)
        for name in both
        for *cells, verdict in [_cells(a[name], b[name])]
    ]
    worse = sum(row[-1].startswith("WORSE") for row in rows)
    better = sum(row[-1] == "better" for row in rows)
    limits = f"{100 * (_NOTABLE - 1):.0f} % (macro-F1: {100 * _NOTABLE_F1:g} points)"
    return [
        *_differences(first, second),
        *aligned([_HEAD, *rows], right=(1, 2, 3)),
        *(f"only in A: {text}" for text in _alone(a, b)),
        *(f"only in B: {text}" for text in _alone(b, a)),
        f"{len(both)} figures: {worse} worse, {better} better by more than {limits}"
        if unfair is not None
        else f"{len(both)} figures, none judged: --quick takes too few calls for that",
    ]


def _unfair(a: DeviceReport, b: DeviceReport) -> frozenset[str] | None:
    """What figures must not hang on to be judged; None: none is."""
    if a.settings.quick or b.settings.quick:
        return None
    return frozenset({"chance"} if _examples(a) == _examples(b) else {"chance", "data"})


def _examples(report: DeviceReport) -> tuple[str, int, int | None]:
    """What makes the examples that bytes are counted with; the seed does where they are random."""
    settings = report.settings
    seed = settings.seed if report.data == RANDOM else None
    return report.data, settings.traffic_examples, seed


def _alone(mine: Mapping[str, Figure], other: Mapping[str, Figure]) -> Iterator[str]:
    """A line for each run and strategy: all that the other report lacks of it, or just its name."""
    shared = {figure.owner for figure in other.values()}
    alone: dict[str, list[str]] = {}
    for name, figure in mine.items():
        if name not in other:
            alone.setdefault(figure.owner, []).append(name.removeprefix(figure.owner).lstrip(": "))
    for owner, names in alone.items():
        yield f"{owner}: {', '.join(names)}" if owner in shared else owner


def figures(report: DeviceReport) -> dict[str, Figure]:
    """Every number of a report, by a name that says what it is."""
    found: dict[str, Figure] = {}
    for run in report.runs:
        label = run.what.label
        for name, value, good in _of_run(run):
            spread = "chance" if name.endswith("p99") else ""
            found[f"{label}: {name}"] = Figure(value, good, label, spread)
    for row in report.traffic:
        if row.down_bytes is not None and row.up_bytes is not None:
            name, owner = f"{row.strategy} {row.codec}", row.strategy
            data = "data" if row.codec.endswith("+zlib") else ""
            found[f"{name}: bytes down"] = Figure(row.down_bytes, "low", owner, data)
            found[f"{name}: bytes up"] = Figure(row.up_bytes, "low", owner, data)
    return found


def _of_run(run: DeviceRun) -> Iterator[tuple[str, float, str]]:
    """Name, value and what is good."""
    if run.load_ms is not None:
        yield "load ms", run.load_ms, "low"
    for phase in run.phases:
        if phase.batch is not None:
            for percentile, value in phase.ms.items():
                yield f"{phase.key} ms {percentile}", value, "low"
        if phase.peak_rss_bytes is not None:
            yield f"{phase.key} peak MB", phase.peak_rss_bytes / 1e6, "low"
        if phase.energy_j is not None:
            yield f"{phase.key} mJ", 1e3 * phase.energy_j, "low"
    stream = run.phase("stream")
    if stream is not None and stream.per_s is not None:
        yield "stream examples/s", stream.per_s, "high"
    if run.phases:
        kilobytes = (sum(run.program_bytes.values()) + run.weight_bytes) / 1e3
        yield "on disk kB", kilobytes, "low"
    if run.score is not None:
        yield "macro-F1", run.score.macro_f1, "score"


def _differences(a: DeviceReport, b: DeviceReport) -> Iterator[str]:
    """What makes figures of two reports hard to compare."""
    mine, other = msgspec.structs.asdict(a.settings), msgspec.structs.asdict(b.settings)
    facts = [
        ("bundle", a.bundle.digest[:16], b.bundle.digest[:16]),
        ("data", a.data, b.data),
        ("load of the machine", a.load_average, b.load_average),
    ]
    for name, first, second in (*facts, *((name, mine[name], other[name]) for name in mine)):
        if first != second:
            yield f"{name} differs: A {first}, B {second}"
    yield ""


def _cells(a: Figure, b: Figure) -> tuple[str, str, str, str]:
    if a.good == "score":
        change = b.value - a.value
        return f"{a.value:.4f}", f"{b.value:.4f}", f"{change:+.4f}", _judged(change, _NOTABLE_F1)
    ratio = b.value / a.value if a.value else None
    if ratio is None:
        return short(a.value), short(b.value), "", ""
    gain = ratio if a.good == "high" else 1 / ratio if ratio else float("inf")
    return short(a.value), short(b.value), f"{ratio:.3f}", _verdict(gain)


def _verdict(gain: float) -> str:
    """Above 1 is better."""
    if 1 / _NOTABLE <= gain <= _NOTABLE:
        return ""
    return "better" if gain > 1 else "WORSE"


def _judged(change: float, notable: float) -> str:
    if abs(change) <= notable:
        return ""
    return "better" if change > 0 else "WORSE"
