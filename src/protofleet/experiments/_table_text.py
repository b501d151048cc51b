"""A table for people: in the terminal, or as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Grid

from protofleet.experiments.config import Section
from protofleet.experiments.table import LOSS, Figure, MethodRow, Table
from protofleet.strategies.tasks import METRICS

_UNLIMITED = 10_000
_NOTHING = "-"
_RAW = "raw / raw"
_CLIENTS = "†"
_WALL = "s per\nround"
_SELECTS = {"best": "best round", "last": "last round"}
_OTHERS = {"best": "last round", "last": "best round"}
_SPREADS = {"std": "mean ± std", "ci95": "mean ± half the clients' 95 % interval"}
_ENGINES = {
    "local": "the sizes of the blobs",
    "mqtt": "counted at the devices' sockets",
    "ray": "the sizes of the blobs",
}
_TRAIN = (
    "train ms: processor time of a client's training in a round, the mean over all but the first"
)
_HEADS = ("ours", "paper", "diff.")
_SHORT: dict[Section, str] = {
    "personalisation": "pers.",
    "generalisation": "gen.",
    "global": "global",
    "after_fit": "after fit",
    "loss": "loss",
}
_Columns = list[tuple[str, list[str]]]
_Block = Callable[[Table, Section], tuple[str, list[str]]]


def show(table: Table, console: Console) -> None:
    """Print a table in the first of three forms that fits the console's width.

    All in one line per method; costs and codecs in tables of their own; and the paper's figures
    below ours.
    """
    console.print(f"[bold]{escape(table.title)}[/bold] ({escape(table.source)})", soft_wrap=True)
    console.print(_caption(table), soft_wrap=True)
    apart = [part for part in (_others(table), _costs(table), _codecs(table)) if part]
    together = [column for part in apart for column in part]
    width, unlimited = console.width, console.options.update(width=_UNLIMITED)
    for grids in (
        [_grid(table, [*_scores(table, _inline), *together])],
        [_grid(table, part) for part in (_scores(table, _inline), *apart)],
        [_grid(table, part) for part in (_scores(table, _stacked), *apart)],
    ):
        if max(Measurement.get(console, unlimited, grid).maximum for grid in grids) <= width:
            break
    for grid in grids:
        console.print(grid)
    for line in _footnotes(table):
        console.print(line, markup=False, highlight=False)


def markdown(table: Table) -> str:
    """A table as GitHub's Markdown, one line per method, without the newline at the end."""
    sections = table.score.sections
    compared = {section: _compared(table, section) for section in sections}
    head = ["method"]
    for section in sections:
        head += [f"{section}, {name}" for name in (_HEADS if compared[section] else _HEADS[:1])]
    columns = [*_others(table), *_costs(table), *_codecs(table)]
    head += [" ".join(title.split("\n")) for title, _ in columns]
    lines = []
    for number, row in enumerate(table.rows):
        line = [row.label]
        for section in sections:
            line += _parts(table, row, section)[: 3 if compared[section] else 1]
        lines.append(line + [cells[number] for _, cells in columns])
    return _page(table, head, lines, [_caption(table), *_footnotes(table)])


def costs_markdown(table: Table) -> str:
    """The costs that other processes do not change, as ``markdown``."""
    columns = [column for column in _costs(table) if column[0] != _WALL]
    head = ["method", *(" ".join(title.split("\n")) for title, _ in columns)]
    lines = [
        [row.label, *(cells[number] for _, cells in columns)]
        for number, row in enumerate(table.rows)
    ]
    return _page(table, head, lines, [*_run_notes(table), *_cost_notes(table)])


def _page(
    table: Table, head: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    rows = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    body = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))
    below = "\n".join(f"- {note}" for note in notes)
    return f"**{table.title}** ({table.source})\n\n{body}\n\n{below}"


def _caption(table: Table) -> str:
    metric = METRICS[table.score.metric]
    label = f"{metric.label} in per cent" if metric.is_share else metric.label
    chosen, spread = _SELECTS[table.score.select], _SPREADS[table.score.spread]
    return f"{label}, {chosen}, {spread}"


def _footnotes(table: Table) -> list[str]:
    found = _run_notes(table)
    if any(_CLIENTS in _ours(table, row, s) for row in table.rows for s in row.cells):
        found.append(f"{_CLIENTS} std over the clients of one seed; elsewhere over the seeds")
    return [*found, *_cost_notes(table), *filter(None, [table.note])]


def _run_notes(table: Table) -> list[str]:
    return [f"{labels}, {note}" for note, labels in _shared_notes(table).items()]


def _cost_notes(table: Table) -> list[str]:
    found = []
    counted = " or ".join(dict.fromkeys(_ENGINES[engine] for engine in table.engines))
    if counted:
        found.append(f"MB: per client and round, {counted}; s: median")
    if any(row.train_ms is not None for row in table.rows):
        found.append(_TRAIN)
    labels = {row.label for row in table.rows}
    found += [
        f"{row.label}: costs times those of {row.beside}"
        for row in table.rows
        if row.beside in labels
    ]
    return found


