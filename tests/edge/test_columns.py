"""Columns of a table by what their names mean."""

from __future__ import annotations

import io

import msgspec
import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.columns import TimeColumn, columns_of
from protofleet.edge.data.examples import read_csv

_ACC = ("acc_x", "acc_y", "acc_z")


@pytest.fixture
def of(world):
    def go(  # noqa: PLR0917 - of a bundle's inputs
        header, channels=_ACC, mean=(0.0,), std=(1.0,), time=None, units=msgspec.UNSET
    ):
        wanted = Preprocessing(
            input_shape=(8, len(channels)),
            rate_hz=50.0,
            window=8,
            hop=4,
            channels=channels,
            units=units,
            mean=mean,
            std=std,
        )
        manifest = msgspec.structs.replace(world.bundle.manifest, preprocessing=wanted)
        return columns_of(header.split(","), manifest, "mine.csv", time=time)

    return go


@pytest.mark.parametrize(
    "header",
    [
        "Acceleration x (m/s^2),Acceleration y (m/s^2),Acceleration z (m/s^2)",
        "Acc X [g],Acc Y [g],Acc Z [g]",
        "accelerometer_x,accelerometer_y,accelerometer_z",
        "AccelerometerX,AccelerometerY,AccelerometerZ",
        "x,y,z",
        "X,Y,Z",
        "acc_x,Accel Y,z",
    ],
)
def test_channels_are_known_by_the_words_of_their_columns(of, header, caplog):
    found = of(f"n,{header}")
    assert found.names == ["n", *_ACC]
    assert "mine.csv: columns by the meaning of their names: '" in caplog.text


def test_the_bundle_s_own_names_are_taken_as_they_are_and_not_told(of, caplog):
    found = of("acc_z,time_s,acc_y,acc_x,label,Acceleration x (g)")
    assert found.names == ["acc_z", "time_s", "acc_y", "acc_x", "label", "Acceleration x (g)"]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("header", "channels"),
    [
        ("Linear Acceleration x,Linear Acceleration y,Linear Acceleration z", _ACC),
        ("acc x,Acceleration X,acc_y,acc_z", _ACC),
        ("x,y,z", (*_ACC, "gyro_x", "gyro_y", "gyro_z")),
        ("acc_x,acc_y", _ACC),
        ("gyro x,gyro y,gyro z", _ACC),
    ],
    ids=["another sensor", "two for one", "two sensors", "one lacks", "of another kind"],
)
def test_what_is_not_certain_is_left_alone(of, header, channels):
    found = of(header, channels)
    assert found.names == header.split(",")
    assert found.factors == {}


_IN_G = {"mean": (0.8, 0.0, 0.1), "std": (0.2, 0.3, 0.2)}
_IN_M_S2 = {"mean": (7.8, 0.2, 1.0), "std": (2.0, 2.0, 2.0)}


@pytest.mark.parametrize(
    ("unit", "scale", "factor", "said"),
    [
        ("g", _IN_M_S2, 9.80665, "in g, taken times 9.8066, as the bundle's"),
        ("g", _IN_G, 1.0, ""),
        ("m/s²", _IN_G, 1 / 9.80665, "in m/s², taken times 0.10197"),
        ("m/s^2", _IN_M_S2, 1.0, ""),
        ("mg", _IN_G, 0.001, "in mg, taken times 0.001,"),
        ("g", {}, 1.0, "as they are, since the bundle does not tell its unit"),
        ("furlong", _IN_G, 1.0, "in furlong, taken as they are"),
    ],
)
def test_accelerations_are_brought_to_the_bundle_s_unit(  # noqa: PLR0917 - a case
    of, caplog, unit, scale, factor, said
):
    found = of(",".join(f"Acc {axis} [{unit}]" for axis in "XYZ"), **scale)
    assert found.factors == pytest.approx(dict.fromkeys(_ACC, factor))
    assert said in caplog.text
    assert ("taken" in caplog.text) == bool(said)


@pytest.mark.parametrize(
    ("declared", "unit", "factor", "said"),
    [
        ("g", "m/s²", 1 / 9.80665, "in m/s², taken times 0.10197, as the bundle's"),
        ("m/s^2", "m/s²", 1.0, ""),
        ("mg", "g", 1000.0, "in g, taken times 1000, as the bundle's"),
        ("µS", "µs", 1.0, ""),
        ("µS", "nS", 1.0, "in nS, taken as they are, since nothing is known of the bundle's µS"),
        ("furlong", "g", 1.0, "in g, taken as they are, since nothing is known of the bundle's"),
    ],
)
@pytest.mark.parametrize("scale", [_IN_G, {}])
def test_what_the_bundle_says_of_units_goes_before_its_scale(  # noqa: PLR0917 - a case
    of, caplog, declared, unit, factor, said, scale
):
    found = of(",".join(f"Acc {axis} [{unit}]" for axis in "XYZ"), units=(declared,) * 3, **scale)
    assert found.factors == pytest.approx(dict.fromkeys(_ACC, factor))
    assert said in caplog.text
    assert ("taken" in caplog.text) == bool(said)


