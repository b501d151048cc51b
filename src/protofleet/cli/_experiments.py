"""What the commands of ``protofleet experiment`` have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from protofleet.cli._stopping import on_interrupt

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
data_root_option = click.option(
    "--data-root",
    type=FOLDER,
    envvar="PROTOFLEET_DATA",
    show_envvar=True,
    help="Folder with a folder for each data set (docs/data.md).  [default: ../shared/data beside "
    "the checkout, else data]",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="As of 'run'.",
)
workers_option = click.option(
    "--workers", type=click.IntRange(1), help="As of 'run'; default: all."
)
all_runs_option = click.option(
    "--out", type=FOLDER, default=Path("runs"), show_default=True, help="Folder of all runs."
)


def integers(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """An option's value: ``1,2`` as numbers, each once."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"expected numbers from 0 such as 1,2; got '{text}'")
    return tuple(dict.fromkeys(map(int, parts)))


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """An interruption or a failing disk ends the block with a line that says how to go on."""
    from protofleet.errors import UnavailableError

    try:
        with on_interrupt(f"to go on: the same command; '{folder}' keeps what is done"):
            yield
    except OSError as error:
        raise UnavailableError(f"folder '{folder}': {error}; nothing finished is lost") from error


def default_data_root() -> Path:
    """``--data-root`` where none is given."""
    from protofleet.experiments.config import FOLDER as COMMITTED

    beside = COMMITTED.parents[1] / "shared" / "data"
    return beside if beside.is_dir() else Path("data")
