"""The raw file is not at hand: five real lines, and malformed lines written by hand."""

import numpy as np
import pytest

from protofleet.datasets import wisdm
from protofleet.errors import InputError, MissingDataError


@pytest.mark.data
def test_real_lines_are_read(data_root):
    path = data_root / "wisdm" / "WISDM_ar_v1.1_raw_first5lines.txt"
    read = wisdm.parse_wisdm(path.read_text().splitlines(keepends=True))
    assert len(read.user) == 5
    assert not read.refused
    assert set(read.user.tolist()) == {33}
    assert {wisdm.CLASSES[label] for label in read.label} == {"Jogging"}
    assert 0 < np.diff(read.time_s).max() < 1


def test_quirks_are_read_and_malformed_records_are_counted():
    """Every quirk that the data set's readers report, each once."""
    text = [
        "33,Jogging,49105962326000,-0.69,12.68,0.50;\n",
        "33,Jogging,49106012326000,5.01,11.26,0.95;33,Jogging,49106062326000,4.9,10.8,-0.08;\n",
        " 33 , Jogging , 49106112326000 , 1 , 2 , 3 ;\n",
        "33,Jogging,49106162326000,1,2,3,;\n",
        "33,Jogging,49106212326000,1,2,3\n",
        "\n",
        "   \n",
        "20,Walking,0,0,0,0.0;\n",
        "11,Walking,1867172313000,4.4,4.4,\n",
        "11,Walking,1867172313000,4.4,,1;\n",
        "11,Dancing,1867172313000,4.4,4,1;\n",
        "11,Walking,x,4.4,4,1;\n",
        "11,Walking,1867172313000,nan,4,1;\n",
    ]
    read = wisdm.parse_wisdm(text)
    assert len(read.user) == 6
    assert read.refused == {
        "with timestamp 0": 1,
        "with 5 fields instead of 6": 1,
        "with an empty field": 1,
        "with an unknown activity": 1,
        "with a field that is no finite number": 2,
    }
    assert read.report.startswith("WISDM: 6 records read; refused: 1 with")


def test_recordings_break_at_user_activity_and_time():
    line = "{},{},{},1,2,3;"
    rows = [
        (1, "Walking", 1_000_000_000),
        (1, "Walking", 1_050_000_000),
        (1, "Walking", 9_000_000_000),
        (1, "Walking", 8_000_000_000),
        (1, "Walking", 8_000_000_000),
        (1, "Jogging", 8_050_000_000),
        (2, "Jogging", 8_100_000_000),
    ]
    read = wisdm.parse_wisdm([line.format(*row) for row in rows])
    assert read.recording.tolist() == [0, 0, 1, 2, 3, 4, 5]


def test_empty_text_gives_no_recordings():
    assert len(wisdm.parse_wisdm([]).recording) == 0


def test_absent_file_says_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"WISDM_ar_v1\.1_raw\.txt' at"):
        wisdm.load_wisdm(tmp_path)


def _write(root, *runs):
    """Runs of (user, activity, values) at 20 Hz, parted by ten seconds; y is x + 1, z is x + 2."""
    lines, at = [], 10**9
    for user, activity, values in runs:
        for k, x in enumerate(values):
            lines.append(f"{user},{activity},{at + k * 50_000_000},{x},{x + 1},{x + 2};")
        at += len(values) * 50_000_000 + 10**10
    (root / "wisdm").mkdir()
    (root / "wisdm" / "WISDM_ar_v1.1_raw.txt").write_text("\n".join(lines))
    return root


@pytest.mark.data
def test_real_lines_become_a_window(data_root, tmp_path):
    lines = (data_root / "wisdm" / "WISDM_ar_v1.1_raw_first5lines.txt").read_text()
    (tmp_path / "wisdm").mkdir()
    (tmp_path / "wisdm" / "WISDM_ar_v1.1_raw.txt").write_text(lines)
    pool = wisdm.wisdm_pool(tmp_path, window="raw", samples=5, step=5, normalise=False)
    assert pool.x.shape == (1, 5, 3)
    assert pool.x[0, 0].tolist() == pytest.approx([-0.6946377, 12.680544, 0.50395286])
    assert pool.client.tolist() == ["33"]
    assert pool.classes[pool.y[0]] == "Jogging"
    with pytest.raises(InputError, match="a recording of 20 samples"):
        wisdm.wisdm_pool(tmp_path)


def test_means_of_seconds_inside_recordings(tmp_path):
    """45 samples hold two whole seconds; a second never spans two recordings."""
    root = _write(
        tmp_path,
        (3, "Walking", range(45)),
        (3, "Sitting", [7] * 20),
        (5, "Sitting", [8] * 19),
        (5, "Sitting", [9] * 39),
    )
    pool = wisdm.wisdm_pool(root, normalise=False)
    assert pool.x.tolist() == [[9.5, 10.5, 11.5], [29.5, 30.5, 31.5], [7, 8, 9], [9, 10, 11]]
    assert pool.client.tolist() == ["3", "3", "3", "5"]
    assert [wisdm.CLASSES[label] for label in pool.y] == ["Walking", "Walking"] + ["Sitting"] * 2
    assert pool.recording.tolist() == [0, 0, 1, 3]
    assert not pool.follows.any()


def test_means_are_standardised_over_all_users(tmp_path):
    rng = np.random.default_rng(0)
    runs = [(user, "Walking", rng.normal(user, 5, 400).round(3)) for user in (1, 30)]
    pool = wisdm.wisdm_pool(_write(tmp_path, *runs))
    assert pool.x.shape == (40, 3)
    assert np.abs(pool.x.mean(axis=0)).max() < 1e-5
    assert np.abs(pool.x.std(axis=0) - 1).max() < 1e-5
    assert pool.x[:20].mean() < -0.8 < pool.x[20:].mean()


def test_raw_windows_overlap(tmp_path):
    root = _write(tmp_path, (1, "Walking", range(256)), (1, "Jogging", range(128)))
    pool = wisdm.wisdm_pool(root, window="raw", normalise=False)
    assert pool.x.shape == (4, 128, 3)
    assert pool.x[:, 0, 0].tolist() == [0, 64, 128, 0]
    assert pool.follows.tolist() == [False, True, True, False]
    scaled = wisdm.wisdm_pool(root, window="raw").x
    assert abs(scaled.mean(dtype=np.float64)) < 1e-6
    assert abs(scaled.std(dtype=np.float64) - 1) < 1e-6


@pytest.mark.parametrize("options", [{"window": "mean"}, {"samples": 0}, {"step": 0}])
def test_impossible_windows_are_refused(tmp_path, options):
    with pytest.raises(InputError, match="expected window mean_1s or raw"):
        wisdm.wisdm_pool(tmp_path, **options)
