"""What scores rest on: counted and worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protofleet.datasets import DeviceData, load_device_data
from protofleet.experiments.evaluation_data import evaluation_data
from protofleet.experiments.prepare import ClientFiles, PreparedData, write_pooled


def _client(folder: Path, name: str, train: list[int], test: list[int]) -> Path:
    path = folder / f"{name}.npz"
    DeviceData(
        x_train=np.zeros((len(train), 2), np.float32),
        y_train=np.array(train),
        x_test=np.zeros((len(test), 2), np.float32),
        y_test=np.array(test),
        classes=("a", "b", "c"),
    ).save(path)
    return path


@pytest.fixture
def prepared(tmp_path):
    """The first names b and is right in two of four; the second a, by a tie, in none of one."""
    clients = {
        "one": _client(tmp_path, "one", [1, 1, 0], [1, 1, 0, 2]),
        "two": _client(tmp_path, "two", [2, 0], [1]),
    }
    merged = _client(tmp_path, "merged", [1, 1, 0, 2, 0], [1, 1, 0, 2, 1])
    return PreparedData(
        clients={name: ClientFiles(own=path) for name, path in clients.items()},
        merged=merged,
        pooled=write_pooled(load_device_data(merged), 3, tmp_path, seed=1),
        classes=("a", "b", "c"),
        input_shape=(2,),
        key="",
    )


def test_the_most_frequent_class_of_each_client_is_scored_on_its_own_test_part(prepared):
    found = evaluation_data(prepared)
    spread = found.most_frequent["accuracy"]
    assert (spread.mean, spread.std, spread.n) == (0.25, 0.25, 2)
    assert found.most_frequent["sample_accuracy"].mean == pytest.approx(2 / 5)


def test_pooled_examples_are_those_that_the_limit_leaves(prepared):
    assert evaluation_data(prepared).pooled == 3
