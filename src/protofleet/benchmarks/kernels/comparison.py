"""A kernel against its peers: what a case declares, the row that is measured, the table of rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from protofleet.benchmarks._rows import aligned, met_word, short, target_met, targets_line
from protofleet.benchmarks._timing import Sample

_HEAD = ("kernel", "case", "threads", "ours ms", "baseline", "its ms", "speedup", "target", "")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What a user would pick instead, or a bound that no program can beat.

    Attributes:
        name: in the table, ``PyTorch``, ``matrix product alone``.
        run: one call on the same numbers; None if ``fixed_ms`` says what it takes.
        fixed_ms: time that a required rate allows, in milliseconds.
        target: least peer time ÷ our time; None where the row only informs.
    """

    name: str
    run: Callable[[], object] | None = None
    fixed_ms: float | None = None
    target: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The two sides of a comparison on arrays that lie in memory."""

    ours: Callable[[], object]
    peers: tuple[Peer, ...]


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """One kernel at one size.

    Attributes:
        kernel: name of the kernel; cases of one kernel form a growth curve.
        case: the size in words, ``N=512 2G=4096 d=192``.
        size: what grows along the curve.
        unit: of ``size``, ``prototypes``.
        prepare: makes the arrays; called just before timing, released after.
        quick: part of ``--quick`` runs.
        threads: numbers of threads to measure with.
    """

    kernel: str
    case: str
    size: float
    unit: str
    prepare: Callable[[], Sides]
    quick: bool = False
    threads: tuple[int, ...] = (1, 2)


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel at one size against one peer.

    Attributes:
        kernel: name of the kernel.
        case: its size in words.
        threads: of either side.
        ours_ms: median of our times.
        baseline: the peer.
        baseline_ms: median of the peer's times, taken in turns with ours.
        speedup: median of baseline ÷ ours over the pairs; above 1 we are faster.
        target: least speedup; None where the row only informs.
    """

    kernel: str
    case: str
    threads: int
    ours_ms: float
    baseline: str
    baseline_ms: float
    speedup: float
    target: float | None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        return target_met(self.speedup, self.target)

    @property
    def label(self) -> str:
        """The row in words."""
        plural = "" if self.threads == 1 else "s"
        return f"{self.kernel} {self.case}, {self.threads} thread{plural}, {self.baseline}"


def kernel_row(
    case: KernelCase, threads: int, ours: Sequence[Sample], peer: Peer, theirs: Sequence[Sample]
) -> KernelRow:
    """A row of samples that were taken in turns, or of ours against a fixed time."""
    mine = [sample.wall_s * 1e3 for sample in ours]
    if peer.fixed_ms is None:
        other = [sample.wall_s * 1e3 for sample in theirs]
    else:
        other = [peer.fixed_ms] * len(mine)
    return KernelRow(
        kernel=case.kernel,
        case=case.case,
        threads=threads,
        ours_ms=round(statistics.median(mine), 4),
        baseline=peer.name,
        baseline_ms=round(statistics.median(other), 4),
        speedup=round(statistics.median(b / a for a, b in zip(mine, other, strict=True)), 3),
        target=peer.target,
    )


def show_kernels(rows: Sequence[KernelRow], echo: Callable[[str], object]) -> None:
    """A table on ``echo``, a block of lines per kernel."""
    lines: list[tuple[str, ...]] = [_HEAD]
    for kernel in dict.fromkeys(row.kernel for row in rows):
        lines += [("",) * len(_HEAD), *_block([row for row in rows if row.kernel == kernel])]
    for line in aligned(lines, right=(2, 3, 5, 6, 7)):
        echo(line)


def verdict(rows: Sequence[KernelRow]) -> str:
    """How many targets are met, and the rows that miss theirs."""
    return targets_line((row.label, row.speedup, row.target) for row in rows)


def _block(rows: Sequence[KernelRow]) -> list[tuple[str, ...]]:
    """Lines of one kernel; what repeats from the line above is left out."""
    lines, above = [], ("", "", "", "")
    for row in rows:
        name = (row.kernel, row.case, str(row.threads), short(row.ours_ms))
        shown = [
            "" if name[: column + 1] == above[: column + 1] else cell
            for column, cell in enumerate(name)
        ]
        lines.append((*shown, row.baseline, short(row.baseline_ms), *_judged(row)))
        above = name
    return lines


def _judged(row: KernelRow) -> tuple[str, str, str]:
    target = "" if row.target is None else f"{row.target:.3g}"
    return f"{row.speedup:.2f}", target, met_word(row.speedup, row.target)
