"""``protofleet device export-model``: the personal model as a plain file for a stock runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from protofleet.cli._outputs import check_writable_file
from protofleet.cli._process import start_process
from protofleet.cli._store import model_options, opened_model

_PATH = click.Path(path_type=Path)


def _to_outs(
    _context: click.Context, parameter: click.Parameter, outs: tuple[Path, ...]
) -> tuple[Path, ...]:
    """Paths that say by their ends what is to be written."""
    for out in outs:
        if out.suffix.lower() not in (".onnx", ".tflite"):
            raise click.BadParameter(
                f"expected FILE.onnx or FILE.tflite, got '{out}'", param=parameter
            )
        check_writable_file(out, "--out")
    return outs


def _format(out: Path) -> str:
    return out.suffix.removeprefix(".").lower()


@click.command()
@model_options
@click.option(
    "--out",
    "outs",
    type=_PATH,
    multiple=True,
    required=True,
    callback=_to_outs,
    help="FILE.onnx or FILE.tflite; may be repeated.",
)
@click.option("--raw", is_flag=True, help="The file takes readings as they come, and normalises.")
def export_model(
    *,
    store: Path | None,
    bundle: Path | None,
    trust_files: tuple[Path, ...],
    use: Any,
    threads: int,
    backend: Any,
    outs: tuple[Path, ...],
    raw: bool,
) -> None:
    """Write the personal model as plain .onnx and .tflite, with the values inside.

    ONNX Runtime and LiteRT run the files without Protofleet. They give the probabilities that
    'device predict' prints; classes and preprocessing stand in their metadata
    (docs/predictions.md). Neither PyTorch nor onnx is needed.
    """
    start_process(threads, quiet=True)
    from protofleet.durable import write_whole

    model = opened_model(store, bundle, trust_files, use=use, backend=backend, threads=threads)
    made = [(out, model.plain(_format(out), raw=raw)) for out in outs]
    for out, data in made:
        write_whole(out, data, shared=True)
        click.echo(f"{out}: model of round {model.round_id}, {len(data) / 1000:,.1f} kB")
    if model.model.reason:
        click.echo(f"in use: {model.model.reason}")
