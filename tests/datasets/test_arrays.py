"""What becomes of a user's arrays: taken, converted with a word, or refused with the remedy."""

from __future__ import annotations

import re
import zipfile

import numpy as np
import pytest

from protofleet.datasets.arrays import (
    doubt_of_scale,
    read_arrays,
    to_examples,
    to_labels,
    to_tokens,
)
from protofleet.errors import InputError

_CLASSES = ("sit", "walk", "run")


def test_arrays_that_are_right_are_not_copied(caplog):
    x, y = np.zeros((3, 2), np.float32), np.array([0, 2, 1])
    assert to_examples(x, "x") is x
    assert to_labels(y, "y", _CLASSES) is y
    assert caplog.records == []


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.uint8, bool])
def test_numbers_of_other_types_are_converted_and_that_is_said(dtype, caplog):
    made = to_examples(np.ones((3, 2), dtype), "x_train")
    assert made.dtype == np.float32
    assert [r.message for r in caplog.records] == [
        f"x_train: taken as float32, was {np.dtype(dtype)}"
    ]


@pytest.mark.parametrize(("dtype", "said"), [(np.int64, 0), (np.uint8, 0), (np.float64, 1)])
def test_tokens_are_whole_numbers_of_any_type(dtype, said, caplog):
    made = to_examples(to_tokens(np.full((3, 2), 7, dtype)), "x_train")
    assert (made.dtype, made.max(), len(caplog.records)) == (np.float32, 7, said)


@pytest.mark.parametrize(
    "y",
    [np.array([1.0, 2.0, 0.0]), np.array([1, 2, 0], np.uint8), np.array(["walk", "run", "sit"])],
)
def test_labels_of_other_types_are_converted(y):
    made = to_labels(y, "y_train", _CLASSES)
    assert (made.tolist(), made.dtype) == ([1, 2, 0], np.int64)


def test_bytes_are_names_too():
    assert to_labels(np.array([b"run"]), "y", _CLASSES).tolist() == [2]
    digits = tuple("0123456789")
    assert to_labels(np.array(["7", "0"]), "y", digits).tolist() == [7, 0]


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.full(65, 0.7), "65 of 65 that are not whole, such as 0.7; measured values are no"),
        (np.array([0.0, np.nan]), "1 of 2 that are not whole, such as nan"),
        (np.array(["1", "0"]), r"got '0', '1'; numbers as text: save y.astype\(np.int64\)"),
        (np.array(["walk", "swim"]), "got 'swim'; known are sit, walk, run"),
        (np.array([1, 2, 3]), r"holds 1…3, expected 0…2: 1 of 3 .*from 1\? save y - 1"),
        (np.array([0, -1]), "holds -1…0, expected 0…2: 1 of 2"),
        (np.array([0 + 1j]), "expected class numbers .* got complex128"),
        (np.array([None, 1], object), "got Python objects"),
        (np.zeros((4, 1), int), r"got \(4, 1\); save y.reshape\(-1\)"),
        (np.eye(3), r"got \(3, 3\); save y.argmax\(1\)"),
    ],
)
def test_what_is_no_label_is_refused_with_the_remedy(y, said):
    with pytest.raises(InputError, match=f"y_train.*{said}"):
        to_labels(y, "y_train", _CLASSES)


def test_an_array_twice_is_refused(tmp_path):
    path = tmp_path / "twice.npz"
    np.savez(path, x=np.zeros(2))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.npy", archive.read("x.npy"))
    with pytest.raises(InputError, match="holds the array 'x' twice"):
        read_arrays(path, ("x",))


@pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n", b"\x80\x04N."])
def test_what_is_no_archive_is_answered_with_what_writes_one(tmp_path, content):
    """Text and pickles; a single array is none either."""
    (tmp_path / "x.csv").write_bytes(content)
    np.save(tmp_path / "x.npy", np.zeros(2))
    for name in ("x.csv", "x.npy"):
        with pytest.raises(InputError, match=r"not a plain .* x, y, as np.savez\('data.npz', x=…"):
            read_arrays(tmp_path / name, ("x", "y"))


_NORMAL = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
_BYTES = np.random.default_rng(0).integers(0, 256, (100, 8)).astype(np.float32)
_WORDS = np.random.default_rng(0).integers(0, 90_000, (100, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("x", "known", "said"),
    [
        (_NORMAL, True, ""),
        (_NORMAL, False, ""),
        (1000 * _NORMAL, True, r"\(x - mean\) / std with the bundle's mean \(9.8\) and std \(2\)"),
        (1000 * _NORMAL, False, "standard deviation of .*not normalised"),
        (_NORMAL / 1000, True, "standard deviation of 0.00"),
        (_NORMAL + 100, True, "median of (100|99)"),
        (_BYTES, False, "not normalised"),
        (_WORDS, False, ""),
        (np.full((9, 2), 7, np.float32), False, "every value is 7"),
        (np.full((1, 1), 7, np.float32), False, ""),
        (np.zeros((0, 3), np.float32), True, ""),
    ],
)
def test_examples_of_another_scale_are_doubted(x, known, said):
    statistics = ((9.8,), (2.0,)) if known else ((0.0, 0.0), (1.0, 1.0))
    found = doubt_of_scale(x, "x", *statistics)
    assert bool(found) == bool(said)
    assert re.search(said, found)
