"""The picture of what defaults do for owners: where each strategy ends on each task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from protofleet.experiments.outcomes import StrategyOutcome, TaskOutcome
from protofleet.report._figures import BLUE, INK, RED, STYLE
from protofleet.strategies.tasks import METRICS

_COLUMNS = 3
_WIDTH_IN, _ROW_IN, _FRAME_IN = 4.3, 0.17, 0.9
_MOST_HARMED = 0.1
"""Share of owners; more are told by colour."""


def draw(tasks: Sequence[TaskOutcome], path: Path) -> None:
    """Draw a panel for each task, its strategies from the best down.

    Args:
        tasks: with at least one.
        path: file to write, .png or .svg.
    """
    columns = min(_COLUMNS, len(tasks))
    lines = math.ceil(len(tasks) / columns)
    most = max(len(task.rows) for task in tasks)
    with mpl.rc_context(STYLE):
        size = (_WIDTH_IN * columns, (_ROW_IN * most + _FRAME_IN) * lines)
        figure: Any = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).flatten()
        for axes, task in zip(panels, tasks, strict=False):
            _panel(axes, task)
        for axes in panels[len(tasks) :]:
            axes.set_visible(False)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=110, metadata=metadata)


def _panel(axes: Any, task: TaskOutcome) -> None:
    metric = METRICS[task.metric]
    rows = sorted(task.rows.values(), key=lambda row: (row.end, row.label))
    if metric.lower_is_better:
        rows.reverse()
    for place, row in enumerate(rows):
        ends = [metric.scaled(one) for one in row.ends]
        colour = RED if row.harmed > _MOST_HARMED * row.owners else BLUE
        axes.plot([min(ends), max(ends)], [place, place], color=colour, lw=1.1, alpha=0.6)
        axes.plot(metric.scaled(row.end), place, "o", color=colour, ms=4)
    starts = [row for row in rows if not row.own_model] or rows
    axes.axvline(metric.scaled(starts[0].start), color=INK, lw=0.9, ls=":")
    if task.alone is not None:
        axes.axvline(metric.scaled(task.alone), color=INK, lw=0.9, ls=(0, (6, 2)))
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows], fontsize=7)
    axes.set_ylim(-0.8, len(rows) - 0.2)
    axes.grid(axis="y", visible=False)
    axes.set_title(task.name.rpartition("/")[2], loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel(f"{metric.title}, less is better" if metric.lower_is_better else metric.title)


def _name(row: StrategyOutcome) -> str:
    return f"{row.label}°" if row.own_model else row.label
