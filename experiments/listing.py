"""Which experiments come with Protofleet, and whether their data are there."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from protofleet.datasets.catalogue import load
from protofleet.errors import InputError
from protofleet.experiments.config import DataSource, committed, load_experiment


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One committed experiment.

    Attributes:
        name: what ``protofleet experiment run`` takes.
        title, paper, table: of its file.
        data: names of its data sets.
        methods: labels.
        seeds: one run each.
        rounds: of each run.
        examples: data set → number of its examples, of those that are there; a published
            excerpt has fewer than the whole.
        missing: data set → what to put where.
    """

    name: str
    title: str
    paper: str
    table: str
    data: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int
    examples: dict[str, int]
    missing: dict[str, str]


_TIMES = "\u00d7"
_Found = int | str
"""Number of examples, or why they can't be loaded."""


def listed(data_root: Path | None) -> list[Listed]:
    """Read all committed experiments, and each data set they name once.

    Args:
        data_root: folder of the published data sets; None: do not look for them.

    Raises:
        InputError: a committed file is wrong.
    """
    known: dict[bytes, _Found] = {}
    return [_listed(name, path, data_root, known) for name, path in committed().items()]


def _listed(name: str, path: Path, data_root: Path | None, known: dict[bytes, _Found]) -> Listed:
    experiment = load_experiment(path)
    found = (
        {}
        if data_root is None
        else {source.name: _look_for(source, data_root, known) for source in experiment.data}
    )
    return Listed(
        name=name,
        title=experiment.title,
        paper=experiment.paper,
        table=experiment.table,
        data=tuple(source.name for source in experiment.data),
        methods=tuple(method.label for method in experiment.methods),
        seeds=experiment.seeds,
        rounds=experiment.rounds,
        examples={key: value for key, value in found.items() if isinstance(value, int)},
        missing={key: value for key, value in found.items() if isinstance(value, str)},
    )


def _look_for(source: DataSource, data_root: Path, known: dict[bytes, _Found]) -> _Found:
    """Load a data set, because only its loader knows what it needs; ``known`` keeps answers."""
    key = msgspec.json.encode(source, order="sorted")
    if key not in known:
        try:
            known[key] = len(load(source.name, data_root, source.options).y)
        except InputError as error:
            known[key] = str(error)
    return known[key]


def show(found: list[Listed], console: Console) -> None:
    """Print a line for each, then what to put where."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("name", no_wrap=True)
    grid.add_column("table of the paper")
    grid.add_column(f"methods {_TIMES}\nseeds {_TIMES} rounds", justify="right", no_wrap=True)
    grid.add_column("data: examples", no_wrap=True)
    for one in found:
        size = f"{len(one.methods)} {_TIMES} {len(one.seeds)} {_TIMES} {one.rounds}"
        data = "\n".join(_data_text(one, name) for name in one.data)
        grid.add_row(one.name, one.table, size, data)
    console.print(grid)
    for text in dict.fromkeys(text for one in found for text in one.missing.values()):
        console.print(text, style="dim", markup=False, highlight=False)


def _data_text(one: Listed, name: str) -> str:
    if name in one.missing:
        return f"{name}: none"
    return f"{name}: {one.examples[name]:,}" if name in one.examples else name
