"""``protofleet device prepare``: a device's data from recordings with labels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from protofleet.cli._outputs import writable, writable_picture
from protofleet.cli._process import start_process
from protofleet.cli._store import (
    columns_option,
    labels_option,
    mapping_option,
    rate_option,
    raw_option,
    table_mapping,
    time_option,
)
from protofleet.cli._trust import bundle_trust_option, trusted_keys
from protofleet.errors import InputError

if TYPE_CHECKING:
    from protofleet.bundle.manifest import Manifest
    from protofleet.edge.data.examples import Examples
    from protofleet.edge.data.recordings import Found
    from protofleet.edge.data.spooled_examples import SpooledExamples

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--bundle", type=_PATH, required=True, help="Folder or .pfb file.")
@click.option(
    "--out",
    type=_PATH,
    callback=writable,
    help="FILE.npz for 'device join --data'.",
)
@click.option("--dry-run", is_flag=True, help="Say what is found, and write nothing.")
@click.option(
    "--plot",
    type=_PATH,
    callback=writable_picture,
    help="Also draw sensors' recordings over time to FILE, .png or .svg.",
)
@bundle_trust_option
@raw_option
@rate_option
@time_option
@columns_option
@labels_option
@mapping_option
@click.option(
    "--test-share",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.3,
    show_default=True,
    help="Of each class, its last examples.",
)
def prepare(
    *,
    sources: tuple[str, ...],
    bundle: Path,
    out: Path | None,
    dry_run: bool,
    plot: Path | None,
    trust_files: tuple[Path, ...],
    raw: bool,
    test_share: float,
    **table: Any,
) -> None:
    """Make a device's data from recordings.

    SOURCE is a table such as FILE.csv, a folder or a zip of tables, several of them, or - for
    standard input. A table has a column 'label', or its file or folder has the name of a class. Its
    layouts are those of 'device predict': sensor samples with the bundle's channels as columns,
    which are cut into windows, or one example per row. The first of each class train, the last
    test; a test window that overlaps a training window is left out.
    """
    start_process(1, quiet=not dry_run)
    from protofleet.bundle import Bundle
    from protofleet.edge.data.spooled_examples import spooled

    if not dry_run and (out is None or out.suffix != ".npz"):
        given = "--out" if out is None else f"--out '{out}'"
        raise InputError(f"{given}: expected FILE.npz, for 'device join --data'")
    manifest = Bundle.open(bundle, trusted=trusted_keys(trust_files)).manifest
    table["mapping"] = table_mapping(table["mapping"], sources, manifest)
    found = _Recordings(manifest)
    blocks = found.kept(_blocks(sources, manifest, table, found), keep=plot is not None)
    kept = None if dry_run else out
    with spooled(blocks, manifest, kept, raw=raw, test_share=test_share) as data:
        if plot is not None:
            from protofleet.report._recordings_figure import draw

            draw(found.ended, manifest, plot)
            click.echo(f"{plot}: drawn")
        _tell(data)
        if kept is None:
            click.echo("nothing is written")
            return
        data.save(kept)
    click.echo(f"{kept}: {data.train.sum()} to train, {data.test.sum()} to test")


class _Recordings:
    """Tells of each recording at its end, and keeps what is drawn.

    Attributes:
        ended: name and examples of each.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._blocks: list[Examples] = []
        self.ended: list[tuple[str, list[Examples]]] = []

    def kept(self, blocks: Iterator[Examples], *, keep: bool) -> Iterator[Examples]:
        """The same blocks."""
        for block in blocks:
            if keep:
                self._blocks.append(block)
            yield block
        if self._blocks:
            self.ended.append(("standard input", self._blocks))

    def told(self, one: Found) -> None:
        """Of a recording that has ended."""
        if one.refused:
            click.echo(f"left out: {one.refused}", err=True)
            return
        click.echo(f"{one.name}: {one.text(self._manifest.classes)}")
        if self._blocks:
            self.ended.append((one.name, self._blocks))
            self._blocks = []


def _blocks(
    sources: tuple[str, ...], manifest: Manifest, table: dict[str, Any], found: _Recordings
) -> Iterator[Examples]:
    from protofleet.edge.data.examples import ByteStream, is_device_data, load_examples, read_csv

    if "-" in sources:
        if len(sources) > 1:
            raise InputError("SOURCE: expected - alone, or recordings alone")
        if table.pop("labels") is not None:
            raise InputError("--labels: expected recordings in files, got standard input")
        stream = cast("ByteStream", sys.stdin.buffer)
        return read_csv(stream, "standard input", manifest, **table)
    for source in sources:
        if is_device_data(source):
            raise InputError(
                f"data '{source}': expected a recording, got a device's data: give them to "
                "'device join --data' as they are"
            )
    return load_examples(sources, manifest, told=found.told, **table)


def _tell(data: SpooledExamples) -> None:
    """Of each class, how many examples, or steps of a segmentation's, train and test."""
    import numpy as np

    classes = data.manifest.classes
    parts = (data.y[rows].reshape(-1) for rows in (data.train, data.test))
    counts = (np.bincount(part, minlength=len(classes)) for part in parts)
    steps = " steps" if data.manifest.steps else ""
    for name, train, test in zip(classes, *counts, strict=True):
        click.echo(f"{name}: {train}{steps} to train, {test} to test")
