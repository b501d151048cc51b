"""``protofleet report``: rebuild a run's page, or compare two runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from protofleet.report import Difference

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("run_dir", type=_PATH, required=False)
@click.option(
    "--compare",
    "pair",
    type=_PATH,
    nargs=2,
    metavar="A B",
    help="Compare two runs (folders, or their result.json) instead.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(
    run_dir: Path | None,
    pair: tuple[Path, Path] | None,
    as_json: bool,
) -> None:
    """Write report.html into RUN_DIR, or compare two runs.

    RUN_DIR is a federation file (TOML), the run_dir that it names, or a demonstration's folder; the
    run may still go on. What the page lacks is listed, with what would have made it.
    """
    import msgspec

    from protofleet.federation.records import RunRecord, load_record
    from protofleet.report import compare

    if (run_dir is None) == (not pair):
        raise click.UsageError("give either the folder of a run or --compare A B")
    if run_dir is not None:
        page, missing = _write(run_dir)
        if as_json:
            click.echo(msgspec.json.encode({"report": str(page), "missing": missing}).decode())
            return
        click.echo(str(page))
        for part in missing:
            click.echo(f"not in it: {part}", err=True)
    elif pair:
        rows = compare(
            *(load_record(p / "result.json" if p.is_dir() else p, RunRecord) for p in pair)
        )
        click.echo(msgspec.json.encode(rows).decode() if as_json else _table(rows, pair))


def _write(given: Path) -> tuple[Path, list[str]]:
    """The page of a run, and what it lacks."""
    from protofleet.errors import UnavailableError
    from protofleet.federation.records import RunRecord, load_record
    from protofleet.federation.settings import load_config
    from protofleet.report import details_of_folder, missing_parts, write_report

    run_dir = load_config(given).run_dir if given.suffix == ".toml" else given
    try:
        page = write_report(run_dir)
    except OSError as error:
        raise UnavailableError(f"report in '{run_dir}': {error}") from error
    result = load_record(run_dir / "result.json", RunRecord)
    return page, missing_parts(result, details_of_folder(run_dir))


def _table(rows: list[Difference], names: tuple[Path, Path]) -> str:
    lines = [("", str(names[0]), str(names[1]), "B - A", "B / A")]
    lines += [
        (row.name, _cell(row.first), _cell(row.second), _cell(row.change, "+"), _cell(row.ratio))
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cell(value: float | None, sign: str = "") -> str:
    if value is None:
        return "-"
    return (
        f"{value:{sign},.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:{sign}.3f}"
    )
