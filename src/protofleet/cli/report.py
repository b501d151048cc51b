"""``protofleet report``: rebuild a run's page, or compare runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.printable import printable

if TYPE_CHECKING:
    from protofleet.report import Difference

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("runs", type=_PATH, nargs=-1, required=True, metavar="RUN_DIR [OTHER]...")
@click.option("--page", type=_PATH, help="Write a comparison with curves into this file, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(runs: tuple[Path, ...], *, page: Path | None, as_json: bool) -> None:
    """Write report.html into RUN_DIR, or compare it with others.

    RUN_DIR is a federation file (TOML), the run_dir that it names, or a demonstration's folder; the
    run may still go on. What the page lacks is listed, with what would have made it.

    With others (folders, or their result.json) scores, bytes and times stand beside each other,
    with differences to the first, and the settings that differ.
    """
    import msgspec

    if len(runs) > 1:
        _compare(runs, page, as_json=as_json)
        return
    if page is not None:
        raise click.UsageError("--page: expected at least two runs to compare, got one")
    written, missing = _write(runs[0])
    if as_json:
        click.echo(msgspec.json.encode({"report": str(written), "missing": missing}).decode())
        return
    click.echo(str(written))
    for part in missing:
        click.echo(f"not in it: {part}", err=True)


def _compare(runs: tuple[Path, ...], page: Path | None, *, as_json: bool) -> None:
    import msgspec

    from protofleet.coordinator.results import refresh
    from protofleet.federation.records import RunRecord, load_record
    from protofleet.report import compare, differing_settings, write_comparison

    folders = [path if path.is_dir() else path.parent for path in runs]
    for folder in folders:
        refresh(folder)
    files = [path / "result.json" if path.is_dir() else path for path in runs]
    records = [load_record(file, RunRecord) for file in files]
    if page is not None:
        write_comparison(list(zip(map(str, runs), folders, records, strict=True)), page)
    first, *others = records
    found = [
        (path, compare(first, other), differing_settings((folders[0], first), (folder, other)))
        for path, folder, other in zip(runs[1:], folders[1:], others, strict=True)
    ]
    if as_json:
        told = [
            {"first": str(runs[0]), "second": str(path), "scores": scores, "settings": settings}
            for path, scores, settings in found
        ]
        click.echo(msgspec.json.encode(told).decode())
        return
    for path, scores, settings in found:
        click.echo(_table(scores, (runs[0], path)))
        for name, (mine, theirs) in settings.items():
            click.echo(f"{name}: {printable(mine)} | {printable(theirs)}")


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
