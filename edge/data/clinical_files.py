"""Recordings of clinical studies, read as tables: each by its package.

- CWA, of Axivity's AX3 and AX6, and BIN, of GENEActiv: scikit-digital-health (Adamowicz et al.,
  "SciKit Digital Health", JMIR mHealth and uHealth 10(4), 2022), in the extra ``clinical``. Their
  clocks say no zone.
- WFDB, of PhysioNet: wfdb (Xie et al., "Waveform Database Software Package for Python", PhysioNet,
  2023), in ``clinical``; the file to name is the header, ``.hea``. Annotations ``.atr`` beside it
  are marks.
- Avro, of Empatica's EmbracePlus: fastavro, in the extra ``recordings``. Its tags are marks.

ActiGraph's GT3X is not read: the one package that is kept well is under the GPL.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.edge.data.binary_table import BinaryTable, column, marks_table

_AXES = "xyz"
_MOVEMENT = {"accelerometer": ("acc", "g"), "gyroscope": ("gyro", "deg/s")}
_SIGNALS = {"eda": ("eda", "µS"), "temperature": ("temperature", "°C"), "bvp": ("bvp", "")}
"""Of the wearable's data: names and units of the channels."""
_TAG = "tag"


def axivity(path: Path) -> list[BinaryTable]:
    """Accelerations, and rotations of an AX6."""
    from skdh.io import ReadCwa  # noqa: PLC0415 - only such files need it

    found = ReadCwa().predict(file=path)
    sensors = {"accel": ("acc", "g"), "gyro": ("gyro", "deg/s")}
    header, columns = ["time_s"], [found["time"]]
    for key, (name, unit) in sensors.items():
        if key in found:
            header += _axes(name, unit)
            columns += list(found[key].T)
    return [_wrist(header, columns, found["temperature"])]


def geneactiv(path: Path) -> list[BinaryTable]:
    """Accelerations, light and temperature."""
    from skdh.io import ReadBin  # noqa: PLC0415 - only such files need it

    found = ReadBin().predict(file=path)
    header = ["time_s", *_axes("acc", "g"), column("light", "lux")]
    columns = [found["time"], *found["accel"].T, found["light"]]
    return [_wrist(header, columns, found["temperature"])]


def _wrist(
    header: Sequence[str], columns: Sequence[NDArray[Any]], temperature: NDArray[Any]
) -> BinaryTable:
    return BinaryTable(
        name="wrist",
        header=(*header, column("temperature", "°C")),
        columns=(*columns, temperature),
    )


def wfdb_record(path: Path) -> list[BinaryTable]:
    """The signals of a record; without a date they begin at 0."""
    import wfdb  # noqa: PLC0415 - only such files need it

    record = wfdb.rdrecord(str(path.with_suffix("")))
    begun = record.base_datetime
    start = 0.0 if begun is None else begun.replace(tzinfo=dt.UTC).timestamp()
    times = start + np.arange(record.sig_len) / record.fs
    names = map(column, record.sig_name, map(_unit, record.units))
    header = ("time_s", *names)
    tables = [BinaryTable(name=path.stem, header=header, columns=(times, *record.p_signal.T))]
    if path.with_suffix(".atr").is_file():
        marked = wfdb.rdann(str(path.with_suffix("")), "atr")
        said = [
            note.strip("\0 (") or symbol
            for note, symbol in zip(marked.aux_note, marked.symbol, strict=True)
        ]
        starts = start + marked.sample / record.fs
        tables.append(marks_table(starts, np.full(len(starts), np.nan), said))
    return tables


def _unit(unit: str | None) -> str:
    """As it is written; ``NU`` is none."""
    return "" if unit in {None, "NU"} else str(unit)


def empatica_avro(path: Path) -> list[BinaryTable]:
    """A table for each sensor, all on the clock of the wearable, in UTC."""
    import fastavro  # noqa: PLC0415 - only such files need it

    with path.open("rb") as file:
        sessions: Iterable[Any] = fastavro.reader(file)
        records: list[Mapping[str, Any]] = [one["rawData"] for one in sessions]
    tables = []
    for raw in records:
        for key, (name, unit) in _MOVEMENT.items():
            if (raw.get(key) or {}).get("x"):
                tables.append(_movement(raw[key], name, unit))
        for key, (name, unit) in _SIGNALS.items():
            if (raw.get(key) or {}).get("values"):
                tables.append(_timed(raw[key], name, (column(name, unit),), raw[key]["values"]))
    tags = [one for raw in records for one in (raw.get("tags") or {}).get("tagsTimeMicros", ())]
    if tags:
        starts = np.array(tags, np.float64) / 1e6
        tables.append(marks_table(starts, np.full(len(starts), np.nan), [_TAG] * len(starts)))
    return tables


def _movement(sensor: Mapping[str, Any], name: str, unit: str) -> BinaryTable:
    """Counts of an analogue-to-digital converter in the sensor's unit."""
    scale = sensor["imuParams"]
    least, low = scale["digitalMin"], scale["physicalMin"]
    step = (scale["physicalMax"] - low) / (scale["digitalMax"] - least)
    values = [low + (np.array(sensor[axis], np.float64) - least) * step for axis in _AXES]
    return _timed(sensor, name, _axes(name, unit), *values)


def _timed(
    sensor: Mapping[str, Any], name: str, header: Sequence[str], *values: Sequence[float]
) -> BinaryTable:
    count = min(map(len, values))
    times = sensor["timestampStart"] / 1e6 + np.arange(count) / sensor["samplingFrequency"]
    columns = (np.asarray(one[:count], np.float64) for one in values)
    return BinaryTable(name=name, header=("time_s", *header), columns=(times, *columns))


def _axes(name: str, unit: str) -> list[str]:
    return [column(f"{name}_{axis}", unit) for axis in _AXES]
