"""The published files are not at hand: every file here is written by a test, in their layout."""

import zipfile

import numpy as np
import pytest

from protofleet.datasets.hhar import CLASSES, COMBINED_CLASSES, hhar_pool
from protofleet.errors import InputError, MissingDataError

_HEADER = "Index,Arrival_Time,Creation_Time,x,y,z,User,Model,Device,gt"
_LABELS = ("sit", "stand", "walk", "stairsup", "stairsdown", "bike")


def _rows(user, device, label, x, arrival_ms=None):
    """Lines of one phone with one label; y is x + 1 and z is x + 2."""
    model = device.rpartition("_")[0]
    arrival = np.arange(len(x)) if arrival_ms is None else arrival_ms
    return [
        f"{i},{arrival[i]},{arrival[i] * 1000},{v},{v + 1},{v + 2},{user},{model},{device},{label}"
        for i, v in enumerate(x)
    ]


def _all_labels(user, device, length, x=None):
    values = np.zeros(length) if x is None else x
    return [line for label in _LABELS for line in _rows(user, device, label, values)]


def _write(root, acc, gyro):
    folder = root / "hhar"
    folder.mkdir()
    for name, lines in (("accelerometer", acc), ("gyroscope", gyro)):
        (folder / f"Phones_{name}.csv").write_text("\n".join([_HEADER, *lines]) + "\n")
    return root


def _both(root, lines):
    return _write(root, lines, lines)


@pytest.mark.parametrize(
    ("device", "length", "windows"),
    [
        # range(0, length - window, window / 2): the window that ends exactly at the end is not used
        ("samsungold_1", 384, 4),
        ("samsungold_1", 385, 5),
        ("s3mini_2", 384, 1),
        ("s3mini_2", 385, 2),
        ("s3_1", 512, 1),
        ("nexus4_1", 513, 1),
        ("nexus4_1", 769, 2),
    ],
)
def test_number_of_windows_of_a_run(tmp_path, device, length, windows):
    pool = hhar_pool(_both(tmp_path, _all_labels("a", device, length)))
    assert np.bincount(pool.y).tolist() == [windows] * 6
    assert pool.x.shape == (6 * windows, 128, 6)
    assert pool.follows.tolist() == ([False] + [True] * (windows - 1)) * 6
    assert pool.recording.tolist() == np.repeat(np.arange(6), windows).tolist()


@pytest.mark.parametrize(
    ("device", "too_short"), [("samsungold_1", 383), ("s3mini_1", 383), ("s3_1", 511)]
)
def test_runs_below_the_models_minimum_are_left_out(tmp_path, device, too_short):
    with pytest.raises(InputError, match="all six activities"):
        hhar_pool(_both(tmp_path, _all_labels("a", device, too_short)))


def test_copies_of_a_model_are_one_client_and_incomplete_clients_are_left_out(tmp_path):
    halves = [
        line
        for device, labels in (("s3_1", _LABELS[:3]), ("s3_2", _LABELS[3:]))
        for label in labels
        for line in _rows("b", device, label, np.zeros(600))
    ]
    lacking = [line for line in _all_labels("c", "s3_1", 600) if not line.endswith(",bike")]
    pool = hhar_pool(_both(tmp_path, halves + lacking + _all_labels("a", "nexus4_2", 600)))
    assert np.unique(pool.client).tolist() == ["a_nexus4", "b_s3"]
    assert pool.classes == CLASSES == COMBINED_CLASSES[:6]


def test_null_rows_and_other_phones_end_a_run(tmp_path):
    """Two runs of 400 rows at 50 Hz, parted by null rows, and one on the second phone."""
    zeros = np.zeros(400)
    walk = [
        *_rows("a", "samsungold_1", "walk", zeros),
        *_rows("a", "samsungold_1", "null", zeros[:3]),
        *_rows("a", "samsungold_1", "walk", zeros),
        *_rows("a", "samsungold_2", "walk", zeros),
    ]
    others = [line for line in _all_labels("a", "samsungold_2", 400) if ",walk" not in line]
    pool = hhar_pool(_both(tmp_path, walk + others))
    walking = pool.y == CLASSES.index("Walking")
    assert walking.sum() == 3 * 5
    assert len(np.unique(pool.recording[walking])) == 3


@pytest.mark.parametrize(
    ("device", "rate"),
    [("nexus4_1", 200), ("s3_1", 150), ("s3mini_1", 100), ("samsungold_1", 50)],
)
def test_slow_motion_passes_without_delay_and_fast_motion_does_not(tmp_path, device, rate):
    """1 Hz keeps its phase and amplitude; what lies above 0.9 of the new Nyquist rate vanishes."""
    time = np.arange(4 * rate + 1024) / rate
    slow = np.sin(2 * np.pi * time)
    fast = np.sin(2 * np.pi * 24.5 * time) if rate == 50 else np.sin(2 * np.pi * 0.3 * rate * time)
    acc, gyro = (_all_labels("a", device, len(time), x) for x in (slow, fast))
    pool = hhar_pool(_write(tmp_path, acc, gyro), normalise=False)
    expected = np.sin(2 * np.pi * np.arange(128) / 50)
    middle = slice(20, 108)
    # An even Chebyshev filter passes the mean 0.05 dB too low, twice: 0.9885.
    assert np.abs(pool.x[0, middle, 0] - 0.9885 * expected[middle]).max() < 0.02
    assert np.abs(pool.x[0, middle, 3]).max() < 0.05


