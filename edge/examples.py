"""Examples to predict, from a file or a stream: NPZ, CSV, and sensor samples as CSV.

A CSV is read as it comes, so that a pipe or a serial line predicts while it is open. Its layout
follows from its columns:

- *Sensor samples*, one per row, where the bundle has windows (``rate_hz``, ``window``, ``hop``)
  and the header names its channels; ``time_s`` (or ``time``; seconds) or ``time_ms`` says when.
  They are readings as they come: resampled, cut into windows and normalised here (``intake``).
- *Examples*, one per row: the numbers of one example, in the order of the bundle's channels or of
  its input, last axis fastest.

A column ``label`` holds class names or numbers; an empty cell is no label. True values of other
tasks stand in columns named as the bundle's targets, for examples only. Other columns of sensor
samples are passed over.
"""

from __future__ import annotations

import csv
import logging
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest, Preprocessing
from protofleet.datasets.arrays import UNREADABLE, read_arrays, to_labels, to_targets
from protofleet.edge.intake import SensorIntake, Window
from protofleet.edge.local_data import UCI_HAR, load_local_data
from protofleet.edge.predictions import NO_LABEL
from protofleet.edge.training import check_data
from protofleet.errors import InputError, MissingDataError

_log = logging.getLogger(__name__)

_LABEL = "label"
_SECONDS = {"time_s": 1.0, "time": 1.0, "time_ms": 1e-3}
_SENSOR = "csv"
_UNITS = "seconds stand in time_s, milliseconds in time_ms"
_BLOCK_BYTES = 1 << 16
_RATE_SAMPLES = 16
"""Samples whose times tell a stream's rate, before any of them is used."""

_FAR_BELOW, _FAR_ABOVE = 4, 100
"""Factors by which a stream's rate may differ from the bundle's before its times are doubted."""


class ByteStream(Protocol):
    """A binary file that gives what is there without waiting for more."""

    def read1(self, size: int, /) -> bytes:
        """At most ``size`` bytes, at least one unless the stream is over."""


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


def load_examples(
    source: str, manifest: Manifest, *, data_root: Path | None = None, rate_hz: float | None = None
) -> Iterator[Examples]:
    """The examples of a file, in blocks.

    Args:
        source: ``FILE.npz`` with ``x`` (and ``y``), or with ``x_test`` and ``y_test`` as a device's
            data; ``FILE.csv``; or ``uci-har:5``, the test part of subject 5.
        manifest: the bundle's.
        data_root: folder of the published data sets.
        rate_hz: of sensor samples; None: from their times, or the bundle's where they have none.

    Raises:
        MissingDataError: a file is absent.
        InputError: a file has a wrong form, or does not fit the bundle.
    """
    path = Path(source)
    if path.suffix.lower() == ".csv":
        if not path.is_file():
            raise MissingDataError(f"data '{path}': no such file")
        return _read_file(path, manifest, rate_hz)
    if path.suffix.lower() == ".npz" and not is_device_data(source):
        arrays = read_arrays(path, ("x",), ("y",), ignored=("classes", "targets"))
        return iter((_plain(path, arrays, manifest),))
    if path.suffix.lower() != ".npz" and not source.startswith(f"{UCI_HAR}:"):
        raise InputError(
            f"data '{source}': expected FILE.npz, FILE.csv, - for standard input, or {UCI_HAR}:N "
            "with --data-root"
        )
    data = load_local_data(source, manifest.preprocessing, data_root=data_root)
    check_data(data, manifest)
    return iter((Examples(x=data.own.x_test, y=data.own.y_test),))


def is_device_data(source: str) -> bool:
    """Whether a file has a train and a test part already."""
    try:
        with zipfile.ZipFile(source) as archive:
            return "x_train.npy" in archive.namelist()
    except UNREADABLE:  # whoever reads it says what is wrong
        return False


def _read_file(path: Path, manifest: Manifest, rate_hz: float | None) -> Iterator[Examples]:
    with path.open("rb") as file:
        yield from read_csv(file, f"data '{path}'", manifest, rate_hz=rate_hz)


def _plain(path: Path, arrays: dict[str, NDArray[Any]], manifest: Manifest) -> Examples:
    x, y = arrays["x"], arrays.get("y")
    if y is None:
        return Examples(x=x, y=_unknown(len(x), manifest))
    what = f"data '{path}': y"
    if x.ndim < 1 or y.shape[:1] != x.shape[:1]:
        form = f"(n, {len(manifest.targets)})" if manifest.targets else "(n,)"
        raise InputError(f"data '{path}': expected x (n, …) and y {form}, got {x.shape}, {y.shape}")
    if manifest.targets:
        return Examples(x=x, y=to_targets(y, what, manifest.targets))
    return Examples(x=x, y=to_labels(y, what, manifest.classes))


