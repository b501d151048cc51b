"""Recordings of several tables: files, folders, zips, and sensors with a table each."""

from __future__ import annotations

import struct
import zipfile

import msgspec
import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data import recording_files as files
from protofleet.edge.data.examples import load_examples
from protofleet.edge.data.recording_files import label_in, recording_files
from protofleet.errors import InputError, MissingDataError

_INPUTS = Preprocessing(
    input_shape=(20, 3), rate_hz=10.0, window=20, hop=10, channels=("acc_x", "acc_y", "acc_z")
)
_BOTH = Preprocessing(
    input_shape=(20, 6),
    rate_hz=10.0,
    window=20,
    hop=10,
    channels=("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"),
    mean=(0.0, 0.0, 9.8, 0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
)
_S = 40


@pytest.fixture
def manifest(world):
    return msgspec.structs.replace(
        world.bundle.manifest, preprocessing=_INPUTS, classes=("still", "walk", "walk up")
    )


@pytest.fixture
def both(manifest):
    return msgspec.structs.replace(manifest, preprocessing=_BOTH)


def _table(head="time_s,acc_x,acc_y,acc_z", rate=10.0, shift=0.0, scale=1.0, unit=1.0):
    t = np.arange(int(_S * rate)) / rate
    rows = [
        f"{(s + shift) / unit:.6f},{scale * np.sin(s)},{scale * s / 9},{scale}" for s in t.tolist()
    ]
    return "\n".join([head, *rows, ""])


def _read(sources, manifest, **options):
    found = []
    blocks = list(
        load_examples([str(one) for one in sources], manifest, told=found.append, **options)
    )
    y = np.concatenate([np.zeros(0, int), *(one.y for one in blocks)])
    return blocks, y.tolist(), found


@pytest.fixture
def folder(tmp_path):
    """A folder of a class with two recordings, a file of another, and what is none."""
    place = tmp_path / "mine"
    (place / "walk").mkdir(parents=True)
    for name in ("walk/one.csv", "walk/two.csv", "still 3.csv"):
        (place / name).write_text(_table())
    (place / "notes.txt").write_text("These are notes\nof a person\n")
    (place / ".hidden.csv").write_text("no table")
    (place / "picture.png").write_bytes(b"\x89PNG")
    return place


def _zip(path, folder):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
        archive.writestr("__MACOSX/walk/._one.csv", "no table")
    return path


def test_a_folder_and_a_zip_are_its_tables_labelled_by_their_names(folder, tmp_path, manifest):
    _, y, found = _read([folder], manifest)
    names = [one.name.removeprefix(f"{folder}/") for one in found]
    assert names == ["notes.txt", "still 3.csv", "walk/one.csv", "walk/two.csv"]
    assert [bool(one.refused) for one in found] == [True, False, False, False]
    each = len(y) // 3
    assert y == [0] * each + [1] * 2 * each
    assert found[1].text(manifest.classes) == f"{each} examples over 38 s: still {each}"
    packed = _zip(tmp_path / "mine.zip", folder)
    assert _read([packed], manifest)[1] == y
    (tmp_path / "all").mkdir()
    packed.rename(tmp_path / "all" / "mine.zip")
    assert _read([tmp_path / "all"], manifest)[1] == y
    several = _read([folder / "still 3.csv", folder / "walk"], manifest)
    assert several[1] == y


def test_a_column_of_labels_says_more_than_a_name(tmp_path, manifest, caplog):
    lines = _table("time_s,acc_x,acc_y,acc_z,label").splitlines()
    table = tmp_path / "walk.csv"
    table.write_text("\n".join([lines[0], *(f"{one},still" for one in lines[1:])]))
    assert set(_read([table], manifest)[1]) == {0}
    assert "by its name" not in caplog.text


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (("home", "rec1"), None),
        (("home", "Walk_03"), "walk"),
        (("walk", "2024-05-01"), "walk"),
        (("walk", "still"), "still"),
        (("walkUp-1",), "walk up"),
        (("still and walk",), None),
        (("walker",), None),
    ],
)
def test_a_class_is_named_by_its_words(parts, said):
    assert label_in(parts, ("still", "walk", "walk up", "1")) == said


