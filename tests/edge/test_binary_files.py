"""Recordings in binary formats, from files that are made here byte by byte as their formats say."""

from __future__ import annotations

import struct
import zipfile

import msgspec
import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.examples import load_examples
from protofleet.edge.data.recording_files import recording_files
from protofleet.edge.data.unbundled import manifest_for
from protofleet.errors import InputError

pytest.importorskip("pyedflib")

_CHANNELS = ("acc_x", "acc_y", "acc_z", "hr")
_INPUTS = Preprocessing(
    input_shape=(20, 4),
    rate_hz=10.0,
    window=20,
    hop=10,
    channels=_CHANNELS,
    units=("m/s²", "m/s²", "m/s²", "bpm"),
)
_SECONDS = 30
_FIT_EPOCH = 631065600
"""1989-12-31 in seconds since 1970."""


def _manifest(channels=_CHANNELS, **changes):
    inputs = msgspec.structs.replace(_INPUTS, **changes)
    places = [_CHANNELS.index(one) for one in channels]
    inputs = msgspec.structs.replace(
        inputs,
        channels=channels,
        units=tuple(_INPUTS.units[k] for k in places),
        input_shape=(inputs.window, len(channels)),
    )
    return manifest_for(inputs, ("still", "walk"))


def _read(path, manifest):
    blocks = list(load_examples([str(path)], manifest))
    return np.concatenate([one.x for one in blocks]), np.concatenate([one.y for one in blocks])


