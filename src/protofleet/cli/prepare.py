"""``protofleet device prepare``: a device's data from a CSV with labels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import click

from protofleet.cli._outputs import writable
from protofleet.cli._process import start_process
from protofleet.cli._store import columns_option, rate_option, raw_option, time_option
from protofleet.cli._trust import bundle_trust_option, trusted_keys
from protofleet.errors import InputError

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("source")
@click.option("--bundle", type=_PATH, required=True, help="Folder or .pfb file.")
@click.option(
    "--out",
    type=_PATH,
    required=True,
    callback=writable,
    help="FILE.npz for 'device join --data'.",
)
@bundle_trust_option
@raw_option
@rate_option
@time_option
@columns_option
@click.option(
    "--test-share",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.3,
    show_default=True,
    help="Of each class, its last examples.",
)
def prepare(
    *,
    source: str,
    bundle: Path,
    out: Path,
    trust_files: tuple[Path, ...],
    raw: bool,
    rate_hz: float | None,
    time: str | None,
    columns: tuple[str, ...] | None,
    test_share: float,
) -> None:
    """Make a device's data from SOURCE: FILE.csv, or - for standard input, with a column 'label'.

    Its layouts are those of 'device predict': sensor samples with the bundle's channels as columns,
    which are cut into windows, or one example per row. The first of each class train, the last
    test; a test window that overlaps a training window is left out.
    """
    start_process(1, quiet=True)
    import numpy as np

    from protofleet.bundle import Bundle
    from protofleet.edge.data.examples import ByteStream, is_device_data, load_examples, read_csv
    from protofleet.edge.data.recording import to_device_data

    if out.suffix != ".npz":
        raise InputError(f"--out '{out}': expected FILE.npz, for 'device join --data'")
    manifest = Bundle.open(bundle, trusted=trusted_keys(trust_files)).manifest
    if source == "-":
        stream = cast("ByteStream", sys.stdin.buffer)
        blocks = read_csv(
            stream, "standard input", manifest, rate_hz=rate_hz, time=time, columns=columns
        )
    else:
        if is_device_data(source):
            raise InputError(
                f"data '{source}': expected a recording, got a device's data: give them to "
                "'device join --data' as they are"
            )
        blocks = load_examples(source, manifest, rate_hz=rate_hz, time=time, columns=columns)
    data = to_device_data(blocks, manifest, raw=raw, test_share=test_share)
    data.save(out)
    parts = [np.bincount(y, minlength=len(data.classes)) for y in (data.y_train, data.y_test)]
    for name, train, test in zip(data.classes, *parts, strict=True):
        click.echo(f"{name}: {train} to train, {test} to test")
    click.echo(f"{out}: {len(data.y_train)} to train, {len(data.y_test)} to test")