def test_sensors_with_a_table_each_are_one_recording(tmp_path, both, caplog):
    """Clocks of milliseconds and of nanoseconds, rates of 10 and 20 Hz, and a person's marks."""
    place = tmp_path / "phone.zip"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("Gyroscope.csv", _table("time,x,y,z", rate=20.0, scale=0.5, unit=1e-9))
        archive.writestr("Accelerometer.csv", _table("time,z,y,x", shift=0.02, scale=9, unit=1e-9))
        archive.writestr("AccelerometerUncalibrated.csv", _table("time,z,y,x", scale=7, unit=1e-9))
        archive.writestr("Annotation.csv", f"time,text\n0,still\n{int(20e9)},walk\n")
        archive.writestr("Metadata.csv", "version,device name\n3,phone\n")
    blocks, y, (found,) = _read([place], both)
    assert found.name == str(place)
    x = np.concatenate([one.x for one in blocks])
    assert x.shape[1:] == (20, 6)
    assert (y[0], y[-1], set(y)) == (0, 1, {0, -1, 1})
    # The accelerometer's first column is z, the gyroscope's x.
    middle = x[len(x) // 2]
    np.testing.assert_allclose(middle[:, 0], 9.0, atol=0.05)
    np.testing.assert_allclose(middle[:, 5], 0.5, atol=0.05)
    slope = np.diff(middle[:, 4]).mean() * 10
    assert slope == pytest.approx(0.5 / 9, rel=0.05)
    assert "'x' is gyro_x" in caplog.text


def test_another_folder_between_its_tables_leaves_a_recording_whole(tmp_path, both):
    for name in ("Accelerometer", "Gyroscope"):
        (tmp_path / f"{name}.csv").write_text(_table("time_s,x,y,z"))
    (tmp_path / "Camera").mkdir()
    (tmp_path / "Camera" / "frames.csv").write_text("time_s,frame\n0,1\n")
    blocks, _, found = _read([tmp_path], both)
    assert blocks
    assert [bool(one.refused) for one in found] == [False, True]


def test_a_gyroscope_s_file_has_no_accelerations(tmp_path, manifest):
    table = tmp_path / "Gyroscope.csv"
    table.write_text(_table("time_s,x,y,z"))
    with pytest.raises(InputError, match="got the columns time_s, x, y, z"):
        _read([table], manifest)
    assert _read([table.rename(tmp_path / "Accelerometer.csv")], manifest)[1]


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ("start_s,end_s,label\n0,20,still\n20,30,walk\n", {0, 1, -1}),
        ("Time [ms];Activity\n0;walk\n", {1}),
        ("onset,event\n1000,still\n", {0, -1}),
        ("onset_s,event\n1000,still\n", "expected times of the samples' clock, 0.0 to 39.9 s"),
        ("time_s,event\n1000,still\n", "expected times of the samples' clock, 0.0 to 39.9 s"),
        ("time,text\nnoon,still\n", "line 2: expected a time, got 'noon'"),
        ("time,text\n0,still\n,walk\n", "line 3: expected a time, got ''"),
        ("time,text\n0,still\ninf,walk\n", "line 3: expected a time, got 'inf'"),
        ("time,text\n0,still\n20\n", {0, -1}),
        ("start_s,end_s,label\n0,,still\n20,,walk\n", {0, 1, -1}),
    ],
)
def test_marks_of_a_person_label_windows(tmp_path, manifest, marks, said):
    (tmp_path / "Accelerometer.csv").write_text(_table("time_s,x,y,z"))
    (tmp_path / "annotations.csv").write_text(marks)
    if isinstance(said, str):
        with pytest.raises(InputError, match=said):
            _read([tmp_path], manifest)
    else:
        assert set(_read([tmp_path], manifest)[1]) == said


def test_sensors_that_never_overlap_are_told_with_their_times(tmp_path, both):
    (tmp_path / "Accelerometer.csv").write_text(_table("time_s,x,y,z"))
    (tmp_path / "Gyroscope.csv").write_text(_table("time_s,x,y,z", shift=1e9))
    with pytest.raises(InputError, match=r"at the same time.*r from 0.0 to 39.9 s; Gyroscope from"):
        _read([tmp_path], both)


