"""The page of what defaults do for owners: Markdown, the same bytes for the same results."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import fill

from protofleet.experiments.outcomes import ALONE, StrategyOutcome, TaskOutcome
from protofleet.strategies.tasks import METRICS
from protofleet.units import NOTHING

_WIDTH = 100
_OWN_MODEL = "°"

_TITLE = "# What do the defaults do for owners?"
_INTRODUCTION = """\
Every [strategy](algorithms.md) with nothing set, so that the devices find the learning rate
([a rate that fits](calibration.md)), on {tasks}, {rounds}. Each owner's own test part
is scored with the bundle's model (*start*) and with the device's after the last round;
`{command}` computes and writes this page. What the owner is *served* is another matter: a device
uses its model only where the evidence is that it helps ([the gate](gate.md)), which this page
leaves out.
"""
_READING = """\
In each task's column: the mean score at the end, of all owners and seeds, and how many owners it
has helped · harmed by more than two points (of an error: two per cent of it). *Owners*: of all
tasks together. *Beside training alone*: owners whose model is better · worse by as much than the
one that `{alone}` gives them in as many steps. *Regret*: how much more the best rate of the ladder
would have given than the one that was found, its mean and its largest over the tasks (points of a
share, or per cent of an error){seeds}.
{own}: another model than the task's, so that the comparison with `{alone}` is one of models, too.
"""


def page(tasks: Sequence[TaskOutcome], command: str, picture: str | None) -> str:
    """All of it.

    Args:
        tasks: with at least one.
        command: that makes the page.
        picture: its path, as seen from the page; None: there is none.
    """
    rounds = " or ".join(f"{one}" for one in sorted({task.rounds for task in tasks})) + " rounds"
    count = "one small task" if len(tasks) == 1 else f"{len(tasks)} small tasks"
    parts = [_TITLE, _wrapped(_INTRODUCTION.format(tasks=count, rounds=rounds, command=command))]
    parts += [_found(tasks), _settings(tasks), _table(tasks)]
    parts.append(_wrapped(_READING.format(alone=ALONE, own=_OWN_MODEL, seeds=_seeds(tasks))))
    if picture is not None:
        parts.append(f"![Where each strategy ends on each task]({picture})")
        parts.append(_wrapped(_PICTURE))
    if left_out := _without(tasks):
        parts.append(left_out)
    return "\n\n".join(parts) + "\n"


_PICTURE = """\
Dots: the mean score at the end; bars: from the least to the largest seed. Dotted line: the start.
Dashed line: training alone. Red: a strategy that has harmed more than one owner in ten."""


def found_lines(tasks: Sequence[TaskOutcome]) -> list[str]:
    """What the table says, in words that are computed from it."""
    rows = [(task, row) for task in tasks for row in task.rows.values()]
    lines = []
    failed = [f"`{row.label}` on {_name(task)}" for task, row in rows if not row.learns]
    learnt = f"{len(rows) - len(failed)} of {len(rows)}"
    lines.append(
        f"Better than the start and than always naming one class: {learnt}"
        + (f"; not {_listed(failed)}." if failed else ".")
    )
    stopped = [
        f"`{label}` on {_name(task)} ({count} of {task.seeds} seeds)"
        for task in tasks
        for label, count in task.diverged.items()
    ]
    if stopped:
        lines.append(f"Diverged: {_listed(stopped)}.")
    helped, harmed, owners = (
        sum(getattr(row, name) for _, row in rows) for name in ("helped", "harmed", "owners")
    )
    lines.append(
        f"Of all owners, strategies and seeds together {_share(helped, owners)} are helped and "
        f"{_share(harmed, owners)} harmed."
    )
    regrets = [row.regret for _, row in rows if row.regret is not None]
    if regrets:
        worst = max((row.regret or 0, _name(task), row.label) for task, row in rows)
        lines.append(
            f"Regret of the rate that was found: {100 * statistics.fmean(regrets):.1f} on average "
            f"over {len(regrets)} pairs of strategy and task, {100 * worst[0]:.1f} at most "
            f"(`{worst[2]}` on {worst[1]})."
        )
    beside = [(row.label, row.better, row.worse) for _, row in rows if row.label != ALONE]
    better = _totals(beside)
    behind = [f"`{label}`" for label, (more, less) in better.items() if more <= less]
    lines.append(
        f"With {len(better) - len(behind)} of {len(better)} strategies more owners are better off "
        "than by training alone than are worse off"
        + (f"; not with {_listed(behind)}." if behind else ".")
    )
    return lines


def _found(tasks: Sequence[TaskOutcome]) -> str:
    return "\n".join(_wrapped(f"- {line}", indent="  ") for line in found_lines(tasks))


def _totals(beside: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    totals: dict[str, tuple[int, int]] = {}
    for label, better, worse in beside:
        more, less = totals.get(label, (0, 0))
        totals[label] = (more + better, less + worse)
    return totals


def _settings(tasks: Sequence[TaskOutcome]) -> str:
    head = "| task | owners | score | start | alone | seeds |"
    lines = [head, "| --- | ---: | --- | ---: | ---: | ---: |"]
    for task in tasks:
        first = next(iter(task.rows.values()))
        title = f"{task.title}. {task.note}"
        seeds = max(row.seeds for row in task.rows.values())
        lines.append(
            f"| *{_name(task)}*: {title} | {first.owners // first.seeds} | "
            f"{METRICS[task.metric].label} | {_text(task, first.start)} | "
            f"{NOTHING if task.alone is None else _text(task, task.alone)} | "
            f"{seeds} of {task.seeds} |"
        )
    return "\n".join(lines)


def _seeds(tasks: Sequence[TaskOutcome]) -> str:
    """With how many the rates of the ladder were tried."""
    tried = Counter(row.regret_seeds for task in tasks for row in task.rows.values())
    del tried[0]
    if not tried:
        return ""
    parts = [f"{count} pairs with {_several(seeds)}" for seeds, count in sorted(tried.items())]
    return f": {_listed(parts)}"


def _several(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def _table(tasks: Sequence[TaskOutcome]) -> str:
    labels = dict.fromkeys(label for task in tasks for label in task.rows)
    heads = [*map(_name, tasks), "owners", "beside training alone", "regret"]
    lines = [
        f"| strategy | {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(heads)}",
    ]
    for label in labels:
        rows = [task.rows.get(label) for task in tasks]
        cells = [_cell(task, row) for task, row in zip(tasks, rows, strict=True)]
        known = [row for row in rows if row is not None]
        lines.append(f"| `{label}` | {' | '.join([*cells, *_overall(label, known)])} |")
    return "\n".join(lines)


def _cell(task: TaskOutcome, row: StrategyOutcome | None) -> str:
    if row is None:
        return NOTHING
    mark = _OWN_MODEL if row.own_model else ""
    return f"{_text(task, row.end)}{mark} ({row.helped} · {row.harmed})"


def _overall(label: str, rows: Sequence[StrategyOutcome]) -> list[str]:
    owners, helped, harmed, better, worse = (
        sum(getattr(row, name) for row in rows)
        for name in ("owners", "helped", "harmed", "better", "worse")
    )
    regrets = [row.regret for row in rows if row.regret is not None]
    return [
        f"{_share(helped, owners)} · {_share(harmed, owners)}",
        NOTHING if label == ALONE else f"{better} · {worse}",
        f"{100 * statistics.fmean(regrets):.1f}, {100 * max(regrets):.1f}" if regrets else NOTHING,
    ]


def _without(tasks: Sequence[TaskOutcome]) -> str:
    lines = []
    for task in tasks:
        reasons: dict[str, list[str]] = {}
        for name, why in task.without.items():
            reasons.setdefault(why, []).append(f"`{name}`")
        told = "; ".join(f"{_listed(names)} ({why})" for why, names in reasons.items())
        if told:
            lines.append(_wrapped(f"- *{_name(task)}*: {told}", indent="  "))
    return "Left out:\n\n" + "\n".join(lines) if lines else ""


def _name(task: TaskOutcome) -> str:
    """Without the folder of committed experiments."""
    return task.name.rpartition("/")[2]


def _text(task: TaskOutcome, score: float) -> str:
    return METRICS[task.metric].page_text(score)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else NOTHING


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _wrapped(text: str, indent: str = "") -> str:
    joined = " ".join(text.split())
    return fill(joined, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
