"""What ``--data`` and ``--pooled`` accept."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData
from protofleet.edge import load_local_data
from protofleet.errors import InputError, MissingDataError

_PLAIN = Preprocessing(input_shape=(2,))


def _save(path, value: float) -> None:
    x, y = np.full((3, 2), value, np.float32), np.zeros(3, np.int64)
    DeviceData(x_train=x, y_train=y, x_test=x, y_test=y, classes=("a",)).save(path)


def test_a_file_and_the_pooled_test_part(tmp_path):
    _save(tmp_path / "own.npz", 1)
    _save(tmp_path / "pooled.npz", 2)
    own = load_local_data(str(tmp_path / "own.npz"), _PLAIN)
    assert own.pooled is None
    both = load_local_data(str(tmp_path / "own.npz"), _PLAIN, pooled=tmp_path / "pooled.npz")
    assert both.own.x_train[0, 0] == 1
    assert both.pooled[0][0, 0] == 2


def test_other_sources_take_their_place_from_a_round_on(tmp_path):
    for value in (1, 2, 3):
        _save(tmp_path / f"{value}.npz", value)
    later = [(51, str(tmp_path / "2.npz")), (101, str(tmp_path / "3.npz"))]
    data = load_local_data(str(tmp_path / "1.npz"), _PLAIN, later=later)
    assert [data.at(r).x_train[0, 0] for r in (1, 50, 51, 100, 101)] == [1, 1, 2, 2, 3]


def _file(path, **changes):
    x = np.random.default_rng(0).normal(size=(6, 2))
    arrays = {"x_train": x, "y_train": np.arange(6) % 2, "x_test": x[:2], "y_test": [0, 1]}
    np.savez(path, **{**arrays, "classes": ["sit", "walk"], **changes})
    return str(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_train": np.full(6, 0.7)}, "y_train: .* 6 of 6 that are not whole, such as 0.7"),
        ({"y_train": list("010101")}, r"y_train: .* save y.astype\(np.int64\)"),
        ({"y_test": ["sit", "swim"]}, "y_test: .*got 'swim'; known are sit, walk"),
        ({"x_train": np.ones((6, 2), complex)}, "x_train: expected real numbers"),
        ({"x_train": np.array([[1], [1, 2]] * 3, object)}, "array 'x_train' holds Python objects"),
        ({"x_test": np.array([[1, np.nan]] * 2)}, "x_test contains NaN .*: 2 of 4, the first in"),
        ({"y_train": np.arange(6)}, "y_train holds 0…5, expected 0…1: 4 of 6"),
    ],
)
def test_wrong_data_are_refused_with_the_file_the_array_and_the_remedy(tmp_path, changes, said):
    with pytest.raises(InputError, match=rf"own.npz'.*{said}"):
        load_local_data(_file(tmp_path / "own.npz", **changes), _PLAIN)


def test_what_is_converted_or_doubtful_is_said(tmp_path, caplog):
    source = _file(tmp_path / "own.npz", y_train=["walk", "sit"] * 3, boxes=np.zeros(2))
    data = load_local_data(source, _PLAIN)
    assert (data.own.y_train.tolist(), data.own.x_train.dtype) == ([1, 0] * 3, np.float32)
    unread, *said = [record.message.partition(": ")[2] for record in caplog.records]
    assert unread.startswith("not read: boxes; known arrays are x_train, y_train, x_test, y_test,")
    assert said == [
        "x_train: taken as float32, was float64",
        "y_train: class names taken as their numbers",
        "x_test: taken as float32, was float64",
    ]


def test_of_tokens_that_are_whole_numbers_nothing_is_said(tmp_path, caplog):
    """Their type is what the model takes; wherever they are kept, they stay the same."""
    words = np.array([[1, 5], [0, 2]] * 3)
    source = _file(tmp_path / "own.npz", x_train=words, x_test=words[:2])
    texts = Preprocessing(input_shape=(2,), tokens=6)
    data = load_local_data(source, texts, pooled=tmp_path / "own.npz")
    assert data.pooled is not None
    assert (data.own.x_train.tolist(), data.own.x_train.dtype) == (words.tolist(), np.float32)
    assert not [said for said in caplog.messages if "float32" in said]


def test_no_examples_and_another_scale_are_doubted(tmp_path, caplog):
    raw = np.random.default_rng(0).normal(9800, 2000, (6, 2)).astype(np.float32)
    measured = Preprocessing(input_shape=(2,), mean=(9.8, 9.8), std=(2.0, 2.0))
    load_local_data(_file(tmp_path / "raw.npz", x_train=raw, x_test=raw[:2]), measured)
    nothing = {"x_train": raw[:0], "y_train": np.zeros(0, int)}
    load_local_data(_file(tmp_path / "none.npz", **nothing, x_test=_NORMAL), measured)
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert "with the bundle's mean (9.8, 9.8) and std (2, 2)" in said[0]
    assert said[1] == "device data: no training examples, so nothing is trained on them"


_NORMAL = np.array([[1, -1], [-1, 1]], np.float32)


def test_what_is_absent_or_unknown_is_named():
    with pytest.raises(MissingDataError, match=r"nothing\.npz"):
        load_local_data("nothing.npz", _PLAIN)
    for name in ("uci-har:5", "uci-har:five"):
        with pytest.raises(InputError, match="expected a subject"):
            load_local_data(name, _PLAIN)


@pytest.mark.slow
@pytest.mark.data
def test_one_subject_of_uci_har_is_normalised_with_the_bundles_statistics(data_root):
    mean = (0.8, 0.0, 0.0, 0.0, 0.0, 0.0)
    spec = Preprocessing(input_shape=(128, 6), mean=mean, std=(2.0,) * 6)
    plain = Preprocessing(input_shape=(128, 6), mean=(0.0,) * 6, std=(1.0,) * 6)
    own = load_local_data("uci-har:5", spec, data_root=data_root).own
    raw = load_local_data("uci-har:5", plain, data_root=data_root).own
    assert own.x_train.shape[1:] == (128, 6)
    np.testing.assert_allclose(own.x_test, (raw.x_test - np.array(mean)) / 2.0, atol=1e-6)