def _shared_notes(table: Table) -> dict[str, str]:
    """Each note once, with the methods that it is true of."""
    found: dict[str, list[str]] = {}
    for row in table.rows:
        for note in row.notes:
            found.setdefault(note, []).append(row.label)
    whole = len(table.rows)
    return {
        note: "every method" if len(labels) == whole > 1 else ", ".join(labels)
        for note, labels in found.items()
    }


def _grid(table: Table, columns: Sequence[tuple[str, list[str]]]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    grid.add_column("method", vertical="top", overflow="fold")
    for title, _ in columns:
        grid.add_column(title, justify="right", no_wrap=True)
    for number, row in enumerate(table.rows):
        grid.add_row(escape(row.label), *(cells[number] for _, cells in columns))
    return grid


def _scores(table: Table, block: _Block) -> _Columns:
    return [block(table, section) for section in table.score.sections]


def _compared(table: Table, section: Section) -> bool:
    return any(row.cells[section].paper is not None for row in table.rows)


def _inline(table: Table, section: Section) -> tuple[str, list[str]]:
    """Ours, the paper's and the difference side by side in one column, aligned."""
    if not _compared(table, section):
        return section, [_ours(table, row, section) for row in table.rows]
    lines = [list(_HEADS), *(_parts(table, row, section) for row in table.rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(3)]
    joined = [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return f"{section}\n{joined[0]}", joined[1:]


def _stacked(table: Table, section: Section) -> tuple[str, list[str]]:
    """Ours above the paper's and the difference."""
    if not _compared(table, section):
        return _inline(table, section)
    cells = [_parts(table, row, section) for row in table.rows]
    width = max(len(text[2]) for text in cells)
    return f"{section}\nours / paper, diff.", [
        f"{ours}{' ' * (2 + width)}\n[dim]{paper}  {difference.rjust(width)}[/dim]"
        for ours, paper, difference in cells
    ]


def _others(table: Table) -> _Columns:
    """The scores of the round that ``select`` does not name."""
    chosen = _OTHERS[table.score.select]
    return [
        (
            f"{chosen}\n{_SHORT[section]}",
            [_spread(table, row.cells[section].other, section) for row in table.rows],
        )
        for section in table.score.sections
    ]


def _parts(table: Table, row: MethodRow, section: Section) -> list[str]:
    cell = row.cells[section]
    paper, digits = cell.paper, _digits(section)
    return [
        _ours(table, row, section),
        _NOTHING if paper is None else _figure(paper.mean, paper.std, digits),
        _NOTHING if cell.difference is None else f"{cell.difference:+.{digits}f}",
    ]


def _ours(table: Table, row: MethodRow, section: Section) -> str:
    return _spread(table, row.cells[section], section)


def _spread(table: Table, found: Figure, section: Section) -> str:
    if table.score.spread == "ci95":
        return _figure(found.mean, found.ci95, _digits(section))
    mark = _CLIENTS if found.over == "clients" else ""
    return f"{_figure(found.mean, found.std, _digits(section))}{mark}"


def _digits(section: Section) -> int:
    return 3 if section == LOSS else 2


def _figure(mean: float | None, spread: float | None, digits: int) -> str:
    if mean is None:
        return _NOTHING
    text = f"{mean:.{digits}f}"
    return text if spread is None else f"{text} ± {spread:.{digits}f}"


def _costs(table: Table) -> _Columns:
    columns: dict[str, Callable[[MethodRow], str]] = {
        "seeds": lambda row: f"{row.seeds_done}/{row.seeds_asked}",
    }
    if table.score.target is not None:
        title = f"rounds to\n{100 * table.score.target:g} %"
        columns[title] = lambda row: _number(row.rounds_to_target, "g")
    columns[_WALL] = lambda row: _number(row.seconds_per_round, ".2f")
    if any(row.train_ms is not None for row in table.rows):
        columns["train\nms"] = lambda row: _number(row.train_ms, ".1f")
    if any(row.train_ratio is not None for row in table.rows):
        columns["train times\nFedAvg"] = lambda row: _number(row.train_ratio, ".2f")
    columns["MB\nup"] = lambda row: _number(row.mb_up, ".3f")
    columns["MB\ndown"] = lambda row: _number(row.mb_down, ".3f")
    if not _coded(table) and any(row.bytes_ratio is not None for row in table.rows):
        columns["up times\nFedAvg"] = lambda row: _number(row.up_ratio, ".2f")
        columns["down times\nFedAvg"] = lambda row: _number(row.down_ratio, ".2f")
    return [(title, [text(row) for row in table.rows]) for title, text in columns.items()]


def _coded(table: Table) -> bool:
    return any(row.codec != _RAW for row in table.rows)


def _codecs(table: Table) -> _Columns:
    """What travels, its size, and the points of each score that it costs; none where all is raw."""
    rows, sections = table.rows, table.score.sections
    if not _coded(table):
        return []
    lost = [" / ".join(_number(row.cells[s].lost, "+.2f") for s in sections) for row in rows]
    return [
        ("codec\nup / down", [row.codec for row in rows]),
        ("bytes times\nraw FedAvg", [_number(row.bytes_ratio, ".3f") for row in rows]),
        (f"points lost\n{' / '.join(_SHORT[s] for s in sections)}", lost),
    ]


def _number(value: float | None, form: str) -> str:
    return _NOTHING if value is None else format(value, form)
