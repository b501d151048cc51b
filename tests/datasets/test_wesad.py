"""The published pickles are not at hand: every file here is written by a test, in their layout."""

import io
import os
import pickle

import numpy as np
import pytest

from protofleet.datasets._physiology import clean
from protofleet.datasets._unpickle import unpickle_arrays
from protofleet.datasets.wesad import FEATURES, wesad_pool
from protofleet.errors import InputError, MissingDataError

_RATE = 700


def _ecg(samples, intervals_ms):
    """Narrow R peaks of 1 mV with a broad T wave of 0.2 mV, the intervals repeated in turn."""
    ecg, at, k = np.zeros(samples), 350.0, 0
    time = np.arange(samples)
    while at < samples:
        ecg += np.exp(-(((time - at) / 7) ** 2)) + 0.2 * np.exp(-(((time - at - 200) / 50) ** 2))
        at += intervals_ms[k % len(intervals_ms)] * _RATE / 1000
        k += 1
    return ecg


def _write(root, person, label, ecg, eda):
    chest = {
        "ACC": np.zeros((len(label), 3)),
        "ECG": ecg[:, np.newaxis],
        "EDA": eda[:, np.newaxis],
        "Resp": np.zeros((len(label), 1)),
    }
    content = {
        "signal": {"chest": chest, "wrist": {"BVP": np.zeros((9, 1))}},
        "label": np.asarray(label, np.int32),
        "subject": f"S{person}",
    }
    folder = root / "wesad" / f"S{person}"
    folder.mkdir(parents=True)
    (folder / f"S{person}.pkl").write_bytes(pickle.dumps(content, protocol=2))


def _labels(*runs):
    return np.concatenate([np.full(length, label) for label, length in runs])


def _feature(pool, name):
    return pool.x[:, FEATURES.index(name)]


def _one_condition(root, *, intervals_ms=(800,), eda=None, samples=50_000):
    label = np.ones(samples)
    skin = np.full(samples, 5.0) if eda is None else eda
    _write(root, 2, label, _ecg(samples, intervals_ms), skin)
    return wesad_pool(root, normalise=False)


def test_windows_lie_inside_one_condition_and_overlap_by_half(tmp_path):
    """10 000 samples every 5 000; labels 0 and 5 to 7 are left out, as is what is too short."""
    label = _labels((0, 3000), (1, 21000), (2, 10000), (7, 12000), (3, 9999), (4, 15000))
    _write(tmp_path, 2, label, _ecg(len(label), (800,)), np.linspace(1, 2, len(label)))
    _write(tmp_path, 13, label, _ecg(len(label), (900,)), np.linspace(2, 1, len(label)))
    pool = wesad_pool(tmp_path)
    assert pool.x.shape == (12, 30)
    assert pool.y.tolist() == [0, 0, 0, 1, 3, 3] * 2
    assert pool.client.tolist() == ["S2"] * 6 + ["S13"] * 6
    assert pool.recording.tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 5, 5]
    assert pool.follows.tolist() == [False, True, True, False, False, True] * 2
    assert pool.classes == ("baseline", "stress", "amusement", "meditation")


def test_features_are_thirty_and_normalised_over_all_people(tmp_path):
    rng = np.random.default_rng(0)
    for person, intervals in ((2, (800, 860)), (3, (700, 730, 650))):
        label = _labels((1, 40000))
        eda = person + np.cumsum(rng.normal(0, 0.002, 40000))
        _write(tmp_path, person, label, _ecg(40000, intervals), eda)
    pool = wesad_pool(tmp_path)
    assert len(set(FEATURES)) == len(FEATURES) == 30
    deviation = pool.x.std(axis=0, dtype=np.float64)
    assert np.abs(pool.x.mean(axis=0, dtype=np.float64)).max() < 1e-5
    assert np.all((np.abs(deviation - 1) < 1e-4) | (deviation == 0))
    assert (deviation > 0).sum() >= 25


def test_even_heart_beats(tmp_path):
    """A beat every 800 ms: 75 a minute and no variability."""
    pool = _one_condition(tmp_path)
    assert np.allclose(_feature(pool, "ecg_rate"), 75, atol=0.05)
    for name in ("nn_mean", "nn_median", "nn_min", "nn_max"):
        assert np.allclose(_feature(pool, name), 800, atol=0.1)
    for name in ("nn_sd", "rmssd", "sdsd", "pnn20", "pnn50", "sd1", "nn_iqr", "nn_mad"):
        assert np.abs(_feature(pool, name)).max() < 0.1
    # The filter takes a little off peaks as narrow as these.
    assert np.all((_feature(pool, "r_amplitude") > 0.8) & (_feature(pool, "r_amplitude") < 1))


@pytest.mark.parametrize("noise_mv", [0.0, 0.1, 0.2])
def test_beats_are_found_in_noise_drift_and_mains_hum(noise_mv):
    """Each of 120 uneven beats of 1 mV within 20 ms, and no other."""
    rng = np.random.default_rng(0)
    intervals = rng.normal(800, 40, 120)
    samples = int(intervals.sum() * _RATE / 1000)
    time = np.arange(samples) / _RATE
    ecg = _ecg(samples, intervals) + noise_mv * rng.normal(size=samples)
    ecg += 0.3 * np.sin(2 * np.pi * 0.25 * time) + 0.05 * np.sin(2 * np.pi * 50 * time)
    session = clean(ecg, np.ones(samples), _RATE)
    true = 0.5 + np.concatenate([[0], np.cumsum(intervals[:-1])]) / 1000
    assert len(session.beats) == 120
    assert np.abs(session.beats / _RATE - true).max() < 0.02


