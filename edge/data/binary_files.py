"""Recordings in formats that are no tables, read as such: each by its package, in an extra.

- EDF, EDF+ and BDF, of laboratories and hospitals: pyedflib (Kemp and Olivan, "European data format
  'plus'", Clinical Neurophysiology 114, 2003). Signals of one rate are a table; annotations are
  marks.
- XDF, of Lab Streaming Layer: pyxdf. A stream of numbers is a table; one of texts has marks.
- FIT, of sports watches: fitdecode. Records of a second or so, with heart rate, cadence and others.
- Apple Health's export (``health_export.py``), and those of ``clinical_files.py``.
"""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from protofleet.edge.data import clinical_files, health_export
from protofleet.edge.data.binary_table import BinaryTable, column, marks_table
from protofleet.errors import InputError


def is_binary(path: Path) -> bool:
    """Whether its ending says that it is read here, and where others have that its first bytes."""
    begins = _BEGINS.get(path.suffix.lower())
    if begins is None or not path.is_file():
        return path.suffix.lower() in _READERS
    with path.open("rb") as file:
        return begins in file.read(_HEAD_BYTES)


def binary_tables(path: Path, name: str = "") -> list[BinaryTable]:
    """The tables of a recording.

    Args:
        path: of the file.
        name: as messages say it; '': its path.

    Raises:
        InputError: it is damaged, or holds nothing that is read.
        ModuleNotFoundError: the package that reads it is not installed.
    """
    read, where = _READERS[path.suffix.lower()], f"data '{name or path}'"
    try:
        with warnings.catch_warnings(action="ignore"):  # of the packages, about themselves
            found = read(path)
    except ImportError:
        raise
    except Exception as error:  # the packages raise whatever a damaged file leads to
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{where}: cannot be read ({line[:200]})") from error
    tables = [one for one in found if len(one.columns[0])]
    if not any(not one.is_marks for one in tables):
        raise InputError(f"{where}: expected readings of sensors, got none")
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
        tables.append(marks_table(starts, np.asarray(lasts, np.float64), list(texts)))
    return tables


def _signals(file: Any, places: Sequence[int], rate: float, begun: float) -> BinaryTable:
    """Signals of one rate."""
    labels = [file.getLabel(k).strip() or f"signal {k + 1}" for k in places]
    units = [file.getPhysicalDimension(k).strip() for k in places]
    values = [file.readSignal(k) for k in places]
    count = min(map(len, values))
    return BinaryTable(
        name=" ".join(labels),
        header=("time_s", *map(column, labels, units)),
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
            header = ("time_s", *(column(*one) for one in labels))
            columns = (times, *values.T)
            tables.append(BinaryTable(name=info["name"][0], header=header, columns=columns))
        elif len(times):
            texts.append((times, [str(row[0]) for row in values]))
    for times, said in texts:
        tables.append(marks_table(times, np.full(len(times), np.nan), said))
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
            found[column(one.name, one.units or "")] = float(one.value)
    return found


_READERS: Mapping[str, Callable[[Path], list[BinaryTable]]] = {
    ".edf": _edf,
    ".bdf": _edf,
    ".xdf": _xdf,
    ".xdfz": _xdf,
    ".fit": _fit,
    ".xml": health_export.tables,
    ".hea": clinical_files.wfdb_record,
    ".avro": clinical_files.empatica_avro,
    ".cwa": clinical_files.axivity,
    ".bin": clinical_files.geneactiv,
}
_BEGINS = {".xml": b"<HealthData", ".bin": b"Device Identity"}
"""What stands early in a file whose ending says too little."""
_HEAD_BYTES = 65_536
BINARY = frozenset(_READERS)
"""Endings of files that are read here."""
