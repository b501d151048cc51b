"""One figure of a kernel run: a growth curve per kernel, and every speedup beside its target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from protofleet.benchmarks._rows import short
from protofleet.benchmarks.kernels.comparison import KernelCase, KernelRow
from protofleet.errors import InputError
from protofleet.report._figures import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SKY, STYLE

_GREY = "#6b7580"
_COLOURS = {
    "PyTorch": RED,
    "NumPy": GREEN,
    "POT": PURPLE,
    "scikit-learn": ORANGE,
    "SciPy": SKY,
}
_MARKERS = "sD^vPX*"
_DASHES = {1: "-", 2: (0, (4, 1.6))}
_MORE_THREADS = (0, (1, 1.2))
_LONG = 20  # letters of a name that fills the panel's width with another
_STEEP = 60  # largest time to smallest, from where powers of ten alone are ticks enough
_TIMES = "\u00d7"
_COLUMNS, _PANEL_IN, _BAR_IN = 4, (3.6, 2.9), 0.21
_STYLE = {**STYLE, "font.size": 8}
_Point = tuple[float, float]


def draw(
    path: Path, rows: Sequence[KernelRow], cases: Sequence[KernelCase], machine: Mapping[str, str]
) -> None:
    """Write the figure; the name's end says whether PNG or SVG.

    Args:
        path: file to write.
        rows: what was measured.
        cases: where each row lies on its kernel's curve.
        machine: facts for the title.

    Raises:
        InputError: no kernel has two sizes, and no row a target.
    """
    sizes = {(case.kernel, case.case): case for case in cases}
    groups = {name: [row for row in rows if row.kernel == name] for name in _names(rows)}
    curves = {name: group for name, group in groups.items() if len(_ticks(group, sizes)) > 1}
    judged = [row for group in groups.values() for row in group if row.target is not None]
    if not curves and not judged:
        raise InputError(
            f"plot '{path}': expected a kernel with several sizes or a target, got none; "
            "measure without --quick, or more kernels"
        )
    lines = math.ceil(len(curves) / _COLUMNS)
    heights = [0.6, max(0.1, _PANEL_IN[1] * lines), max(0.1, _BAR_IN * len(judged) + 0.9)]
    with mpl.rc_context(_STYLE):
        figure: Any = Figure(figsize=(_COLUMNS * _PANEL_IN[0], sum(heights)), layout="constrained")
        head, panels, bars = figure.subfigures(3, 1, height_ratios=heights)
        _head(head, sorted({row.threads for row in rows}), machine)
        for number, (name, group) in enumerate(curves.items()):
            _curve(panels.add_subplot(lines, _COLUMNS, number + 1), name, group, sizes)
        if judged:
            _targets(bars.add_subplot(), judged)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=130, metadata=metadata)


def _names(rows: Sequence[KernelRow]) -> list[str]:
    return list(dict.fromkeys(row.kernel for row in rows))


def _ticks(group: Sequence[KernelRow], sizes: Mapping[tuple[str, str], KernelCase]) -> list[float]:
    return sorted({sizes[row.kernel, row.case].size for row in group})


def _head(figure: Any, threads: Sequence[int], machine: Mapping[str, str]) -> None:
    where = f"{machine.get('processor', 'processor not known')}, {machine.get('cores', '?')} cores"
    figure.text(0.008, 0.62, "Kernels: time per call", fontsize=13, fontweight="bold")
    figure.text(0.008, 0.22, f"{where}; both axes logarithmic, lower is better", color=_GREY)
    keys = [
        Line2D([], [], color=INK, ls=_dashes(n), label=f"{n} thread{'' if n == 1 else 's'}")
        for n in threads
    ]
    figure.legend(handles=keys, loc="center right", ncols=len(keys), handlelength=3.2)


def _dashes(threads: int) -> Any:
    return _DASHES.get(threads, _MORE_THREADS)


def _curve(
    axes: Any,
    name: str,
    group: Sequence[KernelRow],
    sizes: Mapping[tuple[str, str], KernelCase],
) -> None:
    peers = list(dict.fromkeys(row.baseline for row in group))
    looks = {"Protofleet": (BLUE, "o")} | {
        peer: (_colour(peer), _MARKERS[number % len(_MARKERS)]) for number, peer in enumerate(peers)
    }
    for (side, threads), points in _series(group, sizes).items():
        colour, marker = looks[side]
        axes.plot(
            *zip(*points, strict=True), color=colour, marker=marker, ms=3.6, mfc="white", mew=1.1,
            lw=1.9 if side == "Protofleet" else 1.2, ls=_dashes(threads),
            zorder=3 if side == "Protofleet" else 2,
        )  # fmt: skip
    _scales(axes, sizes[group[0].kernel, group[0].case].unit, _ticks(group, sizes))
    columns = 1 if max(map(len, looks)) > _LONG else 2
    lines = math.ceil(len(looks) / columns)
    axes.set_title(name, loc="left", fontsize=9, fontweight="bold", pad=5 + 10.5 * lines)
    axes.legend(
        handles=[
            Line2D([], [], color=colour, marker=marker, ms=4, mfc="white", label=side)
            for side, (colour, marker) in looks.items()
        ],
        loc="lower left", bbox_to_anchor=(-0.04, 1.0), borderaxespad=0.2, ncols=columns,
        fontsize=7, handlelength=1.6, columnspacing=1.0, labelspacing=0.25,
    )  # fmt: skip


def _scales(axes: Any, unit: str, sizes: Sequence[float]) -> None:
    axes.set(xscale="log", yscale="log", ylabel="ms")
    axes.set_xlabel(unit, labelpad=1)
    axes.xaxis.set_major_locator(FixedLocator(_thinned(sizes)))
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _STEEP * low else (1,)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: _compact(value)))


def _thinned(sizes: Sequence[float]) -> list[float]:
    """Ticks whose labels have room: a seventh of the axis apart."""
    step = (sizes[-1] / sizes[0]) ** (1 / 7)
    kept = [sizes[0]]
    for size in sizes[1:]:
        if size >= kept[-1] * step:
            kept.append(size)
    return kept


def _series(
    group: Sequence[KernelRow], sizes: Mapping[tuple[str, str], KernelCase]
) -> dict[tuple[str, int], list[_Point]]:
    """Points by side and number of threads, from small to large; ours first."""
    found: dict[tuple[str, int], dict[float, float]] = {}
    for row in group:
        size = sizes[row.kernel, row.case].size
        found.setdefault(("Protofleet", row.threads), {})[size] = row.ours_ms
    for row in group:
        size = sizes[row.kernel, row.case].size
        found.setdefault((row.baseline, row.threads), {})[size] = row.baseline_ms
    return {key: sorted(points.items()) for key, points in found.items()}


def _colour(peer: str) -> str:
    """Of the library that a peer's name begins with; a bound is grey."""
    return next((c for library, c in _COLOURS.items() if peer.startswith(library)), _GREY)