def test_alternating_heart_beats(tmp_path):
    """700 and 900 ms in turn: successive differences of 200 ms, all above 50 ms."""
    pool = _one_condition(tmp_path, intervals_ms=(700, 900))
    assert np.allclose(_feature(pool, "nn_min"), 700, atol=0.1)
    assert np.allclose(_feature(pool, "nn_max"), 900, atol=0.1)
    assert np.allclose(_feature(pool, "rmssd"), 200, atol=0.1)
    assert np.allclose(_feature(pool, "pnn50"), 1)
    assert np.allclose(_feature(pool, "nn_iqr"), 200, atol=0.1)
    # 16 or 17 intervals: the sample deviation of ±100 ms is at most 100 * sqrt(16 / 15).
    assert np.all((_feature(pool, "nn_sd") > 99.5) & (_feature(pool, "nn_sd") < 103.5))
    sd1, sdsd = _feature(pool, "sd1"), _feature(pool, "sdsd")
    assert np.allclose(sd1, sdsd / np.sqrt(2), rtol=1e-5)


def test_rising_skin_conductance(tmp_path):
    """From 4 µS, 0.05 µS a second: tonic, no responses."""
    eda = 4 + 0.05 * np.arange(50_000) / _RATE
    pool = _one_condition(tmp_path, eda=eda)
    middle = slice(2, 7)  # filters of 20 s settle at the ends of the recording
    starts = np.arange(9) * 5000
    expected = 4 + 0.05 * (starts + 4999.5) / _RATE
    assert len(pool.x) == 9
    assert np.allclose(_feature(pool, "eda_slope"), 0.05, atol=1e-3)
    assert np.allclose(_feature(pool, "eda_mean"), expected, atol=1e-3)
    assert np.allclose(_feature(pool, "tonic_mean")[middle], expected[middle], atol=0.05)
    assert np.all(_feature(pool, "scr_count") == 0)


def test_skin_responses_are_counted(tmp_path):
    """Three rises of 0.5 µS, one second wide, in the first window, and one in the last."""
    time = np.arange(50_000) / _RATE
    eda = 5 + sum(0.5 * np.exp(-((time - at) ** 2)) for at in (3, 7, 11, 68))
    pool = _one_condition(tmp_path, eda=eda)
    assert _feature(pool, "scr_count")[[0, 8]].tolist() == [3, 1]
    assert _feature(pool, "scr_count")[4:7].tolist() == [0, 0, 0]
    assert 0.3 < _feature(pool, "scr_amplitude")[0] < 0.55


def test_windows_without_beats_get_the_mean_of_the_others(tmp_path):
    _write(tmp_path, 2, np.ones(20000), _ecg(20000, (800,)), np.ones(20000))
    _write(tmp_path, 3, np.ones(20000), np.zeros(20000), np.ones(20000))
    pool = wesad_pool(tmp_path, normalise=False)
    assert np.allclose(_feature(pool, "nn_mean"), 800, atol=0.1)


class _Hostile:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_a_pickle_that_names_anything_else_is_refused(tmp_path):
    folder = tmp_path / "wesad"
    folder.mkdir()
    hostile = pickle.dumps({"label": _Hostile(tmp_path / "made")}, protocol=2)
    (folder / "S2.pkl").write_bytes(hostile)
    with pytest.raises(InputError, match=r"S2\.pkl': expected a pickle of plain arrays.*mkdir"):
        wesad_pool(tmp_path)
    assert not (tmp_path / "made").exists()
    pickle.loads(hostile)  # noqa: S301 - made above, to show that it does harm
    assert (tmp_path / "made").exists(), "the same bytes do harm when loaded plainly"


def test_bytes_written_by_python_2_are_read():
    """Text of an array's buffer as Python 2 wrote it, opcode by opcode: [1.0, -2.0]."""
    written = (
        b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b"
        b"\x87R(K\x01K\x02\x85cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x10"
        b"\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\x00\xc0tbs."
    )
    assert unpickle_arrays(io.BytesIO(written), "x")["a"].tolist() == [1.0, -2.0]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_arrays_of_every_protocol_are_read(protocol):
    content = {"a": np.arange(6).reshape(2, 3), "b": [np.float32(1.5), "text", 3]}
    read = unpickle_arrays(io.BytesIO(pickle.dumps(content, protocol)), "x")
    assert np.array_equal(read["a"], content["a"])
    assert read["b"] == content["b"]


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", pickle.dumps({"a": np.ones(99)})[:-40], b"\x80\x02K\x01\x85R."]
)
def test_what_is_no_pickle_is_refused(content):
    with pytest.raises(InputError, match="'x': expected a pickle of plain arrays"):
        unpickle_arrays(io.BytesIO(content), "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"signal": {}}, "expected signal/chest/ECG"),
        ([1, 2], "expected signal/chest/ECG"),
        (
            {"signal": {"chest": {"ECG": np.ones(9), "EDA": np.ones(8)}}, "label": np.ones(9)},
            "of one length, got 9, 8",
        ),
        (
            {
                "signal": {"chest": {"ECG": np.full(9, np.nan), "EDA": np.ones(9)}},
                "label": np.ones(9),
            },
            "NaN",
        ),
    ],
)
def test_other_contents_are_refused(tmp_path, content, message):
    (tmp_path / "wesad").mkdir()
    (tmp_path / "wesad" / "S3.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=rf"S3\.pkl'.*{message}"):
        wesad_pool(tmp_path)


def test_a_recording_without_conditions_is_refused(tmp_path):
    _write(tmp_path, 2, np.zeros(11000), np.zeros(11000), np.zeros(11000))
    with pytest.raises(InputError, match="10000 samples of a label 1 to 4"):
        wesad_pool(tmp_path)


def test_absent_pickles_say_what_to_put_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"put the published 'S2\.pkl' to 'S17\.pkl' at"):
        wesad_pool(tmp_path)
