"""The picture of a claim: differences by seed with their intervals, and the methods' curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from protofleet.experiments.claim_results import ClaimResult
from protofleet.experiments.claim_text import label_of
from protofleet.experiments.comparisons import Outcome, Pair, counted_ratio
from protofleet.experiments.config import Section
from protofleet.experiments.store import MethodResult
from protofleet.experiments.table import LOSS, score_of, trained
from protofleet.report._figures import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SKY, STYLE
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS

_COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY)
_LINES = ("-", (0, (5, 1.6)), (0, (1, 1.2)))
_MARKERS = "osD^v<>"
_MARKS = 8
_WIDTHS_IN = (7.6, 4.6)
_ROW_IN, _FRAME_IN = 0.34, 1.1
_CURVE_IN = 3.6
_BELOW = 0.2
"""How far seeds' dots stand below their interval, in rows."""
_AXES = {
    "points": "Difference (percentage points)",
    "loss": "Difference of the loss",
    "ratio": "Ratio",
}


def draw(result: ClaimResult, runs: Mapping[str, Sequence[MethodResult]], path: Path) -> None:
    """Draw a claim's comparisons, and the curves of the methods of its first one.

    On the left a dot for each seed, its mean with the 95 % interval, and what the paper prints; the
    dashed line is what an interval has to be beyond. On the right means over the seeds in a band of
    one standard deviation, over the rounds, or over the bytes where those are made equal.

    Args:
        result: with at least one estimate.
        runs: finished ones by label.
        path: file to write, .png or .svg.
    """
    groups: dict[str, list[Outcome]] = {}
    for one in result.outcomes:
        if one.estimate is not None:
            groups.setdefault(_unit(one), []).append(one)
    first = next(
        (one for one in result.outcomes if one.section and not one.detail and one.estimate), None
    )
    heights = [_FRAME_IN + _ROW_IN * len(rows) for rows in groups.values()]
    widths = _WIDTHS_IN if first else _WIDTHS_IN[:1]
    with mpl.rc_context(STYLE):
        figure: Any = Figure(
            figsize=(sum(widths), max(sum(heights), _CURVE_IN) + 0.5), layout="constrained"
        )
        grid = figure.add_gridspec(
            len(groups), len(widths), height_ratios=heights, width_ratios=widths
        )
        figure.suptitle(result.id, x=0.01, ha="left", fontsize=12, fontweight="bold")
        for place, (unit, rows) in enumerate(groups.items()):
            _forest(figure.add_subplot(grid[place, 0]), unit, rows)
        if first is not None:
            _curves(figure.add_subplot(grid[:, 1]), result, runs, first)
        figure.legend(handles=_keys(result.outcomes), loc="outside lower left", ncols=4, fontsize=8)
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _unit(one: Outcome) -> str:
    if one.is_ratio:
        return "ratio"
    return "loss" if one.section == LOSS else "points"


def _keys(outcomes: Sequence[Outcome]) -> list[Any]:
    keys: list[Any] = [
        Line2D([], [], color=SKY, marker="o", ls="", ms=4, label="one seed"),
        Line2D([], [], color=BLUE, marker="s", lw=2.2, ms=5, label="mean, 95 % interval"),
    ]
    if any(one.paper is not None for one in outcomes):
        keys.append(_hollow([], [], label="the paper"))
    if any(one.section for one in outcomes):
        keys.append(Patch(color=INK, alpha=0.15, lw=0, label="curves: ± std over seeds"))
    return keys


def _hollow(x: Sequence[float], y: Sequence[float], **more: Any) -> Line2D:
    return Line2D(x, y, marker="D", ls="", ms=6.5, mfc="white", mec=RED, mew=1.6, **more)


