"""Sensors of the Linux kernel: a tree of files as drivers make it, into readings and a CSV."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_windows_bundle

from protofleet.cli import main
from protofleet.edge.data import iio
from protofleet.edge.data.iio import chosen_sensors, iio_sensors, read_iio
from protofleet.errors import InputError, MissingDataError


def _device(root, number, name, **files):
    """``in_accel_x_raw`` and its like."""
    place = root / f"iio:device{number}"
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    for file, value in files.items():
        (place / file).write_text(f"{value}\n")
    return place


def _raw(kind, *counts):
    pairs = zip("xyz", counts, strict=True)
    return {f"in_{kind}_{axis}_raw": count for axis, count in pairs}


@pytest.fixture
def root(tmp_path):
    """As st_lsm6dsx and bmp280 show theirs: one scale for three axes, one value that is scaled."""
    counts = {
        f"in_accel_{axis}_raw": count for axis, count in zip("xyz", (418, -836, 1672), strict=True)
    }
    _device(tmp_path, 0, "lsm6ds3_accel", in_accel_scale=0.00586, sampling_frequency=104, **counts)
    turns = {
        f"in_anglvel_{axis}_raw": count for axis, count in zip("xyz", (100, 200, -50), strict=True)
    }
    _device(tmp_path, 1, "lsm6ds3_gyro", in_anglvel_x_scale=0.001, in_anglvel_scale=0.002, **turns)
    _device(tmp_path, 2, "bmp280", in_temp_input=21560, in_pressure_input=98.21)
    _device(
        tmp_path,
        3,
        "adxl345",
        **_raw("accel", 10, 10, 10),
        in_accel_offset=-10,
        in_temp_raw=300,
        in_temp_offset=-100,
        in_temp_scale=125,
    )
    return tmp_path


def test_values_have_the_kernel_s_units(root):
    accel, gyro, warm = chosen_sensors(["accel", "anglvel", "temp"], root)
    np.testing.assert_allclose(accel.read(), np.multiply((418, -836, 1672), 0.00586))
    np.testing.assert_allclose(gyro.read(), (0.1, 0.4, -0.1))  # an axis may have its own scale
    assert warm.read() == pytest.approx((21.56,))
    assert [(one.unit, one.axes) for one in (accel, warm)] == [
        ("m/s²", ("x", "y", "z")),
        ("°C", ("",)),
    ]


def test_another_device_s_is_asked_for_by_its_name(root):
    assert list(iio_sensors(root))[:3] == ["lsm6ds3_accel:accel", "accel", "lsm6ds3_gyro:anglvel"]
    (other,) = chosen_sensors(["adxl345:accel"], root)
    assert other.read() == (0.0, 0.0, 0.0)
    (warm,) = chosen_sensors(["adxl345:temp"], root)
    assert warm.read() == pytest.approx((25.0,))


def test_axes_are_those_of_the_board(root):
    (root / "iio:device0" / "in_accel_mount_matrix").write_text("0, -1, 0; 1, 0, 0; 0, 0, 1\n")
    (accel,) = chosen_sensors(["accel"], root)
    np.testing.assert_allclose(accel.read(), np.multiply((836, 418, 1672), 0.00586))


def test_what_is_not_there_is_named(root, tmp_path):
    with pytest.raises(InputError, match="--iio magn: expected one of lsm6ds3_accel:accel, accel"):
        chosen_sensors(["magn"], root)
    with pytest.raises(MissingDataError, match="found none; the sensor's driver has to be loaded"):
        chosen_sensors(["accel"], tmp_path / "nothing")


class _Clock:
    def __init__(self):
        self.now, self.waits = 1000.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds


def test_readings_come_at_the_rate_and_missed_ticks_are_left_out(root):
    clock = _Clock()
    found = read_iio(chosen_sensors(["temp"], root), 10.0, clock, clock.sleep)
    times = [next(found).time_s for _ in range(3)]
    clock.now += 0.35  # something else had the processor
    times += [next(found).time_s for _ in range(3)]
    np.testing.assert_allclose(times, [1000.0, 1000.1, 1000.2, 1000.55, 1000.6, 1000.7])


def test_a_bus_that_fails_is_waited_for_and_then_told(root):
    clock, sensors = _Clock(), chosen_sensors(["temp"], root)
    place = root / "iio:device2" / "in_temp_input"
    found = read_iio(sensors, 10.0, clock, clock.sleep)
    next(found)
    place.write_text("")
    clock_sleep = clock.sleep

    def repaired(seconds):
        clock_sleep(seconds)
        if clock.now > 1000.55:
            place.write_text("22000")

    assert next(read_iio(sensors, 10.0, clock, repaired)).values == (22.0,)
    place.unlink()
    with pytest.raises(InputError, match="100 times in a row no answer"):
        next(found)


def test_the_command_writes_units_beside_the_bundle_s_channels(root, tmp_path, monkeypatch, capsys):
    clock, bundle = _Clock(), tmp_path / "bundle.pfb"
    tiny_windows_bundle(
        bundle, Ed25519PrivateKey.generate(), unit="g", classes=("still", "walk", "run")
    )
    monkeypatch.setattr(iio, "ROOT", root)
    monkeypatch.setattr("protofleet.cli.record.time", clock_of(clock))
    out = tmp_path / "mine.csv"
    command = ["device", "record", "--bundle", str(bundle), "--iio", "accel"]
    assert _ended(*command, "--label", "walk", "--seconds", "1", "--out", str(out)) == 0
    head, *lines = out.read_text().splitlines()
    assert head == "time_s,acc_x [m/s²],acc_y [m/s²],acc_z [m/s²],label"
    assert len(lines) == 25
    assert lines[0].endswith("walk")
    assert float(lines[0].split(",")[1]) == pytest.approx(418 * 0.00586)
    assert _ended(*command, "--out", str(tmp_path / "x.csv"), "--iio", "temp") == 1
    assert "got 4 (accel has 3, temp has 1)" in capsys.readouterr().err
    assert _ended(*command, "--out", "x", "--serial", "/dev/null") == 2
    assert "expected one of --sensor, --iio, --serial" in capsys.readouterr().err


def _ended(*command):
    with pytest.raises(SystemExit) as ended:
        main([*command])
    return ended.value.code


def clock_of(clock):
    """A module ``time`` of a clock that tests move."""
    return msgspec.defstruct("time", [("time", object), ("sleep", object)])(clock, clock.sleep)
