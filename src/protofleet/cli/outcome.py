"""``protofleet experiment outcome``: what every strategy does for owners at its defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._experiments import (
    FILE,
    all_runs_option,
    data_root_option,
    default_data_root,
    engine_option,
    integers,
    kept,
    workers_option,
)
from protofleet.cli._outputs import writable, writable_picture
from protofleet.cli._verbosity import progress_console

if TYPE_CHECKING:
    from protofleet.experiments.config import Experiment
    from protofleet.experiments.outcomes import TaskOutcome
    from protofleet.experiments.runner import RunOptions

GROUP = "outcome"
"""The folder of committed experiments that are the tasks."""


@click.command()
@click.argument("names", metavar="[TASK]...", nargs=-1)
@all_runs_option
@click.option("--status", is_flag=True, help="Train nothing: show and write what is stored so far.")
@click.option("--seeds", callback=integers, metavar="1,2", help="Instead of the tasks'.")
@click.option("--methods", multiple=True, metavar="LABEL", help="Only this row; repeat for more.")
@click.option(
    "--regret",
    is_flag=True,
    help="With the same seeds, also train with every other rate of the ladder: what the best of "
    "them would have given. Takes six to ten times as long again; --seeds 1 for a look.",
)
@click.option(
    "--page",
    type=FILE,
    callback=writable,
    help="Also write the page to FILE (docs/outcome.md is made so).",
)
@click.option("--plot", type=FILE, callback=writable_picture, help="Also draw FILE, .png or .svg.")
@click.option(
    "--json", "json_file", type=FILE, callback=writable, help="Also write the figures to FILE."
)
@data_root_option
@engine_option
@workers_option
def outcome(
    *,
    names: tuple[str, ...],
    out: Path,
    status: bool,
    seeds: tuple[int, ...] | None,
    methods: tuple[str, ...],
    regret: bool,
    page: Path | None,
    plot: Path | None,
    json_file: Path | None,
    data_root: Path | None,
    **options: Any,
) -> None:
    """What does every strategy do for owners, with nothing set?

    Each TASK is an experiment such as outcome/digits; without any, all of that folder. They run as
    'run' would run them, into OUT/NAME; what is finished is not repeated, and after an
    interruption the same command goes on. Then a table: where each strategy starts and ends, whom
    it helps and harms, how it compares with training alone.

    \b
    A quick look, a minute:
      protofleet experiment outcome outcome/digits --seeds 1 --methods fedavg --methods local
    The page, from what is stored:
      protofleet experiment outcome --status --page outcome.md --plot outcome.png
    """  # noqa: D301 - click's mark for lines to keep
    from protofleet.errors import InputError
    from protofleet.experiments.config import expanded, find, load_experiment, name_of
    from protofleet.experiments.outcomes import task_outcome
    from protofleet.experiments.runner import RunOptions

    given = [find(name) for name in expanded(names or [GROUP])]
    tasks = {name_of(path): load_experiment(path) for path in given}
    if fixed := [name for name, one in tasks.items() if not one.finds_rate]:
        raise InputError(
            f"experiment '{fixed[0]}': expected one with `finds_rate = true`, such as "
            "outcome/digits; else nothing is at its default"
        )
    if not status:
        asked = RunOptions(
            data_root=data_root or default_data_root(),
            seeds=seeds,
            labels=methods or None,
            **options,
        )
        with kept(out):
            _run(tasks, out, asked, regret=regret)
    known = (task_outcome(name, one, out / name) for name, one in tasks.items())
    found = [one for one in known if one is not None]
    if not found:
        raise InputError(
            f"results '{out}': expected runs of {', '.join(tasks)}, found none that are finished"
            + ("; leave --status out to make them" if status else "")
        )
    _show(found, page=page, plot=plot, json_file=json_file)


def _run(tasks: Mapping[str, Experiment], out: Path, options: RunOptions, *, regret: bool) -> None:
    """Run what is missing; what diverges is told in the table, and tasks without data at once."""
    from dataclasses import replace

    import msgspec

    from protofleet.errors import MissingDataError
    from protofleet.experiments.outcomes import rows_of_rates
    from protofleet.experiments.runner import run_all

    console = progress_console()
    for name, task in tasks.items():
        console.print(f"[bold]{name}[/]", highlight=False)
        try:
            results, _ = run_all(name, task, out / name, options, console)
        except MissingDataError as error:
            console.print(f"{name}: left out: {error}", style="yellow", markup=False)
            continue
        if not regret:
            continue
        for seed in options.seeds or task.seeds:
            rows = rows_of_rates(task, [one for one in results if one.seed == seed])
            wider = msgspec.structs.replace(task, methods=(*task.methods, *rows))
            labels = tuple(row.label for row in rows)
            one = replace(options, seeds=(seed,), labels=labels)
            run_all(name, wider, out / name, one, console)


def _show(
    found: list[TaskOutcome],
    *,
    page: Path | None,
    plot: Path | None,
    json_file: Path | None,
) -> None:
    import msgspec
    from rich.console import Console
    from rich.markdown import Markdown

    from protofleet.durable import replace_whole
    from protofleet.experiments import _outcomes_text

    if plot is not None:
        from protofleet.experiments import _outcomes_figure  # loads matplotlib

        _outcomes_figure.draw(found, plot)
    picture = None if plot is None else os.path.relpath(plot, page.parent if page else ".")
    text = _outcomes_text.page(found, "protofleet experiment outcome", picture)
    if page is not None:
        replace_whole(page, text.encode(), shared=True)
    if json_file is not None:
        content = msgspec.json.format(msgspec.json.encode(found), indent=1)
        replace_whole(json_file, content, shared=True)
    if page is None:
        Console().print(Markdown(text))
