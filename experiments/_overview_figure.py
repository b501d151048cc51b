"""The picture of all methods on several data sets: score over bytes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, NullFormatter

from protofleet.experiments.comparisons import moved, scores_after
from protofleet.experiments.overview import BASELINE, DataSet, Overview
from protofleet.experiments.store import MethodResult
from protofleet.experiments.table import score_of, trained
from protofleet.report._figures import BLUE, FAINT, INK, RED, STYLE

_PANEL_IN = (5.2, 3.9)
_COLUMNS = 2
_MUTED = "#9aa5b1"
_HALO = [withStroke(linewidth=2.2, foreground="white")]
_ALIKE = 1.01
_Curve = list[tuple[float, float]]


def draw(found: Overview, path: Path) -> None:
    """Draw the first section's score over the bytes that a client has moved, a panel a data set.

    Lines are means over the seeds, round by round; the end of each is a circle. Methods that no
    other beats with fewer bytes are named and joined; FedAvg is red, with its bytes as a dotted
    line. Training alone moves nothing, so it is a level.

    Args:
        found: with at least one data set.
        path: file to write, .png or .svg.
    """
    data_sets = found.data_sets
    rows = math.ceil(len(data_sets) / _COLUMNS)
    columns = min(_COLUMNS, len(data_sets))
    with mpl.rc_context(STYLE):
        size = (_PANEL_IN[0] * columns, _PANEL_IN[1] * rows + 0.3)
        figure: Any = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, one in zip(panels, data_sets, strict=False):
            _panel(axes, one, found.runs[one.name])
        for axes in panels[len(data_sets) :]:
            axes.set_visible(False)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=110, metadata=metadata)


def _panel(axes: Any, one: DataSet, found: Mapping[str, Sequence[MethodResult]]) -> None:
    curves: dict[str, _Curve] = {}
    entries = {entry.label: entry for entry in one.entries if not entry.bound}
    for label in entries:
        runs = [run for run in found[label] if run.seed in one.seeds]
        if curve := _curve(one, runs):
            curves[label] = curve
    for label in [label for label, entry in entries.items() if entry.alone and label in curves]:
        _level(axes, label, curves.pop(label)[-1][1])
    ends = {label: curve[-1] for label, curve in curves.items()}
    front = pareto(ends)
    colours = dict.fromkeys(front, BLUE) | {
        label: RED
        for label, entry in entries.items()
        if entry.strategy == BASELINE and not entry.own_model and label in curves
    }
    for label, curve in curves.items():
        colour, strong = colours.get(label, _MUTED), label in colours
        axes.plot(*zip(*curve, strict=True), color=colour, lw=1.3 if strong else 0.8,
                  alpha=1 if strong else 0.55, zorder=3 if strong else 2)  # fmt: skip
        axes.plot(*curve[-1], "o", color=colour, ms=5 if strong else 3.5, mec="white", mew=0.5,
                  zorder=4)  # fmt: skip
    points = [ends[label] for label in front]
    axes.plot(*zip(*points, strict=True), color=INK, lw=0.9, ls=(0, (2, 2)), zorder=3)
    _names(axes, {label: ends[label] for label in sorted(colours, key=ends.__getitem__)}, colours)
    axes.axvline(one.mb, color=RED, lw=0.8, ls=":", zorder=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(which="minor", axis="x", color=FAINT, linewidth=0.3)
    axes.set_title(one.table, loc="left", fontsize=10, fontweight="bold")
    axes.set(xlabel="MB that a client has moved", ylabel=f"{one.sections[0]} (%)")


def _level(axes: Any, label: str, score: float) -> None:
    axes.axhline(score, color=INK, lw=0.9, ls=(0, (6, 2)), zorder=1)
    place = {"xytext": (4, 3), "textcoords": "offset points", "xycoords": ("axes fraction", "data")}
    axes.annotate(
        f"{label}: moves nothing", (0, score), fontsize=8, color=INK, path_effects=_HALO, **place
    )


def pareto(ends: Mapping[str, tuple[float, float]]) -> list[str]:
    """Of points (cost, score) those without another as dear or less that scores more, by cost.

    Costs within a hundredth are alike: bytes differ by less with the lengths of numbers.
    """
    order = sorted(ends, key=lambda one: (ends[one], one))
    return [
        label
        for label in order
        if not any(_beats(ends[other], ends[label]) for other in order if other != label)
    ]


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    (cost, score), (per, against) = one, other
    return cost <= _ALIKE * per and (score > against or (score == against and cost < per))


def _curve(one: DataSet, runs: Sequence[MethodResult]) -> _Curve:
    """Mean bytes and score over the seeds after each round; nothing where no byte moves."""
    found = []
    for done in range(1, min((len(trained(run)) for run in runs), default=0) + 1):
        scores = [
            score_of(run, scores_after(run, done), one.sections[0], one.metric) for run in runs
        ]
        means = [score.mean for score in scores if score is not None]
        bytes_ = statistics.fmean(moved(run)[done] for run in runs)
        if len(means) == len(runs) and bytes_ > 0:
            found.append((bytes_ / 1e6, statistics.fmean(means)))
    return found


def _names(axes: Any, ends: Mapping[str, tuple[float, float]], colours: Mapping[str, str]) -> None:
    """Names above their points; below where two are close together."""
    ordered = list(ends.items())
    above = [True] * len(ordered)
    for number, ((_, (x, y)), (_, (next_x, next_y))) in enumerate(pairwise(ordered)):
        close = math.log10(next_x / x) < 0.5 and abs(next_y - y) < 6
        above[number + 1] = not above[number] if close else True
    for (label, point), up in zip(ordered, above, strict=True):
        axes.annotate(label, point, (0, 7 if up else -13), textcoords="offset points",
                      ha="center", path_effects=_HALO, fontsize=8, fontweight="bold",
                      color=colours[label], zorder=5)  # fmt: skip
