"""Which experiments come with Protofleet, whether their data are there, and how long they take."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from protofleet.datasets.catalogue import load, looks_present
from protofleet.errors import InputError
from protofleet.experiments.claim_results import progress_of
from protofleet.experiments.config import DataSource, Experiment, committed, load_experiment


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One committed experiment.

    Attributes:
        name: what ``protofleet experiment run`` takes.
        title, paper, table: of its file.
        data: names of its data sets.
        methods: labels.
        seeds: one run each.
        rounds: of each run.
        present: data set → whether its main file was found.
        examples: data set → number of its examples, of those that were loaded; a published
            excerpt has fewer than the whole.
        missing: data set → what to put where, of those that are not there or not whole.
        seconds: that all of its runs take, by the rounds that have been run here; None: none has.
    """

    name: str
    title: str
    paper: str
    table: str
    data: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int
    present: dict[str, bool]
    examples: dict[str, int]
    missing: dict[str, str]
    seconds: float | None


_TIMES = "\u00d7"
_WIDE = 100
"""Columns of a terminal that have room for the table's name."""
_Found = int | str
"""Number of examples, or why they can't be loaded."""


def listed(data_root: Path, runs: Path, *, check_data: bool = False) -> list[Listed]:
    """Read all committed experiments.

    Args:
        data_root: folder of the published data sets.
        runs: folder of all experiments' runs, of which the seconds are taken.
        check_data: load each data set that they name, once, instead of looking for its main file.

    Raises:
        InputError: a committed file is wrong, or a stored result cannot be read.
    """
    known: dict[bytes, _Found] = {}
    found = []
    for name, path in committed().items():
        experiment = load_experiment(path)
        loaded = {
            source.name: _load(source, data_root, known)
            for source in experiment.data
            # A loader that finds nothing says at once what to put where.
            if check_data or not looks_present(source.name, data_root)
        }
        seconds = progress_of(name, experiment, runs / name).seconds
        found.append(_listed(name, experiment, loaded, seconds))
    return found


def _listed(
    name: str, experiment: Experiment, loaded: dict[str, _Found], seconds: float | None
) -> Listed:
    names = tuple(source.name for source in experiment.data)
    return Listed(
        name=name,
        title=experiment.title,
        paper=experiment.paper,
        table=experiment.table,
        data=names,
        methods=tuple(method.label for method in experiment.methods),
        seeds=experiment.seeds,
        rounds=experiment.rounds,
        present={key: key not in loaded or isinstance(loaded[key], int) for key in names},
        examples={key: value for key, value in loaded.items() if isinstance(value, int)},
        missing={key: value for key, value in loaded.items() if isinstance(value, str)},
        seconds=seconds,
    )


def _load(source: DataSource, data_root: Path, known: dict[bytes, _Found]) -> _Found:
    """Load a data set, because only its loader knows all that it needs; ``known`` keeps answers."""
    key = msgspec.json.encode(source, order="sorted")
    if key not in known:
        try:
            known[key] = len(load(source.name, data_root, source.options).y)
        except InputError as error:
            known[key] = str(error)
    return known[key]


def show(found: list[Listed], console: Console) -> None:
    """Print a line for each, paper by paper, then what to put where."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("name", no_wrap=True)
    wide = console.width >= _WIDE
    if wide:
        grid.add_column("table of the paper")
    grid.add_column(f"methods {_TIMES}\nseeds {_TIMES} rounds", justify="right", no_wrap=True)
    grid.add_column("takes here", justify="right", no_wrap=True)
    grid.add_column("data", overflow="fold")
    # Sorting keeps the order of equals.
    for paper, group in groupby(sorted(found, key=attrgetter("paper")), attrgetter("paper")):
        grid.add_section()
        grid.add_row(paper, style="bold")
        for one in group:
            size = f"{len(one.methods)} {_TIMES} {len(one.seeds)} {_TIMES} {one.rounds}"
            time = "-" if one.seconds is None else _about(one.seconds)
            data = "\n".join(_data_text(one, name) for name in one.data)
            grid.add_row(one.name, *([one.table] if wide else []), size, time, data)
    console.print(grid)
    console.print("takes here: by the rounds that have been run here; -: none has", style="dim")
    for text in dict.fromkeys(text for one in found for text in one.missing.values()):
        console.print(text, style="dim", markup=False, highlight=False)


def _about(seconds: float) -> str:
    """``75.2`` → ``1 min``."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{round(seconds)} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _data_text(one: Listed, name: str) -> str:
    if not one.present[name]:
        return f"{name}: none"
    return f"{name}: {one.examples[name]:,}" if name in one.examples else name