def test_each_sensor_of_a_model_gets_mean_zero_and_deviation_one(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for user, device, offset in (
        ("a", "samsungold_1", 9),
        ("b", "samsungold_2", 3),
        ("a", "s3_1", 0),
    ):
        lines += _all_labels(user, device, 600, rng.normal(offset, 1 + offset, 600))
    pool = hhar_pool(_both(tmp_path, lines))
    for model in ("samsungold", "s3"):
        x = pool.x[np.char.endswith(pool.client, model)]
        for sensor in (slice(0, 3), slice(3, 6)):
            assert abs(x[:, :, sensor].mean(dtype=np.float64)) < 1e-5
            assert abs(x[:, :, sensor].std(dtype=np.float64) - 1) < 1e-5
    of_a, of_b = (pool.x[pool.client == f"{user}_samsungold"].mean() for user in "ab")
    assert of_a - of_b > 0.5, "one scalar per model keeps what tells people apart"


def test_gyroscope_rows_belong_to_the_person_or_to_the_whole_file(tmp_path):
    """The gyroscope file holds 3 000 rows of person a more, so b's file rows meet a's values."""
    acc = _all_labels("a", "samsungold_1", 400) + _all_labels("b", "samsungold_1", 400)
    surplus = _rows("a", "samsungold_1", "bike", np.full(3000, 1000.0))
    own = _all_labels("b", "samsungold_1", 400, np.full(400, 2000.0))
    gyro = _all_labels("a", "samsungold_1", 400, np.full(400, 1000.0)) + surplus + own
    root = _write(tmp_path, acc, gyro)
    for gyroscope, value in (("rows", 2000), ("file_rows", 1000)):
        pool = hhar_pool(root, gyroscope=gyroscope, normalise=False)
        x = pool.x[pool.client == "b_samsungold", :, 3]
        assert np.abs(x / value - 0.9885).max() < 0.001


def test_gyroscope_rows_nearest_in_time(tmp_path):
    """A gyroscope at half the rate, whose rows come in no order, still shows the same moments."""
    start = 10_000 + np.arange(6) * 10_000
    acc, gyro = [], []
    for label, first in zip(_LABELS, start, strict=True):
        time = first + 20 * np.arange(450)
        acc += _rows("a", "samsungold_1", label, time, time)
        gyro += _rows("a", "samsungold_1", label, time[::2], time[::2])
    root = _write(tmp_path, acc, gyro[::-1])
    pool = hhar_pool(root, gyroscope="time", normalise=False)
    assert len(pool.y) == 6 * 6
    assert np.abs(pool.x[:, 10:-10, 0] - pool.x[:, 10:-10, 3]).max() < 25


def test_combined_classes_keep_the_numbers(tmp_path):
    pool = hhar_pool(_both(tmp_path, _all_labels("a", "s3_1", 600)), combined_classes=True)
    assert pool.classes == COMBINED_CLASSES
    assert set(pool.y.tolist()) == set(range(6))


def test_the_published_zip_is_read_as_it_is(tmp_path):
    lines = "\n".join([_HEADER, *_all_labels("a", "s3_1", 600)])
    (tmp_path / "hhar").mkdir()
    with zipfile.ZipFile(tmp_path / "hhar" / "Activity recognition exp.zip", "w") as archive:
        for name in ("Phones_accelerometer.csv", "Phones_gyroscope.csv"):
            archive.writestr(f"Activity recognition exp/{name}", lines)
    assert len(hhar_pool(tmp_path).y) == 6 * 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3,0.1,zwei,0.3,a,s3,s3_1,sit", r"accelerometer\.csv' line 5.*y \(number\).*zwei"),
        ("1,2,3,0.1", r"accelerometer\.csv' line 5.*'1,2,3,0\.1'"),
        ("1,2,3,0.1,nan,0.3,a,s3,s3_1,sit", r"line 5: expected finite x, y and z"),
        ("1,2,3,0.1,0.2,0.3,z,s3,s3_1,sit", r"line 5: expected User to be one of a, b"),
        ("1,2,3,0.1,0.2,0.3,a,s3,pear_1,sit", r"line 5: expected Device to be one of nexus4_1"),
        ("1,2,3,0.1,0.2,0.3,a,s3,s3_1,fly", r"line 5: expected gt to be one of sit"),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, message):
    good = _rows("a", "s3_1", "sit", np.zeros(4))
    with pytest.raises(InputError, match=message):
        hhar_pool(_both(tmp_path, [*good[:2], "", line, *good[2:]]))


def test_unknown_header_is_named(tmp_path):
    (tmp_path / "hhar").mkdir()
    (tmp_path / "hhar" / "Phones_accelerometer.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="line 1: expected a column 'x', got a,b"):
        hhar_pool(tmp_path)


def test_absent_files_say_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"put 'Phones_accelerometer\.csv' at .*hhar"):
        hhar_pool(tmp_path)


def test_unknown_pairing_is_refused(tmp_path):
    with pytest.raises(InputError, match="one of rows, file_rows, time"):
        hhar_pool(tmp_path, gyroscope="best")
