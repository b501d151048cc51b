"""What termux-sensor writes, as Termux:API's ``SensorAPI`` formats it, into readings and a CSV."""

from __future__ import annotations

import io
import itertools
import json
import sys
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli import main
from protofleet.edge.data.termux import MOST_TEXT, Reading, Sensor, read_termux
from protofleet.errors import InputError

_LINES = """\
{}
{
  "LSM6DSO Accelerometer": {
    "values": [
      0.29687511920928955,
      -0.10531443357467651,
      9.811720848083496
    ]
  }
}
{
  "LSM6DSO Accelerometer": {
    "values": [
      0.2800,
      -0.1101,
      9.7987
    ]
  },
  "LSM6DSO Gyroscope": {
    "values": [
      0,
      -3.0517578E-4,
      0.0012
    ]
  }
}
{
  "LSM6DSO Accelerometer": {
    "values": [
      0.3101,
      -0.0994,
      9.8045
    ]
  },
  "LSM6DSO Gyroscope": {
    "values": [
      0.0101,
      -0.002,
      0.0009
    ]
  }
}
"""
_BOTH = (Sensor("accelerometer"), Sensor("GYRO", 2.0))


class _Pieces:
    """A pipe that hands out given pieces, a second apart by its own clock."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces, self.now = list(pieces), 100.0

    def read1(self, _size: int = -1) -> bytes:
        self.now += 1.0
        return self.pieces.pop(0) if self.pieces else b""

    def clock(self) -> float:
        return self.now


def _read(*pieces, sensors=_BOTH, channels=6):
    source = _Pieces(*pieces)
    return list(read_termux(source, sensors, channels, source.clock))


def test_readings_begin_when_every_sensor_has_spoken_and_are_in_the_bundle_s_units():
    first, second = _read(_LINES.encode())
    assert first.values == (0.28, -0.1101, 9.7987, 0.0, 2 * -3.0517578e-4, 2 * 0.0012)
    assert second.values[2] == 9.8045


def test_what_comes_together_is_spread_over_the_time_since_what_came_before():
    """A pipe hands several objects over at once; equal times would be dropped."""
    one = json.dumps({"a": {"values": [1.0]}}).encode()
    found = _read(one, one * 4, b"\n", one, sensors=(Sensor("a"),), channels=1)
    assert [reading.time_s for reading in found] == [101.0, 101.25, 101.5, 101.75, 102.0, 104.0]


@settings(max_examples=30)
@given(st.lists(st.integers(1, len(_LINES) - 1), max_size=20))
def test_pieces_of_any_length_give_the_same_values(cuts):
    edges = sorted({0, *cuts, len(_LINES)})
    pieces = [_LINES[a:b].encode() for a, b in itertools.pairwise(edges)]
    assert [r.values for r in _read(*pieces)] == [r.values for r in _read(_LINES.encode())]


@pytest.mark.parametrize(
    ("said", "sensors", "channels", "reason"),
    [
        ("termux-sensor: not found", "a", 1, "'pkg install termux-api'"),
        ('{"a": {"values": [1', "a", 1, "ended within an object"),
        ('{"a": {"values": [1, 2]}}', "a", 3, "expected 3 values together.*got 2"),
        ('{"ab": {"values": [1]}, "ac": {"values": [1]}}', "a", 1, "among ab, ac"),
        ('{"light": {"values": [1]}}', "a", 1, "among light"),
        ('{"a": {"values": ["x"]}}', "a", 1, "'values' as numbers"),
        ('{"a": {"values": [true]}}', "a", 1, "'values' as numbers"),
        ('{"a": 1}', "a", 1, "'values' as numbers"),
        ('{"a": ' + " " * (MOST_TEXT + 5), "a", 1, "got something else"),
        ('{"a": ' + "[" * 50_000, "a", 1, "got something else"),
    ],
)
def test_each_surprise_is_a_sentence(said, sensors, channels, reason):
    with pytest.raises(InputError, match=reason):
        _read(said.encode(), sensors=(Sensor(sensors),), channels=channels)


def test_an_exact_name_counts_before_parts_of_names():
    said = json.dumps({"acc": {"values": [1]}, "acc uncalibrated": {"values": [2]}}).encode()
    assert _read(said, sensors=(Sensor("ACC"),), channels=1) == [Reading(101.0, (1.0,))]


@pytest.fixture
def bundle(world, monkeypatch):
    """The world's bundle as one of a sensor with two channels."""
    inputs = Preprocessing(
        input_shape=(8, 2), rate_hz=10.0, window=8, hop=4, channels=("ax", "ay"), mean=(1.0,)
    )
    manifest = msgspec.structs.replace(world.bundle.manifest, preprocessing=inputs)
    monkeypatch.setattr(Bundle, "open", lambda *_, **__: SimpleNamespace(manifest=manifest))
    monkeypatch.setattr("protofleet.cli.record.trusted_keys", lambda _: frozenset())


@pytest.mark.usefixtures("bundle")
def test_the_command_adds_to_a_csv_with_the_bundles_channels(tmp_path, monkeypatch, capsys):
    out = tmp_path / "mine.csv"

    def record(label, said, code=0):
        stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(said)))
        monkeypatch.setattr(sys, "stdin", stdin)
        given = ["--bundle", "b.pfb", "--sensor", "imu=2", "--out", str(out), "--after", "0"]
        with pytest.raises(SystemExit) as ended:
            main(["device", "record", *given, "--label", label])
        assert ended.value.code == code
        return capsys.readouterr().err

    said = json.dumps({"my IMU": {"values": [0.5, -1]}}).encode()
    assert "1 readings" in record("class0", said)
    record("class2", said)
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert rows[0] == ["time_s", "ax", "ay", "label"]
    assert [row[1:] for row in rows[1:]] == [["1.0", "-2.0", name] for name in ("class0", "class2")]
    assert "expected one of class0, class1, class2" in record("flying", said, 1)
    out.write_text("time_s,other\n")
    assert "has other columns" in record("class0", said, 1)
