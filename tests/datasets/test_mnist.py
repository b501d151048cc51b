import gzip
import struct

import numpy as np
import pytest

from protofleet.datasets import catalogue
from protofleet.datasets.mnist import mnist_pool
from protofleet.errors import InputError, MissingDataError


@pytest.mark.data
def test_published_files_are_read(data_root):
    """Class counts, mean pixel and order of the first digits as published."""
    pool = catalogue.load("mnist", data_root)
    assert pool.x.shape == (70000, 1, 28, 28)
    assert pool.x.dtype == np.float32
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(pool.y[~pool.is_test]).tolist() == train
    assert np.bincount(pool.y[pool.is_test]).tolist() == test
    assert (pool.x.min(), pool.x.max()) == (0, 1)
    assert abs(pool.x[:60000].mean(dtype=np.float64) - 0.1307) < 5e-5
    assert not pool.is_test[:60000].any()
    assert pool.y[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.data
def test_few_of_each_class_are_the_first_ones(data_root):
    whole = mnist_pool(data_root)
    pool = mnist_pool(data_root, limit=7, scale="signed")
    assert np.bincount(pool.y[~pool.is_test]).tolist() == [7] * 10
    assert np.bincount(pool.y[pool.is_test]).tolist() == [7] * 10
    assert (pool.x.min(), pool.x.max()) == (-1, 1)
    first = np.flatnonzero(whole.y[:60000] == 3)[:7]
    threes = pool.x[(pool.y == 3) & ~pool.is_test]
    assert np.allclose(threes, whole.x[first] * 2 - 1, atol=1e-6)


def _write(folder, *, images=None, labels=None):
    """Files of the published layout with two images of 28x28 pixels in each part."""
    folder.mkdir()
    pixels = bytes(range(256)) * 7
    pixels = pixels[: 2 * 784]
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(
            images or gzip.compress(struct.pack(">4I", 2051, 2, 28, 28) + pixels)
        )
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(
            labels or gzip.compress(struct.pack(">2I", 2049, 2) + bytes([7, 2]))
        )


def test_header_is_big_endian_and_pixels_are_row_major(tmp_path):
    _write(tmp_path / "mnist")
    pool = mnist_pool(tmp_path)
    assert pool.y.tolist() == [7, 2, 7, 2]
    assert np.allclose(pool.x[0, 0, 1, :3] * 255, [28, 29, 30])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"labels": gzip.compress(struct.pack(">2I", 2051, 2) + b"\1\2")}, "magic number 2049"),
        ({"labels": gzip.compress(b"\0")}, "magic number 2049"),
        ({"labels": gzip.compress(struct.pack(">2I", 2049, 3) + b"\1\2\3")}, "got 3 and 2"),
        ({"labels": gzip.compress(struct.pack(">2I", 2049, 9) + b"\1")}, r"\(9,\) values, got 1"),
        ({"labels": gzip.compress(struct.pack(">2I", 2049, 2) + b"\1\12")}, "labels 0…9, got 1…10"),
        ({"images": gzip.compress(bytes(99))[:-9]}, "not a whole gzip file"),
        ({"images": b"no gzip"}, "not a whole gzip file"),
    ],
)
def test_files_that_are_not_as_published_are_refused(tmp_path, files, message):
    _write(tmp_path / "mnist", **files)
    with pytest.raises(InputError, match=message):
        mnist_pool(tmp_path)


def test_absent_file_says_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"'train-images-idx3-ubyte\.gz' at"):
        mnist_pool(tmp_path)


@pytest.mark.parametrize(("option", "value"), [("scale", "z"), ("limit", 0)])
def test_wrong_options_are_refused(tmp_path, option, value):
    _write(tmp_path / "mnist")
    with pytest.raises(InputError, match=f"option '{option}'"):
        mnist_pool(tmp_path, **{option: value})