def _unknown(count: int, manifest: Manifest) -> NDArray[Any]:
    """True values of examples that have none."""
    if manifest.targets:
        return np.full((count, len(manifest.targets)), np.nan, np.float32)
    return np.full(count, NO_LABEL, np.int64)


def read_csv(
    stream: ByteStream, where: str, manifest: Manifest, *, rate_hz: float | None = None
) -> Iterator[Examples]:
    """Examples from a CSV, each block as soon as its rows are there.

    Args:
        stream: its bytes; those that are there are taken at once.
        where: what to call it in a message.
        manifest: the bundle's.
        rate_hz: as in ``load_examples``.

    Raises:
        InputError: a row has a wrong form, or the columns fit neither layout.
    """
    rows = _row_blocks(stream, where)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{where}: expected a CSV, got nothing")
    header = [cell.strip() for cell in first[0].cells]
    named = any(not _is_number(cell) for cell in header)
    blocks = chain([first[1:] if named else first], rows)
    if named and _is_stream(header, manifest.preprocessing):
        table = _Table(where, header, manifest)
        return _windows(table, blocks, manifest.preprocessing, rate_hz)
    return _examples(_example_table(where, header, manifest, named=named), blocks, manifest)


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    cells: list[str]


def _row_blocks(stream: ByteStream, where: str) -> Iterator[list[_Row]]:
    """Whole rows as they come, blank lines left out."""
    rest, line = b"", 0
    while True:
        block = stream.read1(_BLOCK_BYTES)
        *lines, rest = (rest + block).split(b"\n") if block else (rest, b"")
        try:
            texts = [one.decode("utf-8-sig" if line == 0 else "utf-8") for one in lines]
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise InputError(
                f"{where}: expected text in UTF-8, got the byte 0x{byte:02x}; save it as a CSV in "
                "UTF-8"
            ) from error
        found = []
        for text in texts:
            line += 1
            if text.strip():
                found.append(_Row(line, _cells(text, f"{where}, line {line}")))
        if found:
            yield found
        if not block:
            return


