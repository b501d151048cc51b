"""Examples from a CSV, read as it comes: a pipe or a serial line predicts while it is open.

The layout follows from the columns:

- *Sensor samples*, one per row, where the bundle has windows (``rate_hz``, ``window``, ``hop``)
  and the header names its channels; ``time_s`` (or ``time``; seconds), ``time_ms`` or a column
  that the caller names says when (``sample_times``). They are readings as they come: resampled,
  cut into windows and normalised here (``intake``).
- *Examples*, one per row: the numbers of one example, in the order of the bundle's channels or of
  its input, last axis fastest.

An empty cell, ``NA`` or ``null`` is no value. A column ``label`` holds class names or numbers. True
values of other tasks stand in columns named as the bundle's targets, for examples only. Other
columns of sensor samples are passed over, unless one rises as times do and nothing else says when
or how fast.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest, Preprocessing
from protofleet.edge.data.columns import LABEL, Columns, columns_of
from protofleet.edge.data.csv_rows import ByteStream, Row, is_value, row_blocks
from protofleet.edge.data.csv_stream import SampleStream
from protofleet.edge.data.csv_table import Table, unknown
from protofleet.edge.data.intake import Window
from protofleet.edge.data.mapping import NO_MAPPING, TableMapping
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

_UNSAID = "; --mapping FILE.toml is for saying what its columns are"
_UNNAMED = "; --columns NAME,... names them where no row does"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples that have arrived.

    Attributes:
        x: ``(n, *input_shape)``; readings as they come if ``raw``.
        y: ``(n,) int64`` class numbers, -1 where no label is known; of other tasks ``(n, outputs)
            float32``, NaN where it is not.
        start_s: ``(n,) float64`` time of the first sample; None for examples that are no windows of
            a stream.
        normalised: whether mean and std have been applied here, whatever the caller says of files.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    start_s: NDArray[np.float64] | None = None
    normalised: bool = False


def read_csv(  # noqa: PLR0913 - what a person may say of a table
    stream: ByteStream,
    where: str,
    manifest: Manifest,
    *,
    rate_hz: float | None = None,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    label: str | None = None,
    file_name: str = "",
    mapping: TableMapping = NO_MAPPING,
) -> Iterator[Examples]:
    """Examples from a CSV, each block as soon as its rows are there.

    Args:
        stream: its bytes; those that are there are taken at once.
        where: what to call it in a message.
        manifest: the bundle's.
        rate_hz: as in ``load_examples``.
        time: as in ``load_examples``.
        columns: as in ``load_examples``.
        label: the class of all rows, where no column says it.
        file_name: without its ending; it may be that of a sensor.
        mapping: what a person has said of columns and labels.

    Raises:
        InputError: a row has a wrong form, the columns fit neither layout, or nothing says which
            column holds the times.
    """
    rows = mapping.rows(row_blocks(stream, where))
    first = next(rows, None)
    if first is None:
        raise InputError(f"{where}: expected a CSV, got nothing")
    header = [cell.strip() for cell in first[0].cells]
    named = any(not is_value(cell) for cell in header)
    blocks = chain([first[1:] if named and columns is None else first], rows)
    if columns is not None:
        header, named = given_names(columns, header, where), True
    meant = Columns(names=header)
    if named:
        meant = columns_of(
            header, manifest, where, time=time, is_timed=rate_hz is None, named=file_name
        )
        header = meant.names
    if label is not None and LABEL not in header and manifest.classes:
        _log.warning("%s: no column of labels; all of it is '%s', by its name", where, label)
    if named and _is_stream(header, manifest.preprocessing):
        if time is not None and time not in header:
            raise InputError(
                f"{where}: --time: expected one of the columns {', '.join(header)[:200]}, got "
                f"'{time}'"
            )
        table = Table(where, meant, manifest, label=label)
        return _windows(table, blocks, manifest.preprocessing, rate_hz)
    if time is not None:
        raise InputError(
            f"{where}: --time is for sensor samples, one in each row, in columns named as the "
            f"bundle's channels: {', '.join(manifest.preprocessing.channels) or 'it has none'}"
        )
    table = _example_table(where, header, manifest, named=named, label=label)
    return _examples(table, blocks, manifest)


def given_names(columns: Sequence[str], first: Sequence[str], where: str) -> list[str]:
    """Names for the columns of a table without any; InputError: not one for each cell."""
    names = [name.strip() for name in columns]
    if len(names) != len(first):
        raise InputError(
            f"{where}: --columns: expected {len(first)} names, one for each cell of its first row "
            f"({', '.join(first)[:100]}), got {len(names)}"
        )
    return names


def _is_stream(header: Sequence[str], preprocessing: Preprocessing) -> bool:
    channels = preprocessing.channels
    return bool(preprocessing.window and channels) and set(channels) <= set(header)


def _example_table(
    where: str, header: Sequence[str], manifest: Manifest, *, named: bool, label: str | None
) -> Table:
    """The columns of examples, one per row."""
    preprocessing = manifest.preprocessing
    size = int(np.prod(preprocessing.input_shape))
    names = list(header) if named else [f"column {k + 1}" for k in range(len(header))]
    told = {LABEL, *manifest.targets}
    values = [name for name in names if name not in told]
    if named and len(values) == size + 1 and not values[0]:
        del values[0]  # the index of a table
    channels = preprocessing.channels
    if named and len(channels) == size and set(channels) <= set(values):
        return Table(where, Columns(names=names), manifest, channels, label=label)
    if len(values) != size or (named and len(channels) == size):
        by_name = f"a first row that names the columns {', '.join(channels)} of sensor samples, or "
        shape = f"channels {', '.join(channels)}" if channels else "input"
        hint = _near_miss(names, channels) if named else _UNNAMED
        raise InputError(
            f"{where}: expected {by_name if channels and preprocessing.window else ''}{size} "
            f"numbers of an example in each row ({shape} {preprocessing.input_shape}), got the "
            f"columns {', '.join(values)[:200]}{hint}"
        )
    return Table(where, Columns(names=names), manifest, values, label=label)


def _near_miss(names: Sequence[str], channels: Sequence[str]) -> str:
    """What may be wrong with a first row that does not name the channels; '' if nobody can say."""
    lacking = [name for name in channels if name not in names]
    alike = {name.strip().lower() for name in names} >= {name.lower() for name in channels}
    if lacking and alike:
        return "; small and capital letters differ"
    if 0 < len(lacking) < len(channels):
        return f"; it lacks {', '.join(lacking)}{_UNSAID}"
    return _UNSAID if lacking else ""


def _examples(table: Table, blocks: Iterator[list[Row]], manifest: Manifest) -> Iterator[Examples]:
    shape = manifest.preprocessing.input_shape
    for rows in blocks:
        if rows:
            x = table.values(rows).reshape(len(rows), *shape)
            _check_finite(table, rows, x)
            yield Examples(x=x, y=table.true_values(rows))


def _check_finite(table: Table, rows: Sequence[Row], x: NDArray[np.float64]) -> None:
    broken = np.argwhere(~np.isfinite(x).reshape(len(x), -1))
    if len(broken):
        k, column = broken[0]
        row, place = rows[k], table.columns[column]
        got = row.cells[place].strip()[:40] or "an empty cell"
        raise InputError(f"{table.place(row, place)}: expected a number, got {got}")


def _windows(
    table: Table,
    blocks: Iterator[list[Row]],
    preprocessing: Preprocessing,
    rate_hz: float | None,
) -> Iterator[Examples]:
    """Windows of sensor samples, each block as soon as it is complete."""
    stream, count = SampleStream(table, preprocessing, rate_hz), 0
    for rows in blocks:
        found = stream.push(rows)
        count += len(found)
        yield from to_blocks(found, table.manifest)
    found = stream.flush()
    yield from to_blocks(found, table.manifest)
    if not count + len(found):
        raise InputError(
            f"{table.where}: expected samples for a window, {preprocessing.window} at "
            f"{preprocessing.rate_hz:g} Hz, got {stream.count}{stream.lasted}"
        )


def to_blocks(windows: Sequence[Window], manifest: Manifest) -> Iterator[Examples]:
    """Windows as a block of examples; none of none."""
    if windows:
        steps = manifest.steps
        labels = np.array([one.steps(steps) if steps else one.label for one in windows], np.int64)
        yield Examples(
            x=np.stack([window.x for window in windows]),
            y=labels if manifest.classes else unknown(len(windows), manifest),
            start_s=np.array([window.start_s for window in windows]),
            normalised=True,
        )
