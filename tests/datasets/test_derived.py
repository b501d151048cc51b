import io
import tarfile

import numpy as np
import pytest

from protofleet.datasets.derived import (
    WESAD_FEATURES,
    hhar_windows_pool,
    wesad_features_pool,
    wisdm_windows_pool,
)
from protofleet.errors import InputError, MissingDataError


@pytest.mark.data
def test_hhar_windows_are_those_of_the_data_readme(data_root):
    pool = hhar_windows_pool(data_root)
    assert pool.x.shape == (4436, 128, 3)
    assert np.bincount(pool.y).tolist() == [854, 630, 733, 736, 648, 835]
    assert pool.classes == ("bike", "sit", "stairsdown", "stairsup", "stand", "walk")
    people, counts = np.unique(pool.client, return_counts=True)
    assert people.tolist() == [str(person) for person in range(9)]
    assert (counts.min(), counts.max()) == (457, 536)


@pytest.mark.data
def test_hhar_classes_are_in_the_right_order(data_root):
    """Sitting and standing move far less inside a window than the others."""
    pool = hhar_windows_pool(data_root)
    spread = np.array([pool.x[pool.y == label].std(axis=1).mean() for label in range(6)])
    assert spread[[1, 4]].max() < 0.15
    assert spread[[0, 2, 3, 5]].min() > 0.4


@pytest.mark.data
def test_wisdm_windows_are_those_of_the_data_readme(data_root):
    pool = wisdm_windows_pool(data_root)
    assert pool.x.shape == (7292, 128, 3)
    assert np.bincount(pool.y).tolist() == [661, 2287, 391, 316, 810, 2827]
    assert pool.is_test.sum() == 2561
    assert pool.classes[5] == "Walking"
    people, counts = np.unique(pool.client, return_counts=True)
    assert set(people.tolist()) == {str(person) for person in range(1, 37)}
    assert (counts.min(), counts.max()) == (73, 378)


@pytest.mark.data
def test_wesad_rows_are_those_of_the_data_readme(data_root):
    pool = wesad_features_pool(data_root)
    assert pool.x.shape == (1178, 13)
    assert np.bincount(pool.y).tolist() == [195, 628, 355]
    assert pool.classes == ("amusement", "baseline", "stress")
    people, counts = np.unique(pool.client, return_counts=True)
    assert set(people.tolist()) == {f"S{k}" for k in (*range(2, 12), *range(13, 18))}
    assert (counts.min(), counts.max()) == (76, 81)
    assert np.abs(pool.x.mean(axis=0, dtype=np.float64)).max() < 1e-5
    assert np.abs(pool.x.std(axis=0, dtype=np.float64) - 1).max() < 1e-5


@pytest.mark.data
def test_a_wesad_recording_is_one_persons_condition(data_root):
    """15 people with three conditions each, every condition in one piece."""
    pool = wesad_features_pool(data_root)
    pairs = {
        (who, int(label), int(recording))
        for who, label, recording in zip(pool.client, pool.y, pool.recording, strict=True)
    }
    assert len(pairs) == len(set(pool.recording.tolist())) == 45
    assert (np.diff(pool.recording) >= 0).all()


@pytest.mark.data
def test_swapped_wesad_names_are_put_right(data_root):
    """The published ``net_acc_std`` follows the tonic skin conductance, not the acceleration."""
    x = wesad_features_pool(data_root).x
    column = {name: x[:, k] for k, name in enumerate(WESAD_FEATURES)}
    assert len(set(WESAD_FEATURES)) == 13

    def alike(a, b):
        return np.corrcoef(np.argsort(np.argsort(column[a])), np.argsort(np.argsort(column[b])))[
            0, 1
        ]

    assert alike("EDA_std", "EDA_tonic_std") > 0.6 > alike("EDA_std", "ACC_x_std")
    assert alike("net_acc_std", "ACC_x_std") > 0.6 > alike("net_acc_std", "EDA_tonic_std")