def _cells(text: str, where: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        what, *_ = str(error).split(" - ")
        raise InputError(
            f"{where}: not a row of a CSV ({what}); expected a newline after each row, and quotes "
            "that close in it"
        ) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_stream(header: Sequence[str], preprocessing: Preprocessing) -> bool:
    channels = preprocessing.channels
    return bool(preprocessing.window and channels) and set(channels) <= set(header)


class _Labels:
    """Class names and numbers, as a column holds them."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self._classes = classes
        self._known = {str(k): k for k in range(len(classes))}
        self._known |= {name: k for k, name in enumerate(classes)}

    def index(self, text: str, where: str) -> int:
        """The class's number, -1 for none; raises InputError for what is no class."""
        if not text.strip():
            return NO_LABEL
        found = self._known.get(text.strip())
        if found is None:
            raise InputError(
                f"{where}: expected a class as label, {', '.join(self._classes)}, or its number, "
                f"got '{text.strip()[:40]}'"
            )
        return found


class _Table:
    """Columns of a CSV by name, and numbers from its rows.

    Args:
        where: what to call it.
        header: names of all columns.
        manifest: the bundle's.
        values: names of the columns that hold numbers of the model's input; None: its channels.
    """

    def __init__(
        self,
        where: str,
        header: Sequence[str],
        manifest: Manifest,
        values: Sequence[str] | None = None,
    ) -> None:
        self.where = where
        self._width = len(header)
        names = manifest.preprocessing.channels if values is None else values
        used = {*names, _LABEL, *manifest.targets, *_SECONDS}
        if twice := sorted(name for name in used if header.count(name) > 1):
            raise InputError(f"{where}: expected one column '{twice[0]}', got several")
        self.columns = [header.index(name) for name in names]
        self._label = header.index(_LABEL) if _LABEL in header else None
        self._labels = _Labels(manifest.classes)
        self.manifest = manifest
        told = manifest.targets and set(manifest.targets) <= set(header)
        self._targets = [header.index(name) for name in manifest.targets] if told else []
        self.time = next((name for name in _SECONDS if name in header), None)
        self._time = header.index(self.time) if self.time else None

    def values(self, rows: Sequence[_Row]) -> NDArray[np.float64]:
        """``(rows, columns)``; an empty cell is NaN."""
        made = [[self._number(row, column) for column in self.columns] for row in rows]
        return np.array(made, np.float64).reshape(len(rows), len(self.columns))

    def true_values(self, rows: Sequence[_Row]) -> NDArray[Any]:
        """``y`` as in ``Examples``."""
        if self._targets:
            made = [[self._number(row, column) for column in self._targets] for row in rows]
            return np.array(made, np.float32)
        return self.labels(rows) if self.manifest.classes else _unknown(len(rows), self.manifest)

    def labels(self, rows: Sequence[_Row]) -> NDArray[np.int64]:
        """``(rows,)``, -1 for none."""
        if self._label is None or not self.manifest.classes:
            return np.full(len(rows), NO_LABEL, np.int64)
        found = [
            self._labels.index(self._cell(row, self._label), f"{self.where}, line {row.line}")
            for row in rows
        ]
        return np.array(found, np.int64)

    def times_s(self, rows: Sequence[_Row]) -> NDArray[np.float64] | None:
        """``(rows,)`` seconds; None without a column of times."""
        if self.time is None or self._time is None:
            return None
        return _SECONDS[self.time] * np.array([self._number(row, self._time) for row in rows])

    def _number(self, row: _Row, column: int) -> float:
        text = self._cell(row, column).strip()
        try:
            return float(text) if text else float("nan")
        except ValueError as error:
            wrong = f"column {column + 1}: expected a number, got '{text[:40]}'"
            if column == self._time:
                wrong = f"column '{self.time}': expected a number, got '{text[:40]}'; {_UNITS}"
            raise InputError(f"{self.where}, line {row.line}, {wrong}") from error

    def _cell(self, row: _Row, column: int) -> str:
        if len(row.cells) != self._width:
            raise InputError(
                f"{self.where}, line {row.line}: expected {self._width} columns as in the first "
                f"row, got {len(row.cells)}"
            )
        return row.cells[column]


def _example_table(where: str, header: Sequence[str], manifest: Manifest, *, named: bool) -> _Table:
    """The columns of examples, one per row."""
    preprocessing = manifest.preprocessing
    size = int(np.prod(preprocessing.input_shape))
    names = list(header) if named else [f"column {k + 1}" for k in range(len(header))]
    told = {_LABEL, *manifest.targets}
    values = [name for name in names if name not in told]
    channels = preprocessing.channels
    if named and len(channels) == size and set(channels) <= set(values):
        return _Table(where, names, manifest, channels)
    if len(values) != size or (named and len(channels) == size):
        by_name = f"a first row that names the columns {', '.join(channels)} of sensor samples, or "
        shape = f"channels {', '.join(channels)}" if channels else "input"
        raise InputError(
            f"{where}: expected {by_name if channels and preprocessing.window else ''}{size} "
            f"numbers of an example in each row ({shape} {preprocessing.input_shape}), got the "
            f"columns {', '.join(values)[:200]}{_near_miss(names, channels)}"
        )
    return _Table(where, names, manifest, values)


def _near_miss(names: Sequence[str], channels: Sequence[str]) -> str:
    """What may be wrong with a first row that does not name the channels; '' if nobody can say."""
    lacking = [name for name in channels if name not in names]
    alike = {name.strip().lower() for name in names} >= {name.lower() for name in channels}
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        return "; expected commas between them"
    if lacking and alike:
        return "; small and capital letters differ"
    if 0 < len(lacking) < len(channels):
        return f"; it lacks {', '.join(lacking)}"
    return ""


def _examples(
    table: _Table, blocks: Iterator[list[_Row]], manifest: Manifest
) -> Iterator[Examples]:
    shape = manifest.preprocessing.input_shape
    for rows in blocks:
        if rows:
            x = table.values(rows).reshape(len(rows), *shape)
            _check_finite(table.where, rows, x)
            yield Examples(x=x, y=table.true_values(rows))


def _check_finite(where: str, rows: Sequence[_Row], x: NDArray[np.float64]) -> None:
    broken = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if broken.any():
        line = rows[int(broken.argmax())].line
        raise InputError(f"{where}, line {line}: expected numbers in all columns, got an empty one")


def _windows(
    table: _Table,
    blocks: Iterator[list[_Row]],
    preprocessing: Preprocessing,
    rate_hz: float | None,
) -> Iterator[Examples]:
    """Windows of sensor samples, each block as soon as it is complete."""
    stream, count = _SampleStream(table, preprocessing, rate_hz), 0
    for rows in blocks:
        found = stream.push(rows)
        count += len(found)
        yield from _joined(found, table.manifest)
    found = stream.flush()
    yield from _joined(found, table.manifest)
    if not count + len(found):
        raise InputError(
            f"{table.where}: expected samples for a window, {preprocessing.window} at "
            f"{preprocessing.rate_hz:g} Hz, got {stream.count}{stream.lasted}"
        )


class _SampleStream:
    """Rows of samples into the intake, from when the stream's rate is known."""

    def __init__(self, table: _Table, preprocessing: Preprocessing, rate_hz: float | None) -> None:
        self._table, self._preprocessing = table, preprocessing
        # Samples without times come at the rate that is said, or else at the bundle's.
        self._rate_hz = known = rate_hz or (None if table.time else preprocessing.rate_hz)
        self._intake = self._made(known) if known else None
        self._waiting: list[_Row] = []
        self._timed = self.count = 0
        self._label = NO_LABEL
        self._from_s, self._to_s = np.inf, -np.inf

    @property
    def lasted(self) -> str:
        """How long enough samples lasted by their column of times, behind an error; or empty."""
        seconds = self._to_s - self._from_s
        enough = self.count >= (self._preprocessing.window or 0) and seconds >= 0
        return f" in {seconds:.4g} s by '{self._table.time}'; {_UNITS}" if enough else ""

    def push(self, rows: Sequence[_Row]) -> list[Window]:
        """The windows that are complete now."""
        self.count += len(rows)
        if self._intake is None:
            self._waiting += rows
            if len(self._waiting) < _RATE_SAMPLES:
                return []
            rows = self._waiting
            self._begin(rows)
        return self._pushed(rows)

    def flush(self) -> list[Window]:
        """The stream is over: what its last samples complete."""
        found = []
        if self._intake is None:
            if len(self._waiting) < 2:
                return []
            self._begin(self._waiting)
            found = self._pushed(self._waiting)
        if self._intake is None:
            return found
        found += self._intake.flush()
        lost = str(self._intake.counters[_SENSOR])
        if lost != "nothing":
            _log.warning("%s: samples that were not used: %s", self._table.where, lost)
        return found

    def _begin(self, rows: Sequence[_Row]) -> None:
        times = self._table.times_s(rows)
        gaps = np.diff(times) if times is not None else np.zeros(0)
        steps = gaps[np.isfinite(gaps) & (gaps > 0)]
        if not len(steps):
            got = "none" if times is None else ", ".join(f"{time:g}" for time in times[:4])
            raise InputError(
                f"{self._table.where}: expected times that ascend, got {got}, …; sort the rows by "
                f"'{self._table.time}'"
            )
        self._rate_hz = float(1 / np.median(steps))
        _log.info("sensor samples at %.4g Hz", self._rate_hz)
        wanted = self._preprocessing.rate_hz or self._rate_hz
        if self._rate_hz * _FAR_ABOVE < wanted:
            raise InputError(
                f"{self._table.where}: expected about {wanted:g} samples a second, got "
                f"{self._rate_hz:.4g} by its column '{self._table.time}'; {_UNITS}: rename the "
                "column"
            )
        if not wanted / _FAR_BELOW <= self._rate_hz <= wanted * _FAR_ABOVE:
            told = f"{self._rate_hz:.4g} samples a second by its column '{self._table.time}'"
            _log.warning("%s: %s, the bundle wants %g: %s", self._table.where, told, wanted, _UNITS)
        self._intake = self._made(self._rate_hz)

    def _made(self, rate_hz: float) -> SensorIntake:
        return SensorIntake(self._preprocessing, {_SENSOR: rate_hz})

    def _pushed(self, rows: Sequence[_Row]) -> list[Window]:
        if self._intake is None or self._rate_hz is None or not rows:
            return []
        times = self._table.times_s(rows)
        if times is None:
            times = (self._timed + np.arange(len(rows))) / self._rate_hz
        else:
            self._from_s = np.fmin.reduce(times, initial=self._from_s)
            self._to_s = np.fmax.reduce(times, initial=self._to_s)
        self._timed += len(rows)
        for time_s, label in zip(times.tolist(), self._table.labels(rows).tolist(), strict=True):
            if label != self._label and np.isfinite(time_s):
                self._intake.mark(time_s, label)
                self._label = label
        return self._intake.push(_SENSOR, times, self._table.values(rows))


def _joined(windows: Sequence[Window], manifest: Manifest) -> Iterator[Examples]:
    if windows:
        labels = np.array([window.label for window in windows], np.int64)
        yield Examples(
            x=np.stack([window.x for window in windows]),
            y=labels if manifest.classes else _unknown(len(windows), manifest),
            start_s=np.array([window.start_s for window in windows]),
            normalised=True,
        )
