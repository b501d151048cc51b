"""The picture of a claim: differences by seed with their intervals, and the methods' curves."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter

from protofleet.experiments.claim_curves import by_bytes, compared, curve_section
from protofleet.experiments.claim_results import ClaimResult
from protofleet.experiments.claim_text import label_of
from protofleet.experiments.comparisons import Compared, Estimate, Pair, of_seed
from protofleet.experiments.config import Section
from protofleet.experiments.table import LOSS
from protofleet.report._figures import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SKY, STYLE
from protofleet.strategies.tasks import METRICS

_COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, INK, "#8c6d31")
_LINES = ("-", (0, (4, 1.4)))
_MARKERS = "osD^v<>"
_MARKS = 8
_WIDTHS_IN = (7.6, 5.6)
_ROW_IN, _FRAME_IN, _LINE_IN = 0.34, 1.1, 0.2
_CURVE_IN = 3.6
_TITLE = 130
"""Letters in a line of the title, with curves; half as many without."""
_BELOW = 0.2
"""How far seeds' dots stand below their interval, in rows."""
_AXES = {
    "points": "Difference (percentage points)",
    "relative": "Difference (per cent of the other's)",
    "loss": "Difference of the loss",
    "ratio": "Ratio",
}


def draw(result: ClaimResult, path: Path) -> None:
    """Draw a claim's comparisons, and the curves of the compared methods.

    On the left a dot for each seed, its mean with the 95 % interval, and what the paper prints; the
    shaded side of the dashed line is where the claim has the whole interval. On the right means
    over the seeds, where they are few in a band of one standard deviation, over the rounds, or over
    the bytes where the claim is about those.

    Args:
        result: with at least one estimate.
        path: file to write, .png or .svg.
    """
    groups: dict[str, list[Compared]] = {}
    for one in result.outcomes:
        if one.estimate is not None:
            groups.setdefault(_unit(one), []).append(one)
    section = curve_section(result.outcomes) if result.curves else None
    widths = _WIDTHS_IN if section else _WIDTHS_IN[:1]
    heights = [_FRAME_IN + _ROW_IN * len(rows) for rows in groups.values()]
    title = textwrap.wrap(result.claim, _TITLE * len(widths) // len(_WIDTHS_IN))
    height = max(sum(heights), _CURVE_IN) + 0.5 + _LINE_IN * len(title)
    with mpl.rc_context(STYLE):
        figure: Any = Figure(figsize=(sum(widths), height), layout="constrained")
        grid = figure.add_gridspec(
            len(groups), len(widths), height_ratios=heights, width_ratios=widths
        )
        figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
        for place, (unit, rows) in enumerate(groups.items()):
            _forest(figure.add_subplot(grid[place, 0]), unit, rows)
        if section is not None:
            _curves(figure.add_subplot(grid[:, 1]), result, section)
        keys, columns = _keys(result), 2 * len(widths)
        figure.legend(handles=keys, loc="outside lower left", ncols=columns, fontsize=8)
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def look_of(number: int) -> dict[str, Any]:
    """Colour and line of a claim's method, by its place among the compared ones."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "ls": _LINES[number // len(_COLOURS) % len(_LINES)],
    }


def _unit(one: Compared) -> str:
    if one.is_ratio:
        return "ratio"
    if one.relative:
        return "relative"
    return "loss" if one.section == LOSS else "points"


def _keys(result: ClaimResult) -> list[Any]:
    shown = [one for one in result.outcomes if one.estimate is not None]
    kinds = {one.estimate.kind for one in shown if one.estimate is not None}
    keys: list[Any] = [Line2D([], [], color=SKY, marker="o", ls="", ms=4, label="one seed")]
    if any(_is_bound(pair) for one in shown for pair in one.pairs):
        label = "one seed's bound: a target was never reached"
        keys.append(Line2D([], [], color=SKY, marker="<", ls="", ms=5, mfc="white", label=label))
    if kinds - {"order"}:
        keys.append(_estimate_key("s", "mean, 95 % interval"))
    if "order" in kinds:
        keys.append(_estimate_key("d", "median, its interval; an arrow: no bound"))
    if any(one.paper is not None or one.elsewhere for one in shown):
        keys.append(_hollow([], [], label="the paper"))
    keys.append(Patch(color=GREEN, alpha=0.1, lw=0, label="the claimed side"))
    if result.curves and _has_bands(result):
        keys.append(Patch(color=INK, alpha=0.15, lw=0, label="curves: ± std over seeds"))
    return keys


def _estimate_key(marker: str, label: str) -> Line2D:
    return Line2D([], [], color=BLUE, marker=marker, lw=2.2, ms=5, label=label)


def _hollow(x: Sequence[float], y: Sequence[float], **more: Any) -> Line2D:
    return Line2D(x, y, marker="D", ls="", ms=6.5, mfc="white", mec=RED, mew=1.6, **more)


def _forest(axes: Any, unit: str, rows: Sequence[Compared]) -> None:
    """A line for each comparison, the first on top."""
    if unit == "ratio":
        axes.set_xscale("log")
    estimates = [one.estimate for one in rows if one.estimate is not None]
    for place, (one, estimate) in enumerate(zip(rows, estimates, strict=True)):
        _comparison(axes, place, one, estimate)
    edges = axes.get_xlim()
    axes.set_xlim(edges)
    for place, (one, estimate) in enumerate(zip(rows, estimates, strict=True)):
        _claimed_side(axes, place, one, edges)
        _open_ends(axes, place, estimate, edges)
    if unit == "ratio":
        _plain_ticks(axes)
    axes.set_yticks(range(len(rows)), [label_of(one) for one in rows], fontsize=8)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=_AXES[unit])
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _plain_ticks(axes: Any) -> None:
    """Plain numbers on a logarithmic axis, whether it spans powers of ten or some per cent."""
    low, high = axes.get_xlim()
    if high <= 4 * low:
        ticks: Locator = MaxNLocator(6)
    else:
        ticks = LogLocator(subs=(1, 2, 5) if high <= 1000 * low else (1,))
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _comparison(axes: Any, place: int, one: Compared, estimate: Estimate) -> None:
    for pair in one.pairs:
        look = {"mfc": "white"} if _is_bound(pair) else {"mew": 0, "alpha": 0.55}
        axes.plot(of_seed(one, pair), place + _BELOW, _marker(pair), color=SKY, ms=4.5, **look)
    ends = [end for end in _bounds(estimate) if end is not None]
    axes.plot(_within(ends, estimate), [place] * 2, color=BLUE, lw=2.2, solid_capstyle="butt")
    marker = "d" if estimate.kind == "order" else "s"
    axes.plot(estimate.value, place, marker, color=BLUE, ms=5.5, mec="white", mew=0.6)
    printed = [*([] if one.paper is None else [one.paper]), *one.elsewhere.values()]
    if printed:
        axes.add_line(_hollow(printed, [place] * len(printed), zorder=4))
        axes.update_datalim([(value, place) for value in printed])
        axes.autoscale_view()
    bar = [place - 0.45, place + 0.45]
    axes.plot([one.threshold] * 2, bar, color=INK, lw=1, ls=(0, (3, 2)), zorder=0)
    told, beside = f"{one.verdict}, n = {len(one.pairs)}", ("axes fraction", "data")
    axes.annotate(told, (1.01, place), xycoords=beside, va="center", fontsize=7.5)


def _bounds(estimate: Estimate) -> tuple[float | None, float | None]:
    """Both ends of an interval; None: open, as of a ratio's order statistics down to 0."""
    is_open = estimate.kind == "order" and not estimate.low
    return None if is_open else estimate.low, estimate.high


def _within(ends: Sequence[float], estimate: Estimate) -> tuple[float, float]:
    """From the lowest to the highest of the interval's ends that are known, and its value."""
    known = [*ends, estimate.value]
    return min(known), max(known)


def _is_bound(pair: Pair) -> bool:
    """Whether a run never reached its target, so that a bound of the ratio is known alone."""
    return pair.value is None or pair.other is None


def _marker(pair: Pair) -> str:
    """An arrow the way in which the ratio may lie."""
    if not _is_bound(pair):
        return "o"
    if pair.value is None:
        return "d" if pair.other is None else ">"
    return "<"


def _claimed_side(axes: Any, place: int, one: Compared, edges: tuple[float, float]) -> None:
    end = edges[1] if one.expect == "greater" else edges[0]
    axes.fill_between(
        [one.threshold, end], place - 0.45, place + 0.45, color=GREEN, alpha=0.1, lw=0, zorder=0
    )


def _open_ends(axes: Any, place: int, estimate: Estimate, edges: tuple[float, float]) -> None:
    """Arrows to the frame where a ratio's interval has no lower or upper bound."""
    for end, edge in zip(_bounds(estimate), edges, strict=True):
        if end is None:
            arrow = {"arrowstyle": "->", "color": BLUE, "lw": 2.2, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (edge, place), (estimate.value, place), arrowprops=arrow)


def _has_bands(result: ClaimResult) -> bool:
    """Bands of more curves than there are colours would hide the curves."""
    return len(result.curves) <= len(_COLOURS)


def _curves(axes: Any, result: ClaimResult, section: Section) -> None:
    """One section of every method that is compared with another."""
    over_bytes = by_bytes(result.outcomes)
    drawn = [label for label in compared(result.outcomes) if label in result.curves]
    for number, label in enumerate(drawn):
        look = look_of(number)
        x, mean, std = (
            np.array(column) for column in zip(*result.curves[label].points, strict=True)
        )
        every = slice(number % max(1, len(x) // _MARKS), None, max(1, len(x) // _MARKS))
        marker = _MARKERS[number % len(_MARKERS)]
        axes.plot(x, mean, lw=1.6, **look)
        axes.plot(x[every], mean[every], marker, color=look["color"], ms=4.5, mec="white", mew=0.4)
        axes.plot([], [], marker=marker, lw=1.6, ms=4.5, label=label, **look)
        if _has_bands(result):
            axes.fill_between(x, mean - std, mean + std, color=look["color"], alpha=0.1, lw=0)
    name = METRICS[result.metric].label
    axes.set_title(section, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("MB per client, up and down" if over_bytes else "Round")
    axes.set_ylabel("Loss" if section == LOSS else f"{name[0].upper()}{name[1:]} (%)")
    if over_bytes:
        axes.set_xscale("log")
        _plain_ticks(axes)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
