"""What a benchmark reports: rows for machines, a table for people, facts about the machine."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from protofleet.benchmarks._timing import Sample
from protofleet.cli._width import terminal_width
from protofleet.kernels import numba_enabled

_PACKAGES = (
    "numpy",
    "onnxruntime",
    "onnxruntime-extensions",
    "ai-edge-litert",
    "numba",
    "torch",
    "scikit-learn",
    "pot",
    "paho-mqtt",
)


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One comparison or one measured figure.

    Attributes:
        bench: the benchmark.
        case: what was measured.
        threads: threads of either side; None where it does not apply.
        ours_ms: median of our times.
        baseline: what it is compared with.
        baseline_ms: median of the baseline's times, taken in turns with ours.
        ratio: median of ours ÷ baseline over the pairs; below 1 we are faster.
        details: further figures by name, the unit in the name.
    """

    bench: str
    case: str
    threads: int | None = None
    ours_ms: float | None = None
    baseline: str | None = None
    baseline_ms: float | None = None
    ratio: float | None = None
    details: dict[str, float] = {}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Rows and the machine that they come from."""

    machine: dict[str, str]
    rows: list[msgspec.Struct]

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def paired_row(
    case: tuple[str, str],
    threads: int,
    ours: Sequence[Sample],
    *,
    baseline: str,
    theirs: Sequence[Sample],
) -> Row:
    """A row of samples that were taken in turns.

    ``cpu_ratio`` in the details compares processor time: other processes disturb it less, but it
    counts waiting threads that spin.
    """
    pairs = list(zip(ours, theirs, strict=True))
    ratios = sorted(a.wall_s / b.wall_s for a, b in pairs)
    return Row(
        bench=case[0],
        case=case[1],
        threads=threads,
        ours_ms=_median_ms(ours),
        baseline=baseline,
        baseline_ms=_median_ms(theirs),
        ratio=round(statistics.median(ratios), 3),
        details={
            "ratio_p25": round(ratios[len(ratios) // 4], 3),
            "ratio_p75": round(ratios[-1 - len(ratios) // 4], 3),
            "cpu_ratio": round(statistics.median(a.cpu_s / b.cpu_s for a, b in pairs), 3),
            "pairs": len(ratios),
        },
    )


def _median_ms(samples: Sequence[Sample]) -> float:
    return round(statistics.median(sample.wall_s for sample in samples) * 1e3, 4)


def machine_facts() -> dict[str, str]:
    """Processor, cores this process may use, memory, system, versions, kind of kernels."""
    facts = {
        "processor": _processor(),
        "cores": str(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "memory": f"{_memory_bytes() / 1e9:.1f} GB",
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "not installed"
    facts["kernels"] = "compiled" if numba_enabled() else "NumPy"
    return facts


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    board = Path("/proc/device-tree/model")  # what 64-bit ARM has in place of a model name
    if not names and board.exists():
        names = [board.read_text().strip("\0\n")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def show(rows: Iterable[Row], echo: Callable[[str], object]) -> None:
    """A plain table on ``echo``, without columns that are empty."""
    head = ("bench", "case", "threads", "ours ms", "baseline", "ms", "ratio", "details")
    columns = zip(head, *map(_cells, rows), strict=True)
    filled = [column for column in columns if any(column[1:])]
    for line in aligned(list(zip(*filled, strict=True))):
        echo(line)


def aligned(
    lines: Sequence[Sequence[str]], right: Collection[int] = (), *, kept: int = 1
) -> list[str]:
    """Cells in columns of equal width; the columns ``right`` end together.

    Columns that do not fit the terminal follow below, each time behind the first ``kept``.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            line[index].rjust(widths[index]) if index in right else line[index].ljust(widths[index])
            for index in columns
        ).rstrip()
        for columns in _folded(widths, terminal_width(), kept)
        for line in lines
    ]


def _folded(widths: Sequence[int], most: int | None, kept: int) -> list[list[int]]:
    """Numbers of the columns that stand beside each other, for each block of lines."""
    blocks = [list(range(kept))]
    for index, width in enumerate(widths[kept:], kept):
        beside = sum(widths[column] + 2 for column in blocks[-1])
        if most is not None and beside + width > most and len(blocks[-1]) > kept:
            blocks.append(list(range(kept)))
        blocks[-1].append(index)
    return blocks


def short(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def target_met(speedup: float | None, target: float | None) -> bool | None:
    """Whether a row's target is reached; None for one that only informs."""
    return None if speedup is None or target is None else speedup >= target


def met_word(speedup: float | None, target: float | None) -> str:
    """The same for a table."""
    return {None: "", True: "met", False: "MISSED"}[target_met(speedup, target)]


def targets_line(rows: Iterable[tuple[str, float | None, float | None]]) -> str:
    """How many targets are met, and the rows that miss theirs.

    Args:
        rows: of each its name, its speedup and the least that this should be.
    """
    judged = [one for one in rows if target_met(*one[1:]) is not None]
    if not judged:
        return "targets: none among these rows"
    missed = [
        f"{name} ({speedup:.2f} of {target:.3g})"
        for name, speedup, target in judged
        if not target_met(speedup, target)
    ]
    line = f"targets: {len(judged) - len(missed)} of {len(judged)} met"
    return f"{line}; missed: {'; '.join(missed)}" if missed else line


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.bench,
        row.case,
        _text(row.threads),
        _text(row.ours_ms),
        row.baseline or "",
        _text(row.baseline_ms),
        _text(row.ratio),
        ", ".join(f"{name} {_text(value)}" for name, value in row.details.items()),
    )


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
