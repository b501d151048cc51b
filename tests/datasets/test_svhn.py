"""The published files are not at hand: small ones of their layout are written here."""

import numpy as np
import pytest
from scipy.io import savemat

from protofleet.datasets.svhn import svhn_pool
from protofleet.errors import InputError, MissingDataError


def _write(root, *, x=None, y=None):
    (root / "svhn").mkdir()
    rng = np.random.default_rng(0)
    train = rng.integers(0, 256, (32, 32, 3, 4), np.uint8)
    labels = np.array([[10], [1], [9], [10]], np.uint8)
    savemat(root / "svhn" / "train_32x32.mat", {"X": train, "y": labels})
    savemat(
        root / "svhn" / "test_32x32.mat",
        {"X": train[..., :2] if x is None else x, "y": labels[:2] if y is None else y},
    )
    return train


def test_label_ten_is_the_digit_zero_and_images_come_channels_first(tmp_path):
    pixels = _write(tmp_path)
    pool = svhn_pool(tmp_path)
    assert pool.y.tolist() == [0, 1, 9, 0, 0, 1]
    assert pool.is_test.tolist() == [False] * 4 + [True] * 2
    assert pool.x.shape == (6, 3, 32, 32)
    assert np.rint(pool.x[2, 1, 5, 30] * 255) == pixels[5, 30, 1, 2]
    assert len(svhn_pool(tmp_path, limit=1).y) == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"x": np.zeros((32, 32, 3, 3), np.uint8)},
        {"x": np.zeros((32, 32, 3, 2))},
        {"y": np.array([[0], [1]])},
        {"y": np.array([[11], [1]])},
    ],
)
def test_arrays_that_are_not_as_published_are_refused(tmp_path, changes):
    _write(tmp_path, **changes)
    with pytest.raises(InputError, match=r"test_32x32\.mat': expected X \(32, 32, 3, n\) uint8"):
        svhn_pool(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no MATLAB file" * 20])
def test_other_files_are_refused(tmp_path, content):
    _write(tmp_path)
    (tmp_path / "svhn" / "train_32x32.mat").write_bytes(content)
    with pytest.raises(InputError, match="not a MATLAB file"):
        svhn_pool(tmp_path)


def test_absent_file_says_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"'train_32x32\.mat'"):
        svhn_pool(tmp_path)
