import numpy as np
import pytest

from protofleet.datasets import DeviceData, load_device_data, load_pooled
from protofleet.errors import InputError, MissingDataError


def _data(**changes):
    values = {
        "x_train": np.ones((4, 3), np.float32),
        "y_train": np.array([0, 1, 0, 1]),
        "x_test": np.zeros((2, 3), np.float32),
        "y_test": np.array([1, 0]),
        "classes": ("rest", "walk"),
    }
    return DeviceData(**(values | changes))


def test_saved_data_is_read_back(tmp_path):
    _data().save(tmp_path / "device.npz")
    read = load_device_data(tmp_path / "device.npz")
    assert read.classes == ("rest", "walk")
    assert np.array_equal(read.x_train, _data().x_train)
    assert read.y_test.tolist() == [1, 0]


def test_boxes_are_optional_and_read_back(tmp_path):
    boxes = np.arange(32, dtype=np.float32).reshape(4, 2, 4)
    _data(boxes_train=boxes).save(tmp_path / "device.npz")
    read = load_device_data(tmp_path / "device.npz")
    assert np.array_equal(read.boxes_train, boxes)
    assert read.boxes_test is None


def test_absent_file_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"nowhere\.npz"):
        load_device_data(tmp_path / "nowhere.npz")


def test_pickled_arrays_are_refused(tmp_path):
    path = tmp_path / "hostile.npz"
    np.savez(path, x_train=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="not a plain"):
        load_device_data(path)


def test_absent_array_is_named(tmp_path):
    path = tmp_path / "half.npz"
    np.savez(path, x_train=np.ones((1, 2), np.float32))
    with pytest.raises(InputError, match="y_train"):
        load_device_data(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.array([0, 1])}, "x_train"),
        ({"y_test": np.array([1, 2])}, "expected 0…1"),
        ({"x_test": np.full((2, 3), np.nan, np.float32)}, "NaN"),
        ({"boxes_train": np.zeros((3, 1, 4), np.float32)}, r"boxes_train \(4, k, 4\)"),
        ({"boxes_test": np.zeros((2, 4), np.float32)}, r"boxes_test \(2, k, 4\)"),
        ({"boxes_test": np.full((2, 1, 4), np.inf, np.float32)}, "finite boxes_test"),
    ],
)
def test_wrong_arrays_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        _data(**change)


def _with_targets(**changes):
    y = {"y_train": np.ones((4, 2), np.float32), "y_test": np.zeros((2, 2), np.float32)}
    return _data(**({"classes": (), "targets": ("a", "b")} | y | changes))


def test_targets_are_read_back_with_their_names(tmp_path):
    _with_targets().save(tmp_path / "device.npz")
    read = load_device_data(tmp_path / "device.npz")
    assert (read.classes, read.targets) == ((), ("a", "b"))
    assert (read.y_train.shape, read.y_train.dtype) == ((4, 2), np.float32)


def test_a_single_target_may_come_as_a_row_of_numbers(tmp_path):
    path = tmp_path / "one.npz"
    x = np.ones((4, 3), np.float32)
    np.savez(path, x_train=x, y_train=np.arange(4.0), x_test=x, y_test=np.arange(4), targets=["a"])
    assert load_device_data(path).y_train.tolist() == [[0], [1], [2], [3]]
    assert load_device_data(path).y_test.dtype == np.float32
    assert load_pooled(path)[1].shape == (4, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": ()}, "either classes or targets, got neither"),
        ({"classes": ("a", "b")}, "either classes or targets, got both"),
        ({"targets": ("a",)}, r"y_train: expected \(n, 1\), a column for each of the targets"),
        ({"y_test": np.full((2, 2), np.nan, np.float32)}, "y_test contains NaN"),
        ({"classes": ("a", "b"), "targets": ()}, r"y_train: expected class numbers \(n,\)"),
    ],
)
def test_wrong_targets_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        _with_targets(**change)


def test_names_of_neither_classes_nor_targets_are_told(tmp_path):
    path = tmp_path / "bare.npz"
    x, y = np.ones((4, 3), np.float32), np.zeros(4)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(InputError, match=r"lacks the array 'classes' \(or 'targets'\)"):
        load_device_data(path)
