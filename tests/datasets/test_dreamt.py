"""The published nights are under restricted access: every file here is written by a test."""

import numpy as np
import pytest

from protofleet.datasets.dreamt import FEATURES, dreamt_pool
from protofleet.errors import InputError, MissingDataError

_HEADER = (
    "TIMESTAMP,BVP,ACC_X,ACC_Y,ACC_Z,TEMP,EDA,HR,IBI,Sleep_Stage,"
    "Obstructive_Apnea,Central_Apnea,Hypopnea,Multiple_Events"
)


def _night(root, person, rows, folder="data_64Hz"):
    """``rows`` are (time in s, value, inter-beat interval, stage); feature k is value + k."""
    lines = [_HEADER]
    for time, value, ibi, stage in rows:
        features = ",".join(str(value + k) for k in range(7))
        lines.append(f"{time},{features},{ibi},{stage},,,,")
    path = root / "dreamt" / folder / f"{person}_whole_df.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def test_blocks_of_15_s_are_means(tmp_path):
    rows = [(0.0, 1, 800, "W"), (14.9, 3, 900, "W"), (15.0, 10, 700, "N2"), (16.0, 20, 800, "N2")]
    _night(tmp_path, "S002", rows)
    pool = dreamt_pool(tmp_path, normalise=False)
    assert pool.x.tolist() == [
        [2, 3, 4, 5, 6, 7, 8, 850],
        [15, 16, 17, 18, 19, 20, 21, 750],
    ]
    assert [pool.classes[label] for label in pool.y] == ["Wake", "Sleep"]
    assert len(FEATURES) == 8


def test_every_stage_of_sleep_is_sleep_and_other_labels_are_left_out(tmp_path):
    stages = ("P", "W", "N1", "N2", "N3", "R", "Missing", "")
    _night(tmp_path, "S002", [(15.0 * k, k, 800, stage) for k, stage in enumerate(stages)])
    pool = dreamt_pool(tmp_path, normalise=False)
    assert pool.x[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert pool.y.tolist() == [0, 1, 1, 1, 1]


def test_left_out_samples_do_not_enter_a_mean_and_most_samples_decide(tmp_path):
    rows = [(0, 100, 1, "P"), (1, 1, 1, "W"), (2, 2, 1, "W"), (3, 3, 1, "R")]
    _night(tmp_path, "S002", rows)
    pool = dreamt_pool(tmp_path, normalise=False)
    assert pool.x[0, 0] == 2
    assert pool.y.tolist() == [0]


def test_missing_values_do_not_enter_a_mean(tmp_path):
    """Block 1 has one of two intervals, block 2 has none and gets the mean of the others."""
    rows = [(0, 1, "", "W"), (1, 1, 600, "W"), (15, 1, "", "W"), (30, 1, 800, "W")]
    _night(tmp_path, "S002", rows)
    assert dreamt_pool(tmp_path, normalise=False).x[:, 7].tolist() == [600, 700, 800]


def test_people_are_clients_and_share_one_scale(tmp_path):
    rng = np.random.default_rng(0)
    for person, offset in (("S002", 0.0), ("S010", 50.0)):
        values = offset + rng.normal(size=40)
        _night(tmp_path, person, [(15 * k, v, 800, "W") for k, v in enumerate(values)])
    pool = dreamt_pool(tmp_path)
    assert pool.client.tolist() == ["S002"] * 40 + ["S010"] * 40
    assert pool.recording.tolist() == [0] * 40 + [1] * 40
    assert np.abs(pool.x[:, :7].mean(axis=0)).max() < 1e-5
    assert np.abs(pool.x[:, :7].std(axis=0) - 1).max() < 1e-5
    assert (pool.x[:, 7] == 0).all(), "a constant feature becomes zero"
    assert pool.x[:40, 0].mean() < -0.9 < 0.9 < pool.x[40:, 0].mean()


def test_a_block_that_two_chunks_share_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr("protofleet.datasets._tables._CHUNK_LINES", 3)
    _night(tmp_path, "S002", [(k, k, 800, "N1") for k in range(20)])
    pool = dreamt_pool(tmp_path, normalise=False)
    assert pool.x[:, 0].tolist() == [7, 17]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("30,1,1,1,1,warm,1,1,1,W,,,,", r"S002_whole_df\.csv' line 4: expected .*TEMP \(number\)"),
        ("30,1,1", r"S002_whole_df\.csv' line 4: expected the fields"),
        (",1,1,1,1,1,1,1,1,W,,,,", r"line 4: expected a finite TIMESTAMP"),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, message):
    _night(tmp_path, "S002", [(0, 1, 1, "W"), (15, 1, 1, "W")])
    path = tmp_path / "dreamt" / "data_64Hz" / "S002_whole_df.csv"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=message):
        dreamt_pool(tmp_path)


def test_lacking_column_is_named(tmp_path):
    path = tmp_path / "dreamt" / "S002_whole_df.csv"
    path.parent.mkdir()
    path.write_text("TIMESTAMP,BVP\n0,1\n")
    with pytest.raises(InputError, match=r"line 1: expected a column 'ACC_X'"):
        dreamt_pool(tmp_path)


def test_a_night_without_stages_is_refused(tmp_path):
    _night(tmp_path, "S002", [(0, 1, 1, "P")])
    with pytest.raises(InputError, match=r"S002.*rows with a sleep stage"):
        dreamt_pool(tmp_path)


def test_two_files_of_a_person_are_refused(tmp_path):
    for folder in ("data_64Hz", "data"):
        _night(tmp_path, "S002", [(0, 1, 1, "W")], folder)
    with pytest.raises(InputError, match="two files of S002"):
        dreamt_pool(tmp_path)


def test_absent_nights_say_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match="put the published folder 'data_64Hz'"):
        dreamt_pool(tmp_path)