def _edf(path, *, annotations=(), bits=16):
    """EDF+ or BDF+: accelerations in g at 20 Hz, a heart rate at 10 Hz, records of a second."""
    signals = [
        *((f"ACC {axis}", "g", -4, 4, 20) for axis in "XYZ"),
        ("HR", "bpm", 0, 256, 10),
        ("BDF Annotations" if bits == 24 else "EDF Annotations", "", -1, 1, 60),
    ]
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    version = b"\xffBIOSEMI" if bits == 24 else b"0       "
    kind = "BDF+C" if bits == 24 else "EDF+C"

    def cells(width, values):
        return b"".join(str(one).ljust(width).encode("ascii") for one in values)

    head = version + cells(80, ["X X X X"]) + cells(80, ["Startdate 01-MAY-2024 X X X"])
    head += b"01.05.24" + b"12.00.00" + cells(8, [256 * (1 + len(signals))]) + cells(44, [kind])
    head += cells(8, [_SECONDS]) + cells(8, [1]) + cells(4, [len(signals)])
    head += cells(16, [one[0] for one in signals]) + cells(80, [""] * len(signals))
    head += cells(8, [one[1] for one in signals])
    head += cells(8, [one[2] for one in signals]) + cells(8, [one[3] for one in signals])
    head += cells(8, [least] * len(signals)) + cells(8, [most] * len(signals))
    head += cells(80, [""] * len(signals)) + cells(8, [one[4] for one in signals])
    head += cells(32, [""] * len(signals))
    body = b""
    for second in range(_SECONDS):
        for at, (_, _, low, high, rate) in enumerate(signals[:-1]):
            wanted = [(0.0, 0.25, 1.0, 60.0 + second)[at]] * rate
            numbers = [round(least + (one - low) / (high - low) * (most - least)) for one in wanted]
            body += b"".join(one.to_bytes(bits // 8, "little", signed=True) for one in numbers)
        told = f"+{second}\x14\x14\x00".encode()
        for onset, lasts, text in annotations:
            if onset == second:
                told += f"+{onset}\x15{lasts}\x14{text}\x14\x00".encode()
        body += told.ljust(60 * bits // 8, b"\x00")
    path.write_bytes(head + body)
    return path


@pytest.mark.parametrize(("ending", "bits"), [("edf", 16), ("bdf", 24)])
def test_signals_of_two_rates_are_one_recording_with_the_file_s_annotations(tmp_path, ending, bits):
    marks = [(0, 10, "still"), (10, 15, "walk")]
    path = _edf(tmp_path / f"night.{ending}", annotations=marks, bits=bits)
    x, y = _read(path, _manifest())
    assert x.shape == (29, 20, 4)
    np.testing.assert_allclose(x[5, :, 2], 9.80665, rtol=1e-3)  # from g to the bundle's unit
    np.testing.assert_allclose(x[5, :, 1], 0.25 * 9.80665, rtol=1e-2)
    assert 64 < x[5, 10, 3] < 68
    assert (y[0], y[12], y[-1], set(y)) == (0, 1, -1, {0, 1, -1})


def test_signals_of_one_rate_are_read_by_their_names_and_marked_too(tmp_path):
    path = _edf(tmp_path / "ward.edf", annotations=[(0, 0, "walk")])
    x, y = _read(path, _manifest(("hr",)))
    assert x.shape == (29, 20, 1)
    assert set(y) == {1}
    names = [(one.name, one.marks is not None) for one in recording_files([str(path)])]
    assert names == [(f"{path}: HR", True), (f"{path}: ACC X ACC Y ACC Z", True)]


def test_a_folder_may_hold_some_and_their_names_say_the_class(tmp_path):
    (tmp_path / "rec").mkdir()
    _edf(tmp_path / "rec" / "walk.edf")
    _edf(tmp_path / "rec" / "still.edf")
    _, y = _read(tmp_path / "rec", _manifest(("hr",)))
    assert sorted(set(y)) == [0, 1]


def test_notes_of_a_device_do_not_hide_the_class_in_a_name(tmp_path):
    _edf(tmp_path / "walk.edf", annotations=[(0, 0, 'Recording "starts", now')])
    _, y = _read(tmp_path / "walk.edf", _manifest(("hr",)))
    assert set(y) == {1}


def test_a_zip_may_hold_some(tmp_path):
    with zipfile.ZipFile(tmp_path / "night.zip", "w") as archive:
        archive.write(_edf(tmp_path / "night.edf", annotations=[(0, 0, "walk")]), "night.edf")
        archive.writestr("broken/notes.xml", "<notes/>")
    x, y = _read(tmp_path / "night.zip", _manifest())
    assert x.shape == (29, 20, 4)
    assert set(y) == {1}
    with zipfile.ZipFile(tmp_path / "night.zip", "a") as archive:
        archive.writestr("broken/night.edf", "nothing of the kind")
    with pytest.raises(InputError, match=r"night\.zip: broken/night\.edf': cannot be read"):
        recording_files([str(tmp_path / "night.zip")])


def _chunk(tag, content):
    content = struct.pack("<H", tag) + content
    return b"\x04" + struct.pack("<I", len(content)) + content


def _xdf(path):
    """XDF 1.0: a stream of accelerations at 10 Hz, and one of markers."""
    labels = "".join(
        f"<channel><label>acc_{axis}</label><unit>m/s^2</unit></channel>" for axis in "xyz"
    )
    streams = {
        1: ("Wrist", "ACC", 3, 10, "double64", f"<desc><channels>{labels}</channels></desc>"),
        2: ("Keys", "Markers", 1, 0, "string", "<desc/>"),
    }
    data = b"XDF:" + _chunk(1, b"<info><version>1.0</version></info>")
    for number, (name, kind, count, rate, form, desc) in streams.items():
        info = (
            f"<info><name>{name}</name><type>{kind}</type><channel_count>{count}</channel_count>"
            f"<nominal_srate>{rate}</nominal_srate><channel_format>{form}</channel_format>{desc}</info>"
        )
        data += _chunk(2, struct.pack("<I", number) + info.encode())
    samples = b"".join(
        b"\x08" + struct.pack("<d", 1000 + k / 10) + struct.pack("<ddd", 1, 2, k % 5)
        for k in range(10 * _SECONDS)
    )
    data += _chunk(3, struct.pack("<I", 1) + b"\x04" + struct.pack("<I", 10 * _SECONDS) + samples)
    marks = [(1000.0, b"still"), (1012.0, b"walk")]
    told = b"".join(
        b"\x08" + struct.pack("<d", time) + b"\x01" + bytes([len(text)]) + text
        for time, text in marks
    )
    data += _chunk(3, struct.pack("<I", 2) + b"\x01\x02" + told)
    for number in streams:
        data += _chunk(6, struct.pack("<I", number) + b"<info></info>")
    path.write_bytes(data)
    return path


def test_streams_of_a_laboratory_are_read_with_their_markers(tmp_path):
    x, y = _read(_xdf(tmp_path / "trial.xdf"), _manifest(_CHANNELS[:3]))
    assert x.shape == (29, 20, 3)
    np.testing.assert_allclose(x[5, :, 1], 2, rtol=1e-5)
    assert (y[0], y[-1], set(y)) == (0, 1, {0, 1, -1})


def _crc(data):
    table = [
        *(0x0000, 0xCC01, 0xD801, 0x1400, 0xF001, 0x3C00, 0x2800, 0xE401),
        *(0xA001, 0x6C00, 0x7800, 0xB401, 0x5000, 0x9C01, 0x8801, 0x4400),
    ]
    crc = 0
    for byte in data:
        for part in (byte & 0xF, byte >> 4):
            crc = (crc >> 4) & 0x0FFF ^ table[crc & 0xF] ^ table[part]
    return struct.pack("<H", crc)


def _fit(path):
    """FIT: messages 20 (record), of a second, with 253 (timestamp), 3 (heart rate), 4 (cadence)."""
    fields = bytes([253, 4, 0x86, 3, 1, 0x02, 4, 1, 0x02])
    body = b"\x40\x00\x00" + struct.pack("<H", 20) + b"\x03" + fields
    for second in range(_SECONDS):
        body += b"\x00" + struct.pack("<IBB", 1714564800 - _FIT_EPOCH + second, 60 + second, 80)
    head = struct.pack("<BBHI4s", 14, 0x20, 2132, len(body), b".FIT")
    head += _crc(head)
    path.write_bytes(head + body + _crc(head + body))
    return path


def test_a_watch_s_records_are_read(tmp_path):
    manifest = _manifest(("hr",), rate_hz=1.0, window=10, hop=5)
    inputs = msgspec.structs.replace(manifest.preprocessing, channels=("heart_rate",))
    x, _ = _read(_fit(tmp_path / "run.fit"), manifest_for(inputs, ()))
    assert x.shape == (5, 10, 1)
    np.testing.assert_allclose(x[0, :, 0], np.arange(60, 70), atol=0.5)


@pytest.mark.parametrize("ending", ["edf", "bdf", "xdf", "fit"])
def test_what_is_damaged_is_named(tmp_path, ending):
    path = tmp_path / f"mine.{ending}"
    said = rf"data '.*mine\.{ending}': (cannot be read|expected)"
    for content in (b"", b"nothing of the kind" * 40):
        path.write_bytes(content)
        with pytest.raises(InputError, match=said):
            recording_files([str(path)])


def test_the_package_that_reads_it_is_named_where_it_lacks(tmp_path, monkeypatch):
    path = _edf(tmp_path / "night.edf")
    monkeypatch.setitem(__import__("sys").modules, "pyedflib", None)
    with pytest.raises(ImportError, match="pyedflib"):
        recording_files([str(path)])
