"""``protofleet device record``: an Android phone's sensors into a CSV."""

from __future__ import annotations

import csv
import math
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import click

from protofleet.cli._process import start_process
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._trust import bundle_trust_option, trusted_keys
from protofleet.errors import InputError

if TYPE_CHECKING:
    from protofleet.edge.data.termux import Sensor, Source

_PATH = click.Path(path_type=Path)


def _sensors(
    _context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[Sensor, ...]:
    from protofleet.edge.data.termux import Sensor

    found = []
    for text in given:
        name, separator, factor = text.partition("=")
        try:
            number = float(factor) if separator else 1.0
        except ValueError:
            number = math.nan
        if not name or not math.isfinite(number):
            raise click.BadParameter(
                f"expected NAME or NAME=FACTOR such as accelerometer=0.102, got '{text}'",
                param=parameter,
            )
        found.append(Sensor(name, number))
    return tuple(found)


@click.command()
@click.option("--bundle", type=_PATH, required=True, help="Folder or .pfb file.")
@click.option(
    "--sensor",
    "sensors",
    multiple=True,
    required=True,
    callback=_sensors,
    metavar="NAME[=FACTOR]",
    help="In the order of the bundle's channels; FACTOR: to its unit; repeatable.",
)
@click.option("--label", default="", help="What the owner does meanwhile: a class of the bundle.")
@click.option("--out", required=True, help="FILE.csv, to which it is added, or - for the output.")
@click.option(
    "--after",
    "after_s",
    type=click.FloatRange(0),
    default=3,
    show_default=True,
    help="Seconds at the beginning that are left out, while the phone is put away.",
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after so many.")
@bundle_trust_option
def record(
    *,
    bundle: Path,
    sensors: tuple[Sensor, ...],
    label: str,
    out: str,
    after_s: float,
    seconds: float | None,
    trust_files: tuple[Path, ...],
) -> None:
    """Write what termux-sensor says on standard input into a CSV.

    For 'device prepare', or with '--out -' for 'device predict --data -'. docs/android.md says how
    to start it.

    \b
      termux-sensor -s accelerometer,gyroscope -d 20 |
        protofleet device record --bundle bundle.pfb --sensor accelerometer --sensor gyroscope \\
          --label walking --out mine.csv
    """  # noqa: D301 - click's mark for lines to keep
    start_process(1, quiet=True)
    from protofleet.bundle import Bundle
    from protofleet.edge.data.termux import read_termux

    manifest = Bundle.open(bundle, trusted=trusted_keys(trust_files)).manifest
    channels = manifest.preprocessing.channels
    if not channels:
        raise InputError(f"bundle '{bundle}': expected one with channels, which sensors fill")
    if label and label not in manifest.classes:
        raise InputError(f"label '{label}': expected one of {', '.join(manifest.classes)}")
    source = cast("Source", sys.stdin.buffer)
    begin, count = time.time() + after_s, 0
    with ExitStack() as stack:
        writer = csv.writer(_opened(stack, out, ("time_s", *channels, "label")))
        stack.callback(lambda: click.echo(f"{count} readings", err=True))
        stack.enter_context(on_interrupt("what was recorded is kept"))
        for reading in read_termux(source, sensors, len(channels), time.time):
            if seconds is not None and reading.time_s >= begin + seconds:
                break
            if reading.time_s >= begin:
                writer.writerow((f"{reading.time_s:.4f}", *reading.values, label))
                count += 1


def _opened(stack: ExitStack, out: str, header: tuple[str, ...]) -> TextIO:
    """The CSV, which begins with ``header``."""
    line = ",".join(header) + "\n"
    if out == "-":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        sys.stdout.write(line)
        return sys.stdout
    path = Path(out)
    if path.exists():
        with path.open(encoding="utf-8") as found:
            if found.readline() != line:
                raise InputError(f"'{path}': has other columns than this bundle; choose another")
        return stack.enter_context(path.open("a", encoding="utf-8", newline="", buffering=1))
    made = stack.enter_context(path.open("w", encoding="utf-8", newline="", buffering=1))
    made.write(line)
    return made
