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
