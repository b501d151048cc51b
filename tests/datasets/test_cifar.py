"""The published CIFAR-10 is at hand as an excerpt; CIFAR-100 is written here in its layout."""

import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from protofleet.datasets import catalogue
from protofleet.datasets.cifar import cifar10_pool, cifar100_pool
from protofleet.errors import InputError, MissingDataError


@pytest.fixture(scope="module")
def excerpt(data_root):
    return catalogue.load("cifar10", data_root)


@pytest.mark.data
def test_excerpt_is_the_start_of_the_published_batches(excerpt):
    assert excerpt.x.shape == (5000, 3, 32, 32)
    train, test = excerpt.y[~excerpt.is_test], excerpt.y[excerpt.is_test]
    assert np.bincount(train).tolist() == [396, 366, 420, 384, 422, 393, 414, 385, 407, 413]
    assert np.bincount(test).tolist() == [103, 89, 100, 103, 90, 86, 112, 102, 106, 109]
    assert train[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert test[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert np.rint(excerpt.x[0, 0, 0, :6] * 255).tolist() == [59, 43, 50, 68, 98, 119]
    assert np.rint(excerpt.x[4000, 0, 0, :4] * 255).tolist() == [158, 159, 165, 166]
    assert excerpt.classes[:3] == ("airplane", "automobile", "bird")


def _write(root, members, *, packed):
    root.mkdir(parents=True, exist_ok=True)
    if not packed:
        for name, content in members.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(content)
        return
    with tarfile.open(root / "cifar-100-python.tar.gz", "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def _members(key=str, **changes):
    """Three train and two test images; red is 0…1023, green and blue continue, modulo 256."""
    rows = np.tile(np.arange(3072) % 251, (5, 1)).astype(np.uint8)

    def packed(content):
        return pickle.dumps({key(name): value for name, value in content.items()}, protocol=2)

    members = {
        "train": packed({"data": rows[:3], "fine_labels": [2, 0, 1], "coarse_labels": [0] * 3}),
        "test": packed({"data": rows[:2], "fine_labels": [1, 1]}),
        "meta": packed({"fine_label_names": [key("apple"), key("bear"), key("can")]}),
    }
    return {f"cifar-100-python/{name}": value for name, value in (members | changes).items()}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("key", [str, str.encode])
def test_folder_or_archive_with_text_or_byte_keys(tmp_path, packed, key):
    _write(tmp_path / "cifar100", _members(key), packed=packed)
    pool = cifar100_pool(tmp_path)
    assert pool.classes == ("apple", "bear", "can")
    assert pool.y.tolist() == [2, 0, 1, 1, 1]
    assert pool.is_test.tolist() == [False, False, False, True, True]
    assert np.rint(pool.x[0, :, 1, 2] * 255).tolist() == [(1024 * c + 34) % 251 for c in range(3)]


class _Hostile:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("packed", [True, False])
def test_a_pickle_that_would_run_something_is_refused(tmp_path, packed):
    _write(tmp_path / "cifar100", _members(train=pickle.dumps(_Hostile())), packed=packed)
    with pytest.raises(InputError, match=r"it names '(posix|nt)\.system'"):
        cifar100_pool(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": pickle.dumps({"data": np.zeros((1, 9), np.uint8)})}, "with 'fine_labels'"),
        (
            {"test": pickle.dumps({"data": np.zeros((1, 9), np.uint8), "fine_labels": [0]})},
            r"expected data \(n, 3072\) uint8",
        ),
        (
            {"test": pickle.dumps({"data": np.zeros((1, 3072)), "fine_labels": [0]})},
            r"got \(1, 3072\) float64",
        ),
        ({"meta": pickle.dumps([1])}, "dictionary with 'fine_label_names'"),
        ({"meta": b""}, "expected a pickle of plain arrays"),
    ],
)
def test_content_that_is_not_as_published_is_refused(tmp_path, changes, message):
    _write(tmp_path / "cifar100", _members(**changes), packed=True)
    with pytest.raises(InputError, match=message):
        cifar100_pool(tmp_path)


def test_archive_without_a_part_or_cut_short_is_refused(tmp_path):
    members = _members()
    del members["cifar-100-python/test"]
    _write(tmp_path / "cifar100", members, packed=True)
    with pytest.raises(InputError, match="lacks 'cifar-100-python/test'"):
        cifar100_pool(tmp_path)
    archive = tmp_path / "cifar100" / "cifar-100-python.tar.gz"
    archive.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(InputError, match=r"not a whole \.tar\.gz"):
        cifar100_pool(tmp_path)


def test_absent_archive_says_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"put the published 'cifar-10-python\.tar\.gz'"):
        cifar10_pool(tmp_path)