def test_gravity_tells_the_unit_of_columns_where_the_bundle_says_its_own(of):
    assert of("acc_x,acc_y,acc_z").gravity is None  # of a bundle that says nothing
    found = of("acc_x,acc_y,acc_z", units=("m/s²",) * 3).gravity
    assert found.factor(np.array([[0, 0, 1.0]])) == ("g", pytest.approx(9.80665))
    assert of("acc_x,acc_y,acc_z", units=("g",) * 3).gravity.factor(np.ones((1, 3))) is None
    assert of("Acc X [g],Acc Y [g],Acc Z [g]", units=("m/s²",) * 3).gravity is None
    assert of("acc_x,acc_y,acc_z", units=("bananas",) * 3).gravity is None


@pytest.mark.parametrize(
    ("unit", "std", "factor"),
    [
        ("rad/s", 1.2, 1.0),
        ("deg/s", 1.2, 0.0174533),
        ("rad/s", 60.0, 57.29578),
        ("°/s", 60.0, 1.0),
    ],
)
def test_rotations_are_brought_to_the_bundle_s_unit(of, unit, std, factor):
    channels = ("gyro_x", "gyro_y", "gyro_z")
    header = ",".join(f"Gyroscope {axis} ({unit})" for axis in "xyz")
    found = of(header, channels, mean=(0.0,), std=(std,))
    assert found.factors == pytest.approx(dict.fromkeys(channels, factor), rel=1e-5)


@pytest.mark.parametrize(
    ("header", "name", "unit_s"),
    [
        ("time_s", "time_s", 1.0),
        ("time_ms", "time_ms", 1e-3),
        ("time", "time", None),
        ("time,seconds_elapsed", "time", None),
        ("Time (s)", "Time (s)", 1.0),
        ("Timestamp [ms]", "Timestamp [ms]", 1e-3),
        ("seconds_elapsed", "seconds_elapsed", 1.0),
        ("timestamp_ns", "timestamp_ns", 1e-9),
        ("time (µs)", "time (µs)", 1e-6),
        ("DateTime", "DateTime", None),
        ("timestamp", "timestamp", None),
        ("t", "t", None),
    ],
)
def test_a_column_of_times_says_so_by_its_name_and_perhaps_its_unit(of, header, name, unit_s):
    assert of(f"{header},acc_x,acc_y,acc_z").time == TimeColumn(name=name, unit_s=unit_s)


@pytest.mark.parametrize("header", ["Date,Clock Time", "battery", "index", "Tätigkeit,TÜR"])
def test_two_that_may_be_times_or_none_are_left_to_a_person(of, header):
    assert of(f"{header},acc_x,acc_y,acc_z").time is None
    named = header.split(",", maxsplit=1)[0]
    given = of(f"{header},acc_x,acc_y,acc_z", time=named).time
    assert given == TimeColumn(name=named, unit_s=None, is_given=True)


@pytest.mark.parametrize(
    ("header", "label"),
    [("Activity", True), ("LABEL", True), ("class", True), ("Activity,Class", False)],
)
def test_labels_are_known_by_their_column(of, header, label):
    assert ("label" in of(f"acc_x,acc_y,acc_z,{header}").names) == label


_METRES = Preprocessing(
    input_shape=(20, 3),
    rate_hz=20.0,
    window=20,
    hop=10,
    channels=("acc_x", "acc_y", "acc_z"),
    mean=(0.0, 0.0, 9.8),
    std=(2.0, 2.0, 2.0),
)


def _motion(manifest, one, unit="", mean=_METRES.mean):
    inputs = msgspec.structs.replace(_METRES, mean=mean, std=(0.2 * max(mean),) * 3)
    known = msgspec.structs.replace(manifest, preprocessing=inputs)
    head = f"time_s,acc_x{unit},acc_y{unit},acc_z{unit}"
    rows = [f"{k / 20},{0.1 * one * (k % 5)},0,{one}" for k in range(200)]
    blocks = read_csv(io.BytesIO("\n".join([head, *rows]).encode()), "data", known)
    return np.concatenate([block.x for block in blocks])


@pytest.mark.parametrize(
    ("one", "mean", "said"),
    [
        (1.0, (0.0, 0.0, 9.8), "look like g by their length: taken times 9.8066"),
        (9.80665, (0.0, 0.0, 0.9), "look like m/s² by their length: taken times 0.10197"),
        (9.80665, (0.0, 0.0, 9.8), ""),
        (1.0, (0.0, 0.0, 0.1), ""),  # linear accelerations: nothing at rest tells their unit
    ],
)
def test_accelerations_that_name_no_unit_are_taken_by_gravity(world, caplog, one, mean, said):
    found = _motion(world.bundle.manifest, one, mean=mean)
    assert (said in caplog.text) if said else ("by their length" not in caplog.text)
    if said and mean[2] > 1:
        right = _motion(world.bundle.manifest, 9.80665, mean=mean)
        np.testing.assert_allclose(found, right, atol=1e-5)


def test_a_unit_in_the_name_settles_it(world, caplog):
    found = _motion(world.bundle.manifest, 1.0, " [g]")
    assert "by their length" not in caplog.text
    np.testing.assert_allclose(found, _motion(world.bundle.manifest, 9.80665), atol=1e-5)
