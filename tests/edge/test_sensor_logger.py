"""Sensor Logger's JSON: the windows of the same app's zip of CSV tables."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
import zipfile

import msgspec
import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data import sensor_logger
from protofleet.edge.data.examples import load_examples
from protofleet.edge.data.recording_files import recording_files
from protofleet.edge.data.sensor_logger import logged_tables
from protofleet.errors import InputError

_SINCE_NS = 1_698_501_144_401_833_200
_INPUTS = Preprocessing(
    input_shape=(20, 6),
    rate_hz=10.0,
    window=20,
    hop=10,
    channels=("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"),
)


@pytest.fixture
def manifest(world):
    return msgspec.structs.replace(
        world.bundle.manifest, preprocessing=_INPUTS, classes=("still", "walk")
    )


def _objects(seconds=40, *, texts=True):
    """What the app writes: texts, or numbers; sensors by turns, at 20 and at 10 Hz."""
    said = str if texts else float
    found = [{"sensor": "Metadata", "version": "3", "device name": 'a "phone", mine\n'}]
    for k in range(20 * seconds):
        for sensor, each in (("Accelerometer", 1), ("Gyroscope", 2)):
            if k % each == 0:
                t = k / 20 + 0.003 * each
                time = _SINCE_NS + int(t * 1e9)
                found.append(
                    {
                        "sensor": sensor,
                        "time": str(time) if texts else time,
                        "seconds_elapsed": said(t),
                        **{axis: said(np.sin(each * t + n)) for n, axis in enumerate("zyx")},
                    }
                )
    for t, text in ((0.0, "still"), (20.0, "walk")):
        mark = {"time": str(_SINCE_NS + int(t * 1e9)), "seconds_elapsed": said(t), "text": text}
        found.insert(1, {"sensor": "Annotation", **mark})
    return found


def _zipped(path, objects):
    """The same as the app's zip."""
    tables = {}
    for one in objects:
        tables.setdefault(one["sensor"], []).append({k: v for k, v in one.items() if k != "sensor"})
    with zipfile.ZipFile(path, "w") as archive:
        for name, rows in tables.items():
            text = io.StringIO()
            writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: str(v).replace("\n", " ") for k, v in row.items()} for row in rows)
            archive.writestr(f"{name}.csv", text.getvalue())
    return path


def _read(source, manifest):
    blocks = list(load_examples(str(source), manifest))
    joined = (np.concatenate([getattr(one, name) for one in blocks]) for name in ("x", "y"))
    return (*joined, np.concatenate([one.start_s for one in blocks]))


@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize("form", ["file", "folder", "zip"])
def test_its_windows_are_those_of_the_zip_of_tables(tmp_path, manifest, texts, form):
    objects = _objects(texts=texts)
    want = _read(_zipped(tmp_path / "phone.zip", objects), manifest)
    assert (want[1][0], want[1][-1]) == (0, 1)
    source = tmp_path / "mine" / "phone.json"
    source.parent.mkdir()
    source.write_text(json.dumps(objects, indent=1 if texts else None))
    (source.parent / "package.json").write_text('{"name": "of another program"}')
    if form == "folder":
        source = source.parent
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
            for one in source.parent.iterdir():
                archive.write(one, one.name)
        source = tmp_path / "packed.zip"
    for got, wanted in zip(_read(source, manifest), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_values_that_are_none_are_empty_cells_and_texts_stay_in_their_row(tmp_path):
    objects = [
        {"sensor": "Note\ud800", "text": '#1\r\n2, "3"', "time": 1e999, "x": [1]},
        {"sensor": "Note\ud800", "time": None, "late": 12345678901234567890123, "text": "\ud800"},
    ]
    (tmp_path / "a.json").write_text(json.dumps(objects))
    (file,) = recording_files([str(tmp_path / "a.json")])
    assert file.parts == ("a", "Note?")
    with file.open() as stream:
        rows = [row.cells for rows in file.rows(stream) for row in rows]
    assert rows == [
        ["time", "text", "x", "late"],
        ["Infinity", '#1 2, "3"', "", ""],
        ["", "?", "", "12345678901234567890123"],
    ]


_GOOD = '{"sensor": "A", "time": "1"}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "behind 0 of them its end is missing"),
        ("[]", "expected readings of sensors, got none"),
        ('[{"sensor": "A"}]', "expected readings of sensors, got none"),
        (_GOOD, "behind 0 of them got '{"),
        (f"[{_GOOD}, {_GOOD[:-3]}", "behind 1 of them its end is missing; export it again"),
        (f"[{_GOOD}, ", "behind 1 of them its end is missing"),
        (f"[{_GOOD} {_GOOD}]", "behind 1 of them got '{"),
        (f"[{_GOOD}] [", "behind 1 of them got '\\['"),
        (f"[{_GOOD}, 7]", "behind 1 of them got '7"),
        (f'[{_GOOD}, {{"time": "1"}}]', "object 2: expected its 'sensor'"),
        ('[{"sensor": [7], "x": 1}]', "object 1: expected its 'sensor'"),
        (f'[{{"sensor": "{"A" * 201}"}}]', "object 1: expected its 'sensor'"),
        ('[{"sensor": "A", "x": ' + "[" * 200_000, "one is too deep"),
        ('[{"sensor": "A", "x": "' + "y" * (2 << 20), "no end within 1048576 letters"),
        ("[" + ",".join(f'{{"sensor": "{k}", "x": 1}}' for k in range(1001)) + "]", "at most 1000"),
        (b'[{"sensor": "\xff"}]', "expected JSON in UTF-8"),
    ],
)
def test_what_is_none_of_its_is_refused_by_name(tmp_path, text, said):
    path = tmp_path / "phone.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=rf"data '{path}'.*{said}"):
        recording_files([str(path)])


def test_a_number_that_is_none_is_the_tables_to_refuse(tmp_path, manifest):
    objects = _objects()
    next(one for one in objects[100:] if one["sensor"] == "Gyroscope")["x"] = "wide"
    (tmp_path / "phone.json").write_text(json.dumps(objects))
    with pytest.raises(InputError, match=r"Gyroscope', line 3\d, .*expected a number, got 'wi"):
        _read(tmp_path / "phone.json", manifest)


@pytest.mark.parametrize("bytes_at_once", [1, 7, 1 << 16])
def test_objects_are_found_wherever_the_text_is_cut(monkeypatch, bytes_at_once):
    monkeypatch.setattr(sensor_logger, "_BLOCK_BYTES", bytes_at_once)
    text = json.dumps(_objects(1), ensure_ascii=False).replace("mine", "größe").encode()
    tables = logged_tables(io.BytesIO(b"\xef\xbb\xbf" + text + b"\n"), "it")
    assert [one.name for one in tables] == ["Accelerometer", "Annotation", "Gyroscope", "Metadata"]
    lines = tables[3].stream(io.BytesIO(text)).read1(1000).decode().splitlines()
    assert lines == ["version,device name", '3,"a ""phone"", größe "']


def test_memory_does_not_grow_with_the_file():
    """A table is read in a pass that keeps none of it."""
    peaks = []
    for seconds in (50, 50, 200):
        text = json.dumps(_objects(seconds)).encode()
        tracemalloc.start()
        try:
            table, *_ = logged_tables(io.BytesIO(text), "it")
            stream = table.stream(io.BytesIO(text))
            while stream.read1(1 << 12):
                pass
            peaks.append((tracemalloc.get_traced_memory()[1], len(text)))
        finally:
            tracemalloc.stop()
    (_, (short, few), (long, many)) = peaks
    assert long - short < (many - few) / 10
