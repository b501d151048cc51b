"""What the device makes of streams and files, for the browser: ``golden_intake.py FILE``.

Streams are given by whole numbers and few operations, so that both languages have the same bits.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets.digits import load_digits
from protofleet.edge.data.examples import read_csv
from protofleet.edge.data.intake import SensorIntake
from protofleet.edge.data.recording_files import label_in
from protofleet.edge.data.recordings import read_recordings
from protofleet.edge.data.unbundled import manifest_for
from protofleet.errors import InputError

_SMALL = Preprocessing(
    input_shape=(16, 3),
    rate_hz=20.0,
    window=16,
    hop=8,
    channels=("ax", "ay", "gx"),
    mean=(0.1, -0.2, 0.0),
    std=(0.5, 0.25, 2.0),
)
_HEAD = "time_ms,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z"
_BOTH = Preprocessing(
    input_shape=(20, 6),
    rate_hz=10.0,
    window=20,
    hop=10,
    channels=("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"),
    mean=(1.0, 0.5, 0.0, 0.0, 0.25, 0.0),
    std=(2.0, 1.0, 0.5, 1.0, 1.0, 4.0),
)
_MOTION = Preprocessing(
    input_shape=(128, 6),
    rate_hz=50.0,
    window=128,
    hop=64,
    channels=("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"),
    mean=(0.8, 0.0, 0.1, 0.0, 0.0, 0.0),
    std=(0.4, 0.4, 0.4, 0.3, 0.3, 0.3),
)


def cases() -> dict[str, Any]:
    """Everything that the file holds."""
    return {
        "streams": [_stream(**case) for case in _STREAMS],
        "csv": [_csv(name, text) for name, text in _CSV.items()],
        "units": [_units(units, head) for units in _UNITS for head in _UNIT_HEADS],
        "recordings": [_recordings(name, files) for name, files in _RECORDINGS.items()],
        "labels": [
            {"parts": parts, "said": label_in(parts, _CLASSES)} for parts in _NAMED_AFTER_CLASSES
        ],
        "npz": [_npz(name, deflated=deflated) for name in _ARRAYS for deflated in (False, True)],
        "digits": _digits(),
    }


def _sensor(rate_hz: float, channels: int, **more: Any) -> dict[str, Any]:
    """A stream of readings.

    ``jitter`` is in hundred thousandths of a second, ``gap`` (first, seconds) a silence before the
    first, ``set_back`` the same of a clock; from ``thin`` (first, end) all but each third are lost.
    """
    defaults = {
        "count": 400,
        "start_s": 0.0,
        "jitter": 0,
        "gap": None,
        "broken": [],
        "backwards": [],
        "set_back": None,
        "thin": None,
    }
    return {"rate_hz": rate_hz, "channels": channels, **defaults, **more}


_STREAMS: list[dict[str, Any]] = [
    {"name": "one sensor", "sensors": {"imu": _sensor(50.0, 3)}, "block": 400},
    {"name": "one by one", "sensors": {"imu": _sensor(64.0, 3, jitter=40)}, "block": 1},
    {
        "name": "slower than the bundle",
        "sensors": {"imu": _sensor(12.5, 3, count=120, start_s=1.5)},
        "block": 7,
    },
    {
        "name": "two sensors",
        "sensors": {"acc": _sensor(97.0, 2, count=900), "gyro": _sensor(31.0, 1, start_s=0.25)},
        "block": 50,
    },
    {
        "name": "gaps, numbers that are none, times that go back",
        "sensors": {
            "imu": _sensor(
                80.0,
                3,
                count=900,
                jitter=20,
                gap=[300, 1.25],
                broken=[40, 41, 700],
                backwards=[120],
            )
        },
        "block": 64,
    },
    {
        "name": "marks",
        "sensors": {"imu": _sensor(50.0, 3, count=500)},
        "block": 25,
        "marks": [[0.0, 1], [3.1, -1], [4.0, 2], [7.3, 0]],
    },
    {
        "name": "a clock that is set back",
        "sensors": {
            "imu": _sensor(
                40.0, 3, count=600, start_s=100.0, jitter=30, backwards=[80], set_back=[301, 5.5]
            )
        },
        "block": 20,
        "marks": [[0.0, 1], [104.0, 2]],
    },
    {
        "name": "two sensors on a clock that is set back",
        "sensors": {
            "acc": _sensor(50.0, 2, count=600, start_s=60.0, set_back=[310, 40.0]),
            "gyro": _sensor(50.0, 1, count=600, start_s=60.0, set_back=[310, 40.0]),
        },
        "block": 25,
    },
    {
        "name": "readings that thin out",
        "sensors": {"imu": _sensor(20.0, 3, count=600, thin=[200, 380])},
        "block": 30,
    },
    {
        "name": "motion",
        "motion": True,
        "sensors": {"imu": _sensor(61.0, 6, count=420, jitter=30)},
        "block": 1,
    },
]


def readings(spec: dict[str, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Times and values of a stream, as ``windows.test.ts`` makes them, too."""
    times, rows = [], []
    for i in range(spec["count"]):
        late = spec["gap"][1] if spec["gap"] and i >= spec["gap"][0] else 0.0
        if spec["thin"] and spec["thin"][0] <= i < spec["thin"][1] and i % 3:
            continue
        back = spec["set_back"][1] if spec["set_back"] and i >= spec["set_back"][0] else 0.0
        time = spec["start_s"] + late + i / spec["rate_hz"] + (i * 37 % 11) * spec["jitter"] * 1e-5
        time -= back
        times.append(time - 1.0 if i in spec["backwards"] else time)
        row = [((i * i * 13 + i * 7 + c * 311) % 401 - 200) / 100 for c in range(spec["channels"])]
        rows.append([np.nan] * len(row) if i in spec["broken"] else row)
    return np.array(times), np.array(rows)


