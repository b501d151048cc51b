"""Pictures of an experiment: curves over the rounds, and bars beside the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.experiments.config import Experiment, ScoreSettings, Section
from protofleet.experiments.store import MethodResult
from protofleet.experiments.table import LOSS, Table, group, quoted, score_of, trained
from protofleet.federation.records import RoundRecord
from protofleet.report._figures import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SKY, STYLE
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS

_COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, "#5b4b8a", "#7b8794")
_LINES = ("-", (0, (5, 1.6)))
_MARKERS = "osD^v<>"
_PAPER = "#b3bcc5"
_PANEL_IN = (4.9, 4.3)
_ROW_IN, _LEGEND_ROW_IN = 0.42, 0.19
_NOTE_WIDTH = 60
_MARKS = 9
_TITLES: dict[Section, str] = {
    "after_fit": "personalisation, after local training",
    "loss": "mean loss on the own test parts",
}
"""Of sections whose names do not say what they are."""
_Points = list[tuple[float, float, float]]


def curves(experiment: Experiment, results: Sequence[MethodResult], path: Path) -> None:
    """Draw the metric over the rounds, a panel per section and a line per method.

    Lines are means over the seeds, bands one standard deviation over them; a star after the last
    round is the final fit. Dotted lines are what the paper prints. A panel names the methods that
    have run and have no such score.

    Args:
        experiment: its file.
        results: of its methods and seeds.
        path: file to write, .png or .svg.

    Raises:
        InputError: no round was scored, or a result lacks the metric.
    """
    by_label = {label: quoted(runs) for label, runs in group(experiment, results).items()}
    scored = {
        section: [label for label, runs in by_label.items() if _scored(runs, section)]
        for section in experiment.score.sections
    }
    shown = [section for section, labels in scored.items() if labels]
    if not shown:
        raise InputError(
            f"plot '{path}': expected scored rounds of '{experiment.title}', got none; "
            "run it first: protofleet experiment run"
        )
    labels = [label for label, runs in by_label.items() if runs]
    looks = {label: _look(number) for number, label in enumerate(by_label)}
    with mpl.rc_context(STYLE):
        keys = _curve_keys(experiment, by_label, {label: looks[label] for label in labels})
        figure, panels = _figure(experiment.title, len(shown), _PANEL_IN[1], keys)
        for axes, section in zip(panels, shown, strict=True):
            for order, method in enumerate(experiment.methods):
                runs, look = by_label[method.label], looks[method.label]
                _line(axes, _points(runs, section, experiment.score.metric), look, order)
                _star(axes, runs, section, experiment.score.metric, look)
                if runs and (printed := method.paper.get(section)):
                    _paper_line(axes, printed.mean, look)
            _title(axes, section)
            lacking = [label for label in labels if label not in scored[section]]
            axes.set(xlabel="\n".join(["Round", *_without(lacking)]))
            axes.margins(x=0.02)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0].set_ylabel(_metric(experiment.score))
        _save(figure, path)


def bars(table: Table, path: Path) -> None:
    """Draw each method's score beside the paper's, a panel per section.

    Args:
        table: of the experiment.
        path: file to write, .png or .svg.
    """
    sections = table.score.sections
    height = 0.9 + _ROW_IN * len(table.rows)
    keys: list[Any] = [Patch(color=BLUE, label="ours")]
    keys += [Patch(color=_PAPER, label="paper")] if _compared(table) else []
    keys += [Line2D([], [], color=INK, lw=1.2, label="± one standard deviation")]
    with mpl.rc_context(STYLE):
        figure, panels = _figure(table.title, len(sections), height, keys)
        for axes, section in zip(panels, sections, strict=True):
            _section_bars(axes, table, section)
        for axes in panels[1:]:
            axes.tick_params(axis="y", labelleft=False)
        _same_scale([a for a, section in zip(panels, sections, strict=True) if section != LOSS])
        _save(figure, path)


def _figure(title: str, panels: int, height: float, keys: list[Any]) -> tuple[Any, list[Any]]:
    """A figure with a row of panels and its legend below them."""
    width = max(6.4, _PANEL_IN[0] * panels)
    columns = max(1, min(len(keys), int(width / 2.1)))
    legend = 0.2 + _LEGEND_ROW_IN * math.ceil(len(keys) / columns)
    figure: Any = Figure(figsize=(width, height + legend), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.legend(handles=keys, loc="outside lower left", ncols=columns, fontsize=8.5,
                  handlelength=3.4, columnspacing=1.6)  # fmt: skip
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def _look(number: int) -> dict[str, Any]:
    """Colour, marker and dashes; 8 colours and 7 markers repeat together after 56 methods."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "ls": _LINES[number // len(_COLOURS) % len(_LINES)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }


def _curve_keys(
    experiment: Experiment,
    by_label: dict[str, list[MethodResult]],
    looks: dict[str, dict[str, Any]],
) -> list[Any]:
    keys: list[Any] = [
        Line2D([], [], ms=4.5, lw=1.7, label=label, **look) for label, look in looks.items()
    ]
    runs = [run for one in by_label.values() for run in one]
    if any(len(one) > 1 for one in by_label.values()):
        keys.append(Patch(color=INK, alpha=0.15, lw=0, label="± std over seeds"))
    if any(method.paper for method in experiment.methods if method.label in looks):
        look: dict[str, Any] = {"marker": "o", "markevery": [1], "mfc": "white", "ms": 5.5}
        paper = _paper_key(experiment, by_label)
        keys.append(Line2D([0, 1], [0, 0], color=INK, ls=":", lw=1.1, label=paper, **look))
    if any(one.final for run in runs for one in run.rounds):
        keys.append(Line2D([], [], color=INK, ls="", marker="*", ms=9, label="final fit"))
    return keys


def _paper_key(experiment: Experiment, by_label: dict[str, list[MethodResult]]) -> str:
    """Says which runs beside the paper's figures have fewer rounds than the file asks for.

    These need not be the paper's: a small file has its own number.
    """
    printed = [one for one in experiment.methods if one.paper and by_label[one.label]]
    shorter: dict[str, list[str]] = {}
    for method in printed:
        asked = experiment.rounds_of(method)
        for done in sorted({len(trained(run)) for run in by_label[method.label]}):
            if done < asked:
                shorter.setdefault(f"{done} of {asked}", []).append(method.label)
    if [one.label for one in printed] in shorter.values():
        return f"paper; ours after {next(iter(shorter))} rounds"
    told = [f"{', '.join(labels)} after {rounds} rounds" for rounds, labels in shorter.items()]
    return "; ".join(["paper", *told])


def _scored(runs: Sequence[MethodResult], section: Section) -> bool:
    return any(
        (one.scores.own_loss is not None if section == LOSS else section in one.scores.sections)
        for run in runs
        for one in run.rounds
    )


def _points(runs: Sequence[MethodResult], section: Section, metric: MetricName) -> _Points:
    """Round, mean and standard deviation over the seeds, of every scored round."""
    return _over_seeds([(run, one) for run in runs for one in trained(run)], section, metric)


def _over_seeds(
    rounds: Sequence[tuple[MethodResult, RoundRecord]], section: Section, metric: MetricName
) -> _Points:
    found: dict[int, list[float]] = {}
    for run, one in rounds:
        score = score_of(run, one.scores, section, metric)
        if score is not None:
            found.setdefault(one.round_id, []).append(score.mean)
    return [(x, float(np.mean(y)), float(np.std(y))) for x, y in sorted(found.items())]