@pytest.mark.data
def test_published_scales_are_kept_on_request(data_root):
    x = wesad_features_pool(data_root, normalise=False).x
    deviation = x.std(axis=0, dtype=np.float64)
    assert deviation.max() / deviation.min() > 1e6


def _npz(root, path, **changes):
    arrays = {
        "X": np.zeros((2, 128, 3), np.float16),
        "y": np.array([0, 1], np.uint8),
        "user": np.array([1, 2], np.uint8),
        "is_test": np.array([0, 1], np.uint8),
        "classes": np.array(["a", "b"]),
    }
    target = root / path
    target.parent.mkdir(parents=True)
    kept = {key: value for key, value in (arrays | changes).items() if value is not None}
    np.savez(target, **kept)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((2, 64, 3))}, r"expected X \(n, 128, 3\), got \(2, 64, 3\)"),
        ({"user": None}, "with the arrays X, y, user, classes"),
        ({"y": np.array([{}, {}])}, "Object arrays"),
        ({"y": np.array([0, 2])}, "labels"),
        ({"y": np.array([0])}, "entries of 'y'"),
    ],
)
def test_other_windows_are_refused(tmp_path, changes, message):
    _npz(tmp_path, "hhar/hhar_phone_windows128_standardised.npz", **changes)
    with pytest.raises(InputError, match=message):
        hhar_windows_pool(tmp_path)


_COLUMNS = [
    "net_acc_std", "EDA_phasic_std", "EDA_smna_std", "EDA_tonic_std", "BVP_std", "TEMP_std",
    "ACC_x_std", "ACC_y_std", "ACC_z_std", "Resp_std", "0_std", "BVP_peak_freq", "TEMP_slope",
    "0", "1", "2",
]  # fmt: skip
_GOOD = ",".join(["0", *(str(k) for k in range(13)), "False", "True", "False"])


def _tables(root, *rows, columns=_COLUMNS):
    text = "\n".join([",".join(["", *columns]), *rows]) + "\n"
    target = root / "wesad" / "wesad_features_30s.tar.gz"
    target.parent.mkdir()
    with tarfile.open(target, "w:gz") as archive:
        member = tarfile.TarInfo("wesad_features/S2_feats_4.csv")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))


def test_columns_are_found_by_name(tmp_path):
    _tables(tmp_path, _GOOD)
    pool = wesad_features_pool(tmp_path, normalise=False)
    assert pool.x[0].tolist() == list(range(13))
    assert pool.y.tolist() == [1]


@pytest.mark.parametrize(
    "row",
    [
        _GOOD.replace("12", "nan"),
        _GOOD.replace("12", "twelve"),
        _GOOD.replace("True", "False"),
        _GOOD.replace("False", "True"),
        "0,1,2",
    ],
)
def test_malformed_rows_are_named(tmp_path, row):
    _tables(tmp_path, _GOOD, row)
    with pytest.raises(InputError, match=r"S2_feats_4\.csv' line 3: expected finite features"):
        wesad_features_pool(tmp_path)


def test_lacking_column_is_named(tmp_path):
    _tables(tmp_path, _GOOD, columns=_COLUMNS[1:])
    with pytest.raises(InputError, match=r"line 1: expected a column 'net_acc_std'"):
        wesad_features_pool(tmp_path)


def test_broken_archive_is_named(tmp_path):
    _tables(tmp_path, _GOOD)
    path = tmp_path / "wesad" / "wesad_features_30s.tar.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"wesad_features_30s\.tar\.gz': not a readable"):
        wesad_features_pool(tmp_path)


@pytest.mark.parametrize(
    ("loader", "name"),
    [
        (hhar_windows_pool, "hhar_phone_windows128_standardised"),
        (wisdm_windows_pool, "wisdm_v1.1_windows128_standardised"),
        (wesad_features_pool, "wesad_features_30s"),
    ],
)
def test_absent_files_say_what_to_put_where(tmp_path, loader, name):
    with pytest.raises(MissingDataError, match=f"put '{name}.* at '"):
        loader(tmp_path)