def test_what_cannot_be_read_is_named(tmp_path, folder, manifest, monkeypatch):
    with pytest.raises(MissingDataError, match="no such file or folder"):
        recording_files([str(tmp_path / "nowhere")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingDataError, match=r"no table in it; expected files .* \.csv, \.cwa"):
        recording_files([str(tmp_path / "empty")])
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 20, 3), np.float32))
    with pytest.raises(InputError, match="expected it alone, or recordings alone"):
        _read([tmp_path / "x.npz", folder], manifest)
    (folder / "walk" / "two.csv").write_text(_table()[:200])
    _, _, found = _read([folder], manifest)
    assert "expected samples for a window" in found[-1].refused
    monkeypatch.setattr(files, "MOST_FILES", 2)
    with pytest.raises(InputError, match="expected at most 2 tables, got 4"):
        recording_files([str(folder)])


def test_a_zip_that_explodes_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("walk.csv", "0,0,0,0\n" * 200_000)
    monkeypatch.setattr(files, "_SMALL_BYTES", 1000)
    with pytest.raises(InputError, match=r"'walk.csv' unpacks \d+ bytes to 1600000, which no"):
        recording_files([str(path)])


def test_a_damaged_or_encrypted_zip_is_named(tmp_path, folder, manifest):
    path = _zip(tmp_path / "mine.zip", folder)
    data = bytearray(path.read_bytes())
    middle = data.index(b"walk/one.csv") + 40
    data[middle : middle + 8] = bytes(8)
    path.write_bytes(data)
    refused = [one.refused for one in _read([path], manifest)[2] if "one.csv" in one.name]
    assert len(refused) == 1
    assert "one.csv' cannot be unpacked" in refused[0]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("walk.csv", _table())
    data = bytearray(path.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        struct.pack_into("<H", data, data.index(header) + flags, 1)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"walk.csv' cannot be unpacked .*encrypted"):
        _read([path], manifest)


def test_marks_of_a_recording_of_dates_may_count_from_its_beginning(tmp_path, manifest, caplog):
    (tmp_path / "marks.csv").write_text("start_s,end_s,label\n0,20,still\n20,30,walk\n")
    lines = _table().splitlines()[1:]
    dated = [
        f"2026-11-28 09:00:{k / 10:06.3f},{one.split(',', 1)[1]}" for k, one in enumerate(lines)
    ]
    rows = ["DateTime,acc_x,acc_y,acc_z", *dated]
    (tmp_path / "rec.csv").write_text("\n".join(rows))
    _, y, _ = _read([tmp_path / "rec.csv"], manifest, labels=str(tmp_path / "marks.csv"))
    assert (y[0], set(y)) == (0, {0, 1, -1})
    assert "times in 'start_s' taken from the beginning of the recording" in caplog.text


def test_marks_may_be_named_for_any_recording(tmp_path, manifest):
    marks = tmp_path / "marks.csv"
    marks.write_text("start_s,end_s,label\n0,20,still\n20,30,walk\n")
    table = tmp_path / "rec.csv"
    table.write_text(_table())
    _, y, _ = _read([table], manifest, labels=str(marks))
    assert (y[0], set(y)) == (0, {0, 1, -1})
    unnamed = tmp_path / "unnamed.csv"
    unnamed.write_text(_table().split("\n", 1)[1])
    columns = ("time_s", *_INPUTS.channels)
    assert _read([unnamed], manifest, labels=str(marks), columns=columns)[1] == y
    sensor = tmp_path / "phone" / "Accelerometer.csv"
    sensor.parent.mkdir()
    sensor.write_text(_table("time_s,x,y,z"))
    (sensor.parent / "Annotation.csv").write_text("time_s,text\n0,walk up\n")
    assert _read([sensor.parent], manifest, labels=str(marks))[1] == y


@pytest.mark.parametrize(
    ("marks", "table", "said"),
    [
        ("a,b\n1,2\n", None, "expected a column of times and one of labels, got the columns a, b"),
        (
            "time,text\n0,still\n",
            "time_s,acc_x,acc_y,b",
            "it lacks acc_z, and has the columns",
        ),
    ],
)
def test_marks_or_recordings_that_lack_columns_are_named(tmp_path, manifest, marks, table, said):
    (tmp_path / "marks.csv").write_text(marks)
    (tmp_path / "rec.csv").write_text(_table(table or "time_s,acc_x,acc_y,acc_z"))
    with pytest.raises(InputError, match=said):
        _read([tmp_path / "rec.csv"], manifest, labels=str(tmp_path / "marks.csv"))