def _line(axes: Any, points: _Points, look: dict[str, Any], order: int) -> None:
    if not points:
        return
    if len(points) == 1:  # trained without rounds: as good at any of them
        axes.axhline(points[0][1], lw=1.7, ms=4.5, mec="white", mew=0.4, **look)
        return
    x, mean, std = (np.array(column) for column in zip(*points, strict=True))
    every = max(min(3, len(x)), len(x) // _MARKS)
    shown = slice(order % every, None, every)  # so that methods with equal curves both show
    axes.plot(x, mean, lw=1.7, color=look["color"], ls=look["ls"])
    axes.plot(x[shown], mean[shown], ms=4.5, mec="white", mew=0.4, zorder=3, **{**look, "ls": ""})
    low, high = np.clip(mean - std, 0, 100), np.clip(mean + std, 0, 100)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.12, lw=0)


def _star(
    axes: Any,
    runs: Sequence[MethodResult],
    section: Section,
    metric: MetricName,
    look: dict[str, Any],
) -> None:
    finals = [(run, one) for run in runs for one in run.rounds if one.final]
    for x, mean, std in _over_seeds(finals, section, metric):
        axes.errorbar(x, mean, std, color=look["color"], marker="*", ms=10, mec="white", lw=1)


def _paper_line(axes: Any, value: float, look: dict[str, Any]) -> None:
    """A dotted line that ends in the method's hollow marker, because colours come back."""
    axes.axhline(value, color=look["color"], ls=":", lw=1.1, alpha=0.5, zorder=1)
    axes.plot(
        1, value, color=look["color"], marker=look["marker"], ms=5.5, mfc="white", mew=1.2,
        transform=axes.get_yaxis_transform(), clip_on=False, zorder=4,
    )  # fmt: skip


def _section_bars(axes: Any, table: Table, section: Section) -> None:
    cells = [row.cells[section] for row in table.rows]
    places = np.arange(len(cells), dtype=np.float64)
    ours = [(cell.mean, cell.std) for cell in cells]
    theirs = [(cell.paper.mean, cell.paper.std) if cell.paper else (None, None) for cell in cells]
    aside = 0.19 if _compared(table) else 0.0
    _bar_row(axes, places - aside, ours, BLUE)
    _bar_row(axes, places + aside, theirs, _PAPER)
    axes.set_yticks(places, [_short(row.label) for row in table.rows])
    name = "Mean loss" if section == LOSS else _metric(table.score)
    axes.set(ylim=(len(cells) - 0.45, -0.55), xlabel=name)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    _title(axes, section)


def _title(axes: Any, section: Section) -> None:
    title = _TITLES.get(section, section)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")


def _without(labels: Sequence[str]) -> list[str]:
    """Lines that name the methods of which a panel has no score."""
    return wrap(f"no such score: {', '.join(labels)}", _NOTE_WIDTH) if labels else []


def _compared(table: Table) -> bool:
    return any(cell.paper is not None for row in table.rows for cell in row.cells.values())


def _same_scale(panels: Sequence[Any]) -> None:
    """Percentages from 0, with room for the figures behind the bars."""
    end = 1.15 * max([1.0, *(axes.dataLim.x1 for axes in panels)])
    for axes in panels:
        axes.set_xlim(0, end)
        axes.xaxis.set_major_locator(FixedLocator([20 * n for n in range(6) if 20 * n <= end]))


def _bar_row(
    axes: Any,
    places: NDArray[np.float64],
    values: Sequence[tuple[float | None, float | None]],
    colour: str,
) -> None:
    """Bars with their figures behind them."""
    for place, (mean, std) in zip(places, values, strict=True):
        if mean is None:
            continue
        axes.barh(place, mean, 0.36, color=colour, xerr=std, error_kw={"ecolor": INK, "lw": 1.2})
        axes.annotate(
            f"{mean:.2f}", (mean + (std or 0), place), (4, 0), textcoords="offset points",
            va="center", fontsize=7.5,
        )  # fmt: skip


def _short(label: str) -> str:
    return label if len(label) <= 26 else f"{label[:25]}…"


def _metric(settings: ScoreSettings) -> str:
    title = METRICS[settings.metric].title
    return f"{title[0].upper()}{title[1:]}"
