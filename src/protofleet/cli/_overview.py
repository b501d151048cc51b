"""What several experiments say together: their page and picture."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.markdown import Markdown

from protofleet.durable import replace_whole
from protofleet.errors import InputError
from protofleet.experiments import _overview_figure, _overview_text
from protofleet.experiments.config import Experiment
from protofleet.experiments.overview import BASELINE, overview
from protofleet.experiments.pages import write_pages
from protofleet.printable import shell_word


def compare(
    asked: dict[str, Experiment],
    folder: Path,
    command: str,
    *,
    json_file: Path | None,
    page: Path | None,
    plot: Path | None,
    as_markdown: bool,
) -> None:
    """Print what several experiments say together, and write what was asked for."""
    if not any(m.strategy == BASELINE for one in asked.values() for m in one.methods):
        raise InputError(
            "--methods: expected FedAvg among them, because it sets how many rounds and bytes are "
            "compared; add --methods FedAvg"
        )
    found = overview(asked, folder)
    if not found.data_sets:
        first = shell_word(next(iter(asked)))
        raise InputError(
            f"results '{folder}': expected runs of {' or '.join(asked)} with FedAvg, found none "
            f"that are finished; make them with: protofleet experiment run {first} "
            f"--out {shell_word(folder / next(iter(asked)))}"
        )
    if plot is not None:
        _overview_figure.draw(found, plot)
    picture = None if plot is None else os.path.relpath(plot, page.parent if page else ".")
    if page is not None:
        write_pages(page, _overview_text.pages(found, command, picture, page.stem))
    if json_file is not None:
        content = msgspec.json.encode(found.data_sets)
        replace_whole(json_file, msgspec.json.format(content, indent=1), shared=True)
    if as_markdown:
        click.echo(_overview_text.page(found, command, picture), nl=False)
    elif page is None:
        console = Console()
        text = _overview_text.page(found, command, picture, columns=console.width)
        console.print(Markdown(text))