def _stream(
    *, name: str, sensors: dict[str, Any], block: int, marks: Any = (), motion: bool = False
) -> dict[str, Any]:
    intake = SensorIntake(
        _MOTION if motion else _SMALL, {key: spec["rate_hz"] for key, spec in sensors.items()}
    )
    for time_s, label in marks:
        intake.mark(time_s, label)
    streams = {key: readings(spec) for key, spec in sensors.items()}
    windows = []
    for begin in range(0, max(len(times) for times, _ in streams.values()), block):
        for key, (times, rows) in streams.items():
            part = slice(begin, begin + block)
            if len(times[part]):
                windows += intake.push(key, times[part], rows[part])
    windows += intake.flush()
    return {
        "name": name,
        "motion": motion,
        "sensors": sensors,
        "block": block,
        "marks": list(marks),
        "windows": [
            {"start_s": one.start_s, "label": one.label, "x": _packed(one.x)} for one in windows
        ],
        "counters": {
            key: [
                one.not_finite,
                one.not_forward,
                one.gaps,
                one.set_back,
                one.unmatched,
                one.interpolated_windows,
            ]
            for key, one in intake.counters.items()
        },
    }


def _packed(values: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _samples(
    count: int, *, step: float = 0.05, time: str = "time_s", label: str = "", back: float = 0.0
) -> str:
    rows = [f"{time},gx,ay,ax,note,label"] if label else [f"{time},gx,ay,ax"]
    for i in range(count):
        when = i * step - (back if i >= count // 2 else 0.0)
        row = f"{when:.6g},{i % 7},{i % 5 - 2}.5,{-(i % 3)}e-1"
        rows.append(f'{row},"a, ""b""",{label if i < count // 2 else "1"}' if label else row)
    return "\n".join(rows) + "\n"


def _stamped(stamp: Callable[[int], str], label: str = "", *, count: int = 400) -> str:
    """Samples with these times."""
    head, *rows = _samples(count, label=label).splitlines()
    times = [f"{stamp(i)},{row.split(',', 1)[1]}" for i, row in enumerate(rows)]
    return "\n".join([head, *times, ""])


def _rows(count: int, width: int) -> list[str]:
    return [",".join(str((i * 3 + c) % 10) for c in range(width)) for i in range(count)]


_DIGITS = 40
_HEADER = ",".join(f"v{c}" for c in range(48))
_CSV = {
    "samples": _samples(70),
    "samples with labels": _samples(120, label="walk"),
    "milliseconds, CRLF and a mark of byte order": "\ufeff"
    + _samples(60, step=50, time="time_ms").replace("\n", "\r\n"),
    "without times": "ax,ay,gx\n" + "\n".join("0.5,1_0,.25" for _ in range(40)),
    "empty cells": _samples(70).replace("0,-1.5,-0e-1", ",,"),
    "examples": "\n".join([_HEADER + ",label", *[row + ",walk" for row in _rows(4, 48)]]),
    "examples without a first row": "\n".join([*_rows(3, 48), ""]),
    "examples, some without a label": "\n".join(
        [
            _HEADER + ",label",
            *[
                row + tail
                for row, tail in zip(_rows(4, 48), (",walk", ",", ",1", ","), strict=True)
            ],
        ]
    ),
    "nothing": "",
    "a class that is none": "\n".join([_HEADER + ",label", _rows(1, 48)[0] + ",swim"]),
    "a word in the place of a number": _samples(70).replace("-1.5", "?"),
    "a row too short": _samples(70) + "1,2\n",
    "a quote that does not close": _samples(70) + '"1,2,3,4\n',
    "times that do not ascend": "time_s,ax,ay,gx\n" + "5,1,1,1\n" * 40,
    "seconds in the place of milliseconds": _samples(70, time="time_ms"),
    "milliseconds in the place of seconds": _samples(200, step=50),
    "times in words": _samples(70).replace("0.05,", "08:00:01,"),
    "a clock that is set back where the label changes": _samples(160, label="run", back=2.5),
    "whole seconds, begun and ended within one": _stamped(
        lambda i: str((i + 7) // 20), label="walk"
    ),
    "packets, with a pause": _stamped(
        lambda i: f"{(i + 3) // 10 * 0.5 + i % 10 * 1e-3 + (7.5 if i > 250 else 0):.6g}"
    ),
    "whole seconds of a clock that is set back": _stamped(
        lambda i: str(i // 20 - (40 if i >= 130 else 0))
    ),
    "too few samples": _samples(10),
    "a column twice": "time_s,ax,ay,gx,ax\n" + "0,1,1,1,1\n" * 40,
    "a channel too few": _samples(70).replace("gx", "unknown"),
    "semicolons": _samples(70).replace(",", ";"),
    "decimal commas": _samples(70).replace(",", ";").replace(".", ","),
    "tabs": _samples(70).replace(",", "\t"),
    "bars": _samples(70).replace(",", "|"),
    "blanks": _samples(70).replace(",", "  "),
    "closed rows": _samples(70).replace("\n", ",\n"),
    "closed rows but for the names": _samples(70).replace("\n", ",\n").replace("ax,\n", "ax\n", 1),
    "a row that is cut off": _samples(70) + "5,1",
    "comments": f"# of a logger\n\n// 2026\n{_samples(70)}",
    "lines before the table": f"Logger 3\nstart,12:00\n{_samples(70)}",
    "a logger's own words before the table": "------- Data File Created By a Logger -------\n"
    "Serial Number: X000\nStart Time 12:00:00\nStart Date 5/1/2024\n"
    "Epoch Period (hh:mm:ss) 00:00:00\n"
    f"Current Memory Address: 0\nBattery Voltage: 4.02   Mode = 12\n{_samples(70)}",
    "capital letters": _samples(70).replace("ax", "AX"),
    "units in names": _samples(70).replace("ax", "AX [g]").replace("ay", "AY [m/s^2]"),
    "units that nobody knows": _samples(70).replace("gx", "GX (furlong)"),
    "two columns for a channel": _samples(70).replace("gx", "Ax").replace("ax", "AX"),
    "an index": "".join(
        f"{k - 1 if k else ''},{line}\n" for k, line in enumerate(_samples(70).splitlines())
    ),
    "milliseconds in time": _stamped(lambda i: str(50 * i), count=70).replace("time_s", "time"),
    "a unit in the name of times": _stamped(lambda i: str(50 * i), count=70).replace(
        "time_s", "Stamp (ms) of time [ms]"
    ),
    "nanoseconds in a timestamp": _stamped(lambda i: str(50_000_000 * i), count=70).replace(
        "time_s", "timestamp"
    ),
    "days": _stamped(lambda i: f"{45413 + i / 1_728_000:.9f}", count=70).replace("time_s", "Date"),
    "dates": _stamped(lambda i: f"2026-11-28 09:00:{i / 20:06.3f}", count=70).replace(
        "time_s", "DateTime"
    ),
    "dates in a zone": _stamped(
        lambda i: f"2026-11-28T09:00:{i / 20:06.3f}+01:00", count=70
    ).replace("time_s", "t"),
    "dates with the month first": _stamped(
        lambda i: f"05/{'01' if i < 20 else '02'}/2024 12:00:{i / 20:06.3f}", count=70
    ).replace("time_s", "Timestamp"),
    "dates with the day first, halves of a day": _stamped(
        lambda i: f"31.1.2024 1:05:{i / 20:05.2f} PM", count=70
    ).replace("time_s", "date"),
    "a slow clock": _stamped(str, count=70).replace("time_s", "timestamp"),
    "labels in capital letters": _samples(120, label="Walk"),
    "activities": _samples(70, label="walk").replace("label", "Activity"),
    "words for no value": _samples(120, label="walk")
    .replace("0,-1.5,-0e-1", "NA,null,na")
    .replace("0.1,", "NULL,")
    .replace(",walk", ",NA", 9),
    "a word for no value in an example": "\n".join([_HEADER, "NA" + _rows(1, 48)[0][1:]]),
    "a first row with a word for no value": "\n".join(["NA" + _rows(1, 48)[0][1:], *_rows(2, 48)]),
    "an empty cell of an example": "\n".join([_HEADER, _rows(1, 48)[0][:-1]]),
}


_UNITS = [
    ["m/s²", "m/s²", "m/s²", "°/s", "°/s", "°/s"],
    ["g", "g", "g", "rad/s", "rad/s", "rad/s"],
    ["bananas", "bananas", "bananas", "rad/s", "rad/s", "rad/s"],
]
_UNIT_HEADS = [
    "time_ms,acc_x [g],acc_y [g],acc_z [g],gyro_x [deg/s],gyro_y [deg/s],gyro_z [deg/s]",
    "time_ms,acc_x (m/s^2),acc_y (m/s^2),acc_z (m/s^2),gyro_x [dps],gyro_y [dps],gyro_z [dps]",
    "time_ms,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z",
    "time_ms,acc_x [Bananas],acc_y [bananas],acc_z [bananas],gyro_x,gyro_y,gyro_z",
]


def _units(units: list[str], head: str) -> dict[str, Any]:
    """A bundle that is not normalised and says its units."""
    plain = msgspec.structs.replace(_BOTH, mean=(0.0,), std=(1.0,), units=tuple(units))
    text = _sensor_table(head, columns=6, unit=_MS)
    manifest = manifest_for(plain, _NAMES)
    blocks = list(read_csv(io.BytesIO(text.encode()), "'mine.csv'", manifest))
    return {"units": units, "text": text, "x": _packed(np.concatenate([one.x for one in blocks]))}


def _csv(name: str, text: str) -> dict[str, Any]:
    manifest = manifest_for(_SMALL, ("run", "walk"))
    found: dict[str, Any] = {"name": name, "text": text}
    try:
        blocks = list(read_csv(io.BytesIO(text.encode()), "'mine.csv'", manifest))
    except InputError as error:
        return {**found, "refused": str(error)}
    starts = [None if one.start_s is None else one.start_s.tolist() for one in blocks]
    return {
        **found,
        "x": _packed(np.concatenate([one.x for one in blocks])),
        "labels": np.concatenate([one.y for one in blocks]).tolist(),
        "start_s": None if None in starts else [time for one in starts for time in one or ()],
    }


_NAMES = ("still", "walk")
_CLASSES = ("still", "walk", "walk up", "1", "größe")
_NAMED_AFTER_CLASSES = [
    ["home", "rec1"],
    ["home", "Walk_03"],
    ["walk", "2024-05-01"],
    ["walk", "still"],
    ["walkUp-1"],
    ["still and walk"],
    ["walker"],
    ["GRÖSSE", "Größe 3"],
]


def _sensor_table(
    head: str, *, rate_hz: int = 10, columns: int = 3, unit: int = 1, late: int = 0
) -> str:
    """Readings of 30 s by whole numbers; ``unit``: of times, in a second; ``late``: so many."""
    rows = []
    for k in range(30 * rate_hz):
        cells = [(k + late) * unit // rate_hz, *((k * k + 7 * c) % 11 for c in range(columns))]
        rows.append(",".join(map(str, cells)))
    return "\n".join([head, *rows, ""])


def _logged(tables: dict[str, str]) -> str:
    """Sensor Logger's JSON of tables; some of its numbers are texts."""
    readings: list[dict[str, Any]] = []
    for sensor, text in tables.items():
        header, *rows = (line.split(",") for line in text.strip("\n").split("\n"))
        for k, row in enumerate(rows):
            said = {
                n: int(v) if v.isdigit() and k % 2 else v for n, v in zip(header, row, strict=True)
            }
            readings.append({"sensor": sensor, **said, "extra": [k, {"no": '"}'}]})
    return json.dumps(readings)


_NS, _MS = 10**9, 1000
_RECORDINGS: dict[str, dict[str, str]] = {
    "a phone's logger, with marks": {
        "Accelerometer.csv": _sensor_table("time,seconds_elapsed,z,y,x", columns=4, unit=_NS),
        "Gyroscope.csv": _sensor_table("time,x,y,z", rate_hz=20, unit=_NS, late=3),
        "AccelerometerUncalibrated.csv": _sensor_table("time,z,y,x", unit=_NS),
        "Annotation.csv": f"time,text\n0,still\n{12 * _NS},walk\n{20 * _NS},\n",
        "Metadata.csv": "version,device name\n3,phone\n",
    },
    "a phone's logger as JSON, with marks": {
        "log.json": _logged(
            {
                "Accelerometer": _sensor_table("time,seconds_elapsed,z,y,x", columns=4, unit=_NS),
                "Gyroscope": _sensor_table("time,x,y,z", rate_hz=20, unit=_NS, late=3),
                "Annotation": f"time,text\n0,still\n{12 * _NS},walk\n{20 * _NS},\n",
                "Metadata": "version,device name\n3,phone\n",
            }
        ),
        "notes.json": '{"written by": "another program"}',
    },
    "a logger's JSON that is cut off": {
        "log.json": '[{"sensor": "Accelerometer", "time": "1", "x": "1"}'
    },
    "sensors in a folder that is named after the activity": {
        "walk/Acc.csv": _sensor_table("timestamp [ms],x,y,z", unit=_MS),
        "walk/gyro.csv": _sensor_table("timestamp [ms],x,y,z", unit=_MS),
        "still/Acc.csv": _sensor_table("timestamp [ms],x,y,z", unit=_MS),
        "still/gyro.csv": _sensor_table("timestamp [ms],x,y,z", unit=_MS),
    },
    "a sensor that says its own labels": {
        "acc.csv": _sensor_table("time_ms,x,y,z", unit=_MS),
        "gyro.csv": "time_ms,x,y,z,label\n"
        + "".join(f"{100 * k},1,2,3,{'walk' if k > 120 else 'still'}\n" for k in range(300)),
    },
    "marks with an end, from the beginning of the recording": {
        "acc.csv": _sensor_table("time_s,x,y,z", late=50000),
        "gyro.csv": _sensor_table("time_s,x,y,z", late=50000),
        "notes.txt": "start_s;end_s;label\n2;12;still\n12;25;walk\n",
    },
    "one table an activity": {
        "walk 1.csv": _sensor_table(_HEAD, columns=6, unit=_MS),
        "still.csv": _sensor_table(_HEAD, columns=6, unit=_MS),
        "readme.txt": "what this is\n",
    },
    "sensors that never overlap": {
        "acc.csv": _sensor_table("time_ms,x,y,z", unit=_MS),
        "gyro.csv": _sensor_table("time_ms,x,y,z", unit=_MS, late=10000),
    },
    "marks of another clock": {
        "acc.csv": _sensor_table("time_ms,x,y,z", unit=_MS),
        "gyro.csv": _sensor_table("time_ms,x,y,z", unit=_MS),
        "marks.csv": "time_s,label\n5000000,walk\n",
    },
}


def _recordings(name: str, files: dict[str, str]) -> dict[str, Any]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():  # with one fixed time: the file's bytes are compared
            archive.writestr(zipfile.ZipInfo(path), text, zipfile.ZIP_DEFLATED)
    found: dict[str, Any] = {
        "name": name,
        "zip": base64.b64encode(packed.getvalue()).decode(),
    }
    manifest = manifest_for(_BOTH, _NAMES)
    with TemporaryDirectory() as folder:
        place = Path(folder) / "mine.zip"
        place.write_bytes(packed.getvalue())
        try:
            blocks = list(read_recordings([str(place)], manifest))
        except InputError as error:
            return {**found, "refused": str(error).replace(str(place), "mine.zip")}
    return {
        **found,
        "x": _packed(np.concatenate([one.x for one in blocks])),
        "labels": np.concatenate([one.y for one in blocks]).tolist(),
    }


_ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3) / 3,
    "float64": np.array([[1 / 3, -np.inf], [np.nan, 2.5e-300]]),
    "float16": np.array([1.5, -0.0625, 6e-8, 65504], np.float16),
    "big-endian": np.array([1, -2, 300], ">i4"),
    "int64": np.array([[-5], [2**40]]),
    "uint8 by columns": np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(2, 3, 4)),
    "bool": np.array([True, False]),
    "text": np.array(["gehen", "läuft 🏃"]),
    "bytes": np.array([b"a", b"bcd"]),
    "none": np.zeros((0, 4), np.float32),
    "number": np.float64(7.0).reshape(()),
}


def _npz(name: str, *, deflated: bool) -> dict[str, Any]:
    file = io.BytesIO()
    with zipfile.ZipFile(
        file, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    ) as archive:
        # One fixed time: the file's bytes are compared.
        for member, array in {"other": np.zeros(3), "x": _ARRAYS[name]}.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array)
            info = zipfile.ZipInfo(f"{member}.npy")
            info.compress_type = archive.compression
            with archive.open(info, "w", force_zip64=True) as entry:
                entry.write(content.getvalue())
    array = _ARRAYS[name]
    text = array.dtype.kind in "US"
    plain = [
        (one.decode() if isinstance(one, bytes) else one) if text else str(float(one))
        for one in array.reshape(-1).tolist()
    ]
    return {
        "name": f"{name}, {'deflated' if deflated else 'stored'}",
        "file": base64.b64encode(file.getvalue()).decode(),
        "shape": list(array.shape),
        "text": text,
        "values": plain,
    }


def _digits() -> dict[str, str]:
    """By digit its first images in the data set, each as 64 letters: a to q for 0 to 16."""
    images, labels = load_digits()
    counts = (images * 16).astype(int).reshape(len(labels), -1)
    return {
        str(digit): " ".join(
            "".join(chr(97 + count) for count in row) for row in counts[labels == digit][:_DIGITS]
        )
        for digit in range(10)
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(
        json.dumps(cases(), indent=None, separators=(",", ":"), ensure_ascii=True) + "\n"
    )