def _targets(axes: Any, rows: Sequence[KernelRow]) -> None:
    for place, row in enumerate(rows):
        colour, hatch = (SKY, None) if row.met else (RED, "////")
        axes.barh(place, row.speedup, 0.62, color=colour, hatch=hatch, edgecolor="white", lw=0)
        axes.plot([row.target] * 2, [place - 0.42, place + 0.42], color=INK, lw=2, zorder=4)
        target = row.target or 0
        end = target if row.speedup < target < 1.25 * row.speedup else row.speedup
        axes.text(end * 1.03, place, f"{short(row.speedup)}{_TIMES}", va="center", fontsize=7.5)
    ends = [value for row in rows for value in (row.speedup, row.target or 1)]
    axes.set(
        xscale="log", ylim=(len(rows) - 0.4, -0.6), xlim=(min(*ends, 1) / 1.6, max(ends) * 1.5)
    )
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.xaxis.set_major_locator(LogLocator(2))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{_TIMES}"))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_title("Speedup beside its target", loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("time of the baseline ÷ time of Protofleet; right is better")
    axes.legend(
        handles=[
            Patch(color=SKY, label="met"),
            Patch(facecolor=RED, hatch="////", edgecolor="white", label="missed"),
            Line2D([], [], color=INK, marker="|", ls="", ms=9, mew=2, label="target"),
        ],
        loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, ncols=3,
    )  # fmt: skip


def _compact(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= 10 * size or (letter == "M" and value >= size):
            return f"{value / size:.3g}{letter}"
    return f"{value:g}"
