"""Recordings in binary formats, read as tables: each by its package, in the extra ``recordings``.

- EDF, EDF+ and BDF, of laboratories and hospitals: pyedflib (Kemp and Olivan, "European data format
  'plus'", Clinical Neurophysiology 114, 2003). Signals of one rate are a table; annotations are
  marks.
- XDF, of Lab Streaming Layer: pyxdf. A stream of numbers is a table; one of texts has marks.
- FIT, of sports watches: fitdecode. Records of a second or so, with heart rate, cadence and others.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.edge.data.csv_rows import ByteStream, PiecedStream
from protofleet.errors import InputError

_ROWS = 4096
"""That are written at a time."""
_MARKS = ("start_s", "end_s", "label")


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryTable:
    """Columns of one length.

    Attributes:
        name: of the table; it may be that of a sensor.
        header: names of the columns, with units in brackets.
        columns: numbers, or texts.
        is_marks: whether it holds what a person has marked.
    """

    name: str
    header: tuple[str, ...]
    columns: tuple[NDArray[Any], ...]
    is_marks: bool = False

    def stream(self) -> ByteStream:
        """The table as text."""
        return PiecedStream(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        yield _line(self.header)
        for begin in range(0, len(self.columns[0]), _ROWS):
            rows = zip(*(one[begin : begin + _ROWS].tolist() for one in self.columns), strict=True)
            yield b"".join(map(_line, rows))


def _line(cells: Sequence[Any]) -> bytes:
    texts = ("" if one != one else str(one) for one in cells)  # noqa: PLR0124 - a NaN is no value
    plain = (one.replace("\n", " ").replace('"', "'") for one in texts)
    return (",".join(f'"{one}"' if "," in one else one for one in plain) + "\n").encode()


def is_binary(path: Path) -> bool:
    """Whether a file's ending says that it is read here."""
    return path.suffix.lower() in _READERS


def binary_tables(path: Path) -> list[BinaryTable]:
    """The tables of a recording.

    Raises:
        InputError: it is damaged, or holds nothing that is read.
        ModuleNotFoundError: the package that reads it is not installed.
    """
    read = _READERS[path.suffix.lower()]
    try:
        found = read(path)
    except ImportError:
        raise
    except Exception as error:  # the packages raise whatever a damaged file leads to
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"data '{path}': cannot be read ({line[:200]})") from error
    tables = [one for one in found if len(one.columns[0])]
    if not any(not one.is_marks for one in tables):
        raise InputError(f"data '{path}': expected readings of sensors, got none")
    return tables


def _edf(path: Path) -> list[BinaryTable]:
    import pyedflib  # noqa: PLC0415 - only such files need it

    with pyedflib.EdfReader(str(path)) as file:
        # In UTC, as other times that say no zone.
        begun = file.getStartdatetime().replace(tzinfo=dt.UTC).timestamp()
        rates = file.getSampleFrequencies().tolist()
        signals = sorted(range(file.signals_in_file), key=lambda k: (rates[k], k))
        tables = [
            _signals(file, list(places), rate, begun)
            for rate, places in groupby(signals, key=lambda k: rates[k])
        ]
        onsets, lasts, texts = file.readAnnotations()
        starts = begun + np.asarray(onsets, np.float64)
        tables.append(_marks(starts, np.asarray(lasts, np.float64), list(texts)))
    return tables


def _signals(file: Any, places: Sequence[int], rate: float, begun: float) -> BinaryTable:
    """Signals of one rate."""
    labels = [file.getLabel(k).strip() or f"signal {k + 1}" for k in places]
    units = [file.getPhysicalDimension(k).strip() for k in places]
    values = [file.readSignal(k) for k in places]
    count = min(map(len, values))
    return BinaryTable(
        name=" ".join(labels),
        header=("time_s", *map(_named, labels, units)),
        columns=(begun + np.arange(count) / rate, *(one[:count] for one in values)),
    )


def _xdf(path: Path) -> list[BinaryTable]:
    import pyxdf  # noqa: PLC0415 - only such files need it

    streams, _ = pyxdf.load_xdf(str(path), verbose=False)
    tables, texts = [], []
    for stream in streams:
        info, values = stream["info"], stream["time_series"]
        times = np.asarray(stream["time_stamps"], np.float64)
        if isinstance(values, np.ndarray) and values.ndim == 2:
            labels = _channels(info, values.shape[1])
            header = ("time_s", *(_named(*one) for one in labels))
            columns = (times, *values.T)
            tables.append(BinaryTable(name=info["name"][0], header=header, columns=columns))
        elif len(times):
            texts.append((times, [str(row[0]) for row in values]))
    for times, said in texts:
        tables.append(_marks(times, np.full(len(times), np.nan), said))
    return tables


def _channels(info: Mapping[str, Any], count: int) -> list[tuple[str, str]]:
    """Label and unit of each channel of a stream."""
    described = info.get("desc") or [None]
    channels = ((described[0] or {}).get("channels") or [None])[0] or {}
    found = [
        ((one.get("label") or [""])[0] or "", (one.get("unit") or [""])[0] or "")
        for one in channels.get("channel", [])
    ]
    if len(found) != count or not all(label for label, _ in found):
        return [(f"{info['name'][0]} {k + 1}", "") for k in range(count)]
    return found


def _fit(path: Path) -> list[BinaryTable]:
    import fitdecode  # noqa: PLC0415 - only such files need it

    with fitdecode.FitReader(str(path)) as file:
        rows = [
            _record(frame)
            for frame in file
            if frame.frame_type == fitdecode.FIT_FRAME_DATA and frame.name == "record"
        ]
    rows = [row for row in rows if "time_s" in row]
    names = [one for one in dict.fromkeys(key for row in rows for key in row) if one != "time_s"]
    columns = [np.array([row.get(name, np.nan) for row in rows]) for name in ("time_s", *names)]
    return [BinaryTable(name="record", header=("time_s", *names), columns=tuple(columns))]


def _record(frame: Any) -> dict[str, float]:
    found = {}
    for one in frame.fields:
        if one.name == "timestamp" and hasattr(one.value, "timestamp"):
            found["time_s"] = one.value.timestamp()
        elif isinstance(one.value, int | float) and not isinstance(one.value, bool):
            found[_named(one.name, one.units or "")] = float(one.value)
    return found


def _marks(
    starts: NDArray[np.float64], lasts: NDArray[np.float64], texts: Sequence[str]
) -> BinaryTable:
    """Marks; one that does not last holds up to the next."""
    ends = np.where(lasts > 0, starts + lasts, np.nan)
    said = np.array(list(map(str, texts)), object)
    return BinaryTable(name="marks", header=_MARKS, columns=(starts, ends, said), is_marks=True)


def _named(label: str, unit: str) -> str:
    name = label.replace(",", " ")
    return f"{name} [{unit}]" if unit else name


_READERS: Mapping[str, Callable[[Path], list[BinaryTable]]] = {
    ".edf": _edf,
    ".bdf": _edf,
    ".xdf": _xdf,
    ".xdfz": _xdf,
    ".fit": _fit,
}
BINARY = frozenset(_READERS)
"""Endings of files that are read here."""