def _forest(axes: Any, unit: str, rows: Sequence[Outcome]) -> None:
    """A line for each comparison, the first on top."""
    if unit == "ratio":
        axes.set_xscale("log")
    for place, one in enumerate(rows):
        _comparison(axes, place, one)
    if unit == "ratio":
        _plain_ticks(axes)
    axes.set_yticks(range(len(rows)), [label_of(one) for one in rows], fontsize=8)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=_AXES[unit])
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _plain_ticks(axes: Any) -> None:
    """Plain numbers on a logarithmic axis, whether it spans powers of ten or some per cent."""
    low, high = axes.get_xlim()
    wide = high > 4 * low
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _comparison(axes: Any, place: int, one: Outcome) -> None:
    estimate = one.estimate
    if estimate is None:
        return
    seeds = [_seed(one, pair) for pair in one.pairs]
    axes.plot(seeds, [place + _BELOW] * len(seeds), "o", color=SKY, ms=4, alpha=0.55, mew=0)
    low = estimate.low or min(seeds)  # a ratio without a lower bound
    high = max(seeds) if estimate.high is None else estimate.high
    axes.plot([low, high], [place, place], color=BLUE, lw=2.2, solid_capstyle="butt")
    axes.plot(estimate.value, place, "s", color=BLUE, ms=5, mec="white", mew=0.6)
    printed = [*([] if one.paper is None else [one.paper]), *one.elsewhere.values()]
    if printed:
        axes.add_line(_hollow(printed, [place] * len(printed), zorder=4))
        axes.update_datalim([(value, place) for value in printed])
        axes.autoscale_view()
    axes.plot(
        [one.threshold] * 2, [place - 0.45, place + 0.45], color=INK, lw=1, ls=(0, (3, 2)), zorder=0
    )
    told, beside = f"{one.verdict}, n = {len(one.pairs)}", ("axes fraction", "data")
    axes.annotate(told, (1.01, place), xycoords=beside, va="center", fontsize=7.5)


def _seed(one: Outcome, pair: Pair) -> float:
    if one.is_ratio:
        return counted_ratio(pair)
    return (pair.value or 0.0) - (pair.other or 0.0)


def _curves(
    axes: Any,
    result: ClaimResult,
    runs: Mapping[str, Sequence[MethodResult]],
    first: Outcome,
) -> None:
    """The first comparison's section, of every method that is compared with another."""
    section = first.section or "personalisation"
    by_bytes = first.measure == "equal_bytes"
    labels = dict.fromkeys(label for one in result.outcomes for label in (one.method, one.against))
    for number, label in enumerate(labels):
        look = {
            "color": _COLOURS[number % len(_COLOURS)],
            "ls": _LINES[number // len(_COLOURS) % len(_LINES)],
        }
        points = list(_points(runs.get(label, ()), section, result.metric, by_bytes=by_bytes))
        if not points:
            continue
        x, mean, std = (np.array(column) for column in zip(*points, strict=True))
        every = slice(number % max(1, len(x) // _MARKS), None, max(1, len(x) // _MARKS))
        marker = _MARKERS[number % len(_MARKERS)]
        axes.plot(x, mean, lw=1.6, **look)
        axes.plot(x[every], mean[every], marker, color=look["color"], ms=4.5, mec="white", mew=0.4)
        axes.plot([], [], marker=marker, lw=1.6, ms=4.5, label=label, **look)
        axes.fill_between(x, mean - std, mean + std, color=look["color"], alpha=0.12, lw=0)
    name = METRICS[result.metric].label
    axes.set_title(section, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("MB per client, up and down" if by_bytes else "Round")
    axes.set_ylabel("Loss" if section == LOSS else f"{name[0].upper()}{name[1:]} (%)")
    if by_bytes:
        axes.set_xscale("log")
        _plain_ticks(axes)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8, loc="best")


def _points(
    runs: Sequence[MethodResult], section: Section, metric: MetricName, *, by_bytes: bool
) -> Iterator[tuple[float, float, float]]:
    """Of every scored round: its place, and mean and standard deviation over the seeds."""
    found: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        rounds = trained(run)
        moved = accumulate(one.bytes_up + one.bytes_down for one in rounds)
        for one, total in zip(rounds, moved, strict=True):
            score = score_of(run, one.scores, section, metric)
            if score is not None:
                place = total / max(run.clients, 1) / 1e6 if by_bytes else one.round_id
                found.setdefault(one.round_id, []).append((place, score.mean))
    for _, values in sorted(found.items()):
        places, scores = zip(*values, strict=True)
        yield float(np.mean(places)), float(np.mean(scores)), float(np.std(scores))
