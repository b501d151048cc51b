"""The picture of all methods on several data sets: score over bytes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from protofleet.experiments.comparisons import moved, scores_after
from protofleet.experiments.overview import BASELINE, DataSet, Overview
from protofleet.experiments.store import MethodResult
from protofleet.experiments.table import score_of, trained
from protofleet.report._figures import BLUE, FAINT, INK, RED, STYLE

_PANEL_IN = (6.4, 3.9)
_COLUMNS = 2
_MUTED = "#9aa5b1"
_ALIKE = 1.01
_LETTERS = 24
_LINE, _GAP = 0.042, 0.02
"""Heights of a line of a name and between names, of a panel's."""
_Curve = list[tuple[float, float]]


class _Name(NamedTuple):
    """A point's name, and whether a line leads there; without one, its score alone counts."""

    label: str
    point: tuple[float, float]
    colour: str
    leads: bool = True


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
    entries = {entry.label: entry for entry in one.entries if entry.ranked}
    for label in entries:
        runs = [run for run in found[label] if run.seed in one.seeds]
        if curve := _curve(one, runs):
            curves[label] = curve
    names = []
    for label in [label for label, entry in entries.items() if entry.alone and label in curves]:
        score = curves.pop(label)[-1][1]
        axes.axhline(score, color=INK, lw=0.9, ls=(0, (6, 2)), zorder=1)
        names.append(_Name(f"╌╌ {label}: moves nothing", (1, score), INK, leads=False))
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
    names += [_Name(label, ends[label], colour) for label, colour in colours.items()]
    axes.axvline(one.mb, color=RED, lw=0.8, ls=":", zorder=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(which="minor", axis="x", color=FAINT, linewidth=0.3)
    axes.set_title(one.table, loc="left", fontsize=10, fontweight="bold")
    axes.set(xlabel="MB that a client has moved", ylabel=f"{one.sections[0]} (%)")
    _names(axes, names)


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


def _names(axes: Any, names: Sequence[_Name]) -> None:
    """Names in a column right of the panel, at their points' heights as far as there is room."""
    low, high = axes.get_ylim()
    ordered = sorted(names, key=lambda one: -one.point[1])
    texts = [fill(one.label, _LETTERS) for one in ordered]
    sizes = [_LINE * (text.count("\n") + 1) + _GAP for text in texts]
    wanted = [(one.point[1] - low) / (high - low) for one in ordered]
    for name, text, place in zip(ordered, texts, apart(wanted, sizes), strict=True):
        line = {"arrowstyle": "-", "color": name.colour, "lw": 0.5, "alpha": 0.6,
                "shrinkA": 1, "shrinkB": 3}  # fmt: skip
        axes.annotate(
            text, name.point, (1.05, place), textcoords="axes fraction", ha="left", va="center",
            color=name.colour, fontsize=8, fontweight="bold", annotation_clip=False, zorder=5,
            arrowprops=line if name.leads else None,
        )  # fmt: skip


def apart(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Middles of labels of these heights, from the highest down, near where they are wanted.

    Args:
        wanted: middles, in descending order.
        sizes: heights, in the same unit; all of them fit between 1 and 0, or the last are below.

    Returns:
        Middles such that no two overlap, and between 1 and 0 while there is room.
    """
    found: list[float] = []
    top = 1.0
    for number, (middle, size) in enumerate(zip(wanted, sizes, strict=True)):
        room = sum(sizes[number:])  # what has to fit below
        place = min(max(middle, room - size / 2), top - size / 2)
        found.append(place)
        top = place - size / 2
    return found
