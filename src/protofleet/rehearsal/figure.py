"""The picture of a rehearsal: score, participation and energy on the fleet's own time line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from protofleet.rehearsal.answer import Answer, GroupAnswer
from protofleet.report._figures import BLUE, INK, RED, STYLE

_SIZE_IN = (10.5, 3.4)
_COLOURS = (BLUE, RED, "#2a9d8f", "#8e6bbf", "#c98a1b", INK)


def draw(answers: Sequence[Answer], path: Path, target: float | None = None) -> None:
    """Draw a panel each for score, updates and energy; variants by colour.

    Args:
        answers: of one rehearsal.
        path: file to write, .png or .svg.
        target: score that is good enough.
    """
    with mpl.rc_context(STYLE):
        figure: Any = Figure(figsize=_SIZE_IN, layout="constrained")
        scores, updates, energy = figure.subplots(1, 3)
        labels = list(dict.fromkeys(one.label for one in answers))
        for answer in answers:
            colour = _COLOURS[labels.index(answer.label) % len(_COLOURS)]
            name = answer.label if answer.label and answer.seed == 0 else None
            scored = [one for one in answer.rounds if one.score is not None]
            days, found = [one.closed_d for one in scored], [one.score for one in scored]
            scores.plot(days, found, color=colour, lw=1.2, label=name)
            days = [one.closed_d for one in answer.rounds]
            updates.plot(days, [one.invited for one in answer.rounds], color=colour, lw=0.8, ls=":")
            updates.plot(days, [one.counted for one in answer.rounds], ".", color=colour, ms=3)
        if target is not None:
            scores.axhline(target, color=INK, lw=0.9, ls=":")
        updates.set_ylim(bottom=0)
        _energy(energy, answers[0])
        for axes, title in (
            (scores, "score of owners' models"),
            (updates, "updates that count, of those invited (dotted)"),
        ):
            axes.set_title(title, loc="left", fontsize=10)
            axes.set_xlabel("days")
        if len(labels) > 1:
            scores.legend(fontsize=7)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=110, metadata=metadata)


def _energy(axes: Any, answer: Answer) -> None:
    """Of the first variant."""
    names = [group.name for group in answer.groups]
    left = [0.0] * len(names)
    for label, colour, values in (
        ("training", BLUE, [group.train_joules for group in answer.groups]),
        ("transfers", RED, [_transfers(group) for group in answer.groups]),
        ("staying connected", "#b8b8b8", [group.connected_joules for group in answer.groups]),
    ):
        axes.barh(names, values, left=left, color=colour, label=label)
        left = [before + value for before, value in zip(left, values, strict=True)]
    axes.set_title("energy of a device, joules a day", loc="left", fontsize=10)
    axes.invert_yaxis()
    axes.legend(fontsize=7)


def _transfers(group: GroupAnswer) -> float:
    return group.joules - group.train_joules - group.connected_joules
