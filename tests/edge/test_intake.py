"""The incremental intake against computations over the whole recording."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.intake import Resampler, SensorIntake
from protofleet.errors import InputError

MOTION = Preprocessing(
    input_shape=(128, 6),
    rate_hz=50.0,
    window=128,
    hop=64,
    channels=("ax", "ay", "az", "gx", "gy", "gz"),
    mean=(0.3,) * 3 + (0.0,) * 3,
    std=(0.5,) * 3 + (0.3,) * 3,
)


def _motion(times_s):
    """A smooth signal well inside the 22.5 Hz pass band, three channels."""
    phases = np.array([0.0, 1.0, 2.0])
    return np.sin(2 * np.pi * 1.7 * times_s[:, None] + phases) + 0.3 * np.sin(
        2 * np.pi * 9.0 * times_s[:, None] - phases
    )


def _resample_all(times_s, values, rate_hz):
    resampler = Resampler(rate_hz, 50.0)
    parts = [*resampler.push(times_s, values), resampler.flush()]
    return np.concatenate([p.index for p in parts]), np.concatenate([p.values for p in parts])


@pytest.mark.parametrize("rate_hz", [20.0, 31.3, 50.0, 99.5, 100.0, 200.0, 416.0])
def test_any_rate_gives_the_signal_at_50_hz(rate_hz):
    """Away from the ends the output equals the continuous signal on the grid."""
    times_s = np.arange(0, 12, 1 / rate_hz) + 0.013
    values = _motion(times_s) if rate_hz > 25 else np.sin(2 * np.pi * 1.7 * times_s)[:, None]
    index, out = _resample_all(times_s, values, rate_hz)
    assert np.array_equal(index, np.arange(index[0], index[-1] + 1))
    middle = slice(60, -60)
    grid_s = index[middle] / 50.0
    expected = _motion(grid_s) if rate_hz > 25 else np.sin(2 * np.pi * 1.7 * grid_s)[:, None]
    assert np.abs(out[middle] - expected).max() < 0.01


@pytest.mark.parametrize("rate_hz", [100.0, 200.0])
def test_agrees_with_scipy_on_regular_input(rate_hz):
    """An independent polyphase filter of the whole recording, within pass-band ripple."""
    rng = np.random.default_rng(0)
    times_s = np.arange(0, 20, 1 / rate_hz)
    noise = rng.normal(size=(len(times_s), 1))
    slow = signal.sosfiltfilt(signal.butter(8, 15.0, fs=rate_hz, output="sos"), noise, axis=0)
    _, out = _resample_all(times_s, slow, rate_hz)
    reference = signal.resample_poly(slow, 1, int(rate_hz / 50))
    size = min(len(out), len(reference)) - 60
    assert np.abs(out[60:size] - reference[60:size]).max() < 0.02 * np.abs(reference).max()


@pytest.mark.parametrize("tone_hz", [30.0, 47.0, 80.0])
def test_tones_that_would_alias_are_removed(tone_hz):
    times_s = np.arange(0, 10, 1 / 200.0)
    _, out = _resample_all(times_s, np.sin(2 * np.pi * tone_hz * times_s)[:, None], 200.0)
    assert np.abs(out[60:-60]).max() < 0.01


def test_jittered_time_stamps_are_honoured():
    rng = np.random.default_rng(1)
    times_s = np.sort(np.arange(0, 12, 0.01) + rng.uniform(-0.002, 0.002, 1200))
    index, out = _resample_all(times_s, _motion(times_s), 100.0)
    middle = slice(60, -60)
    assert np.abs(out[middle] - _motion(index[middle] / 50.0)).max() < 0.03


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 1500), max_size=8), seed=st.integers(0, 5))
def test_blocks_of_any_size_give_the_whole_recordings_bits(cuts, seed):
    rng = np.random.default_rng(seed)
    times_s = np.cumsum(rng.uniform(0.004, 0.012, 1500))
    values = rng.normal(size=(1500, 3))
    whole = _resample_all(times_s, values, 125.0)
    resampler = Resampler(125.0, 50.0)
    blocks = np.split(np.arange(1500), sorted(cuts))
    parts = [
        part
        for block in blocks
        if len(block)
        for part in resampler.push(times_s[block], values[block])
    ]
    parts.append(resampler.flush())
    assert np.array_equal(np.concatenate([p.index for p in parts]), whole[0])
    assert np.array_equal(np.concatenate([p.values for p in parts if len(p.index)]), whole[1])


def test_windows_equal_an_offline_cut():
    """Incremental windows of two sensors = resample all, join, normalise, cut by 128 step 64."""
    acc_s, gyro_s = np.arange(0, 15, 1 / 97.0), np.arange(0.1, 15, 1 / 203.0)
    acc, gyro = _motion(acc_s), _motion(gyro_s) * 2
    intake = SensorIntake(MOTION, {"acc": 97.0, "gyro": 203.0})
    windows = []
    for second in range(15):
        for name, times_s, values in (("acc", acc_s, acc), ("gyro", gyro_s, gyro)):
            now = (times_s >= second) & (times_s < second + 1)
            windows += intake.push(name, times_s[now], values[now])
    windows += intake.flush()
    acc_k, acc_out = _resample_all(acc_s, acc, 97.0)
    gyro_k, gyro_out = _resample_all(gyro_s, gyro, 203.0)
    both = np.intersect1d(acc_k, gyro_k)
    rows = np.hstack([acc_out[np.isin(acc_k, both)], gyro_out[np.isin(gyro_k, both)]])
    rows = (rows - MOTION.mean) / MOTION.std
    expected = [rows[start : start + 128] for start in range(0, len(rows) - 127, 64)]
    assert np.array_equal(np.stack([w.x for w in windows]), np.float32(expected))
    assert windows[1].start_s - windows[0].start_s == pytest.approx(1.28)


def test_window_leaves_as_soon_as_it_is_complete():
    """The first window of 128 samples is out once the filter's reach beyond it has arrived."""
    intake = SensorIntake(MOTION, {"imu": 100.0})
    times_s = np.arange(0, 10, 0.01)
    values = np.hstack([_motion(times_s)] * 2)
    count = next(
        count
        for count in range(len(times_s))
        if intake.push("imu", times_s[count : count + 1], values[count : count + 1])
    )
    assert 127 / 50 < times_s[count] < 127 / 50 + 0.25


def test_no_window_spans_a_gap_or_two_activities(caplog):
    """And the log tells of the gap when the recording is over."""
    caplog.set_level("INFO", logger="protofleet")
    intake = SensorIntake(MOTION, {"imu": 50.0})
    intake.mark(0.0, 1)
    intake.mark(6.0, 2)
    times_s = np.concatenate([np.arange(0, 9, 0.02), np.arange(12, 16, 0.02)])
    windows = intake.push("imu", times_s, np.hstack([_motion(times_s)] * 2)) + intake.flush()
    spans = [(w.start_s, w.start_s + 127 / 50) for w in windows]
    assert not any(begin < 8.99 and end > 12 for begin, end in spans)
    assert intake.counters["imu"].gaps == 1
    assert "sensor 'imu' lost so far: 1 gaps" in caplog.text
    for window, (begin, end) in zip(windows, spans, strict=True):
        assert window.label == (1 if end < 6 else 2 if begin >= 6 else -1)
    assert windows[-1].start_s >= 12


def _labels_with_a_step_back(marks, block):
    """Windows of 20 s, by whose clock the second half began 8 s before the first ended."""
    intake = SensorIntake(MOTION, {"imu": 50.0})
    times_s = 100 + np.arange(1000) / 50.0
    values = np.hstack([_motion(times_s)] * 2)
    times_s[500:] -= 8.0
    found, waiting = [], list(marks)
    for start in range(0, len(times_s), block):
        while waiting and waiting[0][0] <= start:
            intake.mark(*waiting.pop(0)[1:])
        part = slice(start, start + block)
        found += intake.push("imu", times_s[part], values[part])
    return [(round(one.start_s, 2), one.label) for one in found + intake.flush()], intake


@pytest.mark.parametrize("block", [1, 50])
def test_an_activity_goes_on_by_a_clock_that_was_set_back(block, caplog):
    """The mark at 105 s lies before the step, however often the clock shows 105 s."""
    found, intake = _labels_with_a_step_back([(0, 100.0, 1), (250, 105.0, 2)], block)
    before, after = found[:6], found[6:]
    assert [start for start, _ in after] == [102.0, *(102 + 1.28 * np.arange(1, 6)).round(2)]
    assert {label for _, label in after} == {2}
    assert {label for start, label in before if start < 102} == {1}
    assert intake.counters["imu"].set_back == 1
    assert "sensor 'imu': the clock was set back by 7.98 s at 109.98" in caplog.text


@pytest.mark.parametrize("block", [1, 10, 50])
def test_a_mark_by_the_new_time_holds_from_there(block):
    found, _ = _labels_with_a_step_back([(0, 100.0, 1), (500, 102.0, 0), (750, 107.0, 2)], block)
    assert [label for start, label in found if start < 102] == [1] * 2
    assert [label for _, label in found[6:]] == [0, 0, -1, -1, 2, 2]


def test_two_sensors_on_a_clock_that_is_set_back_are_joined_by_the_new_time():
    intake = SensorIntake(MOTION, {"acc": 50.0, "gyro": 50.0})
    times_s = 100 + np.arange(1000) / 50.0
    values = _motion(times_s)
    times_s[510:] -= 3600.0
    windows = []
    for start in range(0, 1000, 50):
        part = slice(start, start + 50)
        for name in ("acc", "gyro"):
            windows += intake.push(name, times_s[part], values[part])
    starts = np.array([one.start_s for one in windows + intake.flush()])
    assert ((starts < 200) & (starts > 99)).sum() == 6
    assert ((starts < -3480) & (starts > -3490)).sum() == 6


def test_a_window_needs_readings_of_each_sensor_for_half_of_what_its_rate_gives(caplog):
    """A slow sensor beside a fast one is measured by its own rate."""
    intake = SensorIntake(MOTION, {"acc": 50.0, "slow": 5.0})
    acc_s, slow_s = np.arange(0, 60, 0.02), np.arange(0, 60, 0.2)
    acc_s = acc_s[(acc_s < 20) | (acc_s >= 40) | (np.arange(3000) % 8 == 0)]
    starts = []
    for second in range(60):
        for name, times_s in (("acc", acc_s), ("slow", slow_s)):
            now = times_s[(times_s >= second) & (times_s < second + 1)]
            starts += [one.start_s for one in intake.push(name, now, _motion(now))]
    starts = np.array(starts)
    assert not ((starts > 18.9) & (starts < 38.5)).any()
    assert len(starts) > 25
    assert intake.counters["slow"].interpolated_windows == 0
    assert intake.counters["acc"].interpolated_windows in range(14, 18)
    assert "sensor 'acc': the window at 19.20 is left out: expected readings for 64" in caplog.text


def test_unusable_readings_are_counted():
    resampler = Resampler(50.0, 50.0)
    times_s = np.array([0.0, 0.02, 0.02, 0.01, 0.04, 0.06])
    values = np.ones((6, 1))
    values[4] = np.nan
    resampler.push(times_s, values)
    assert resampler.counters.not_finite == 1
    assert resampler.counters.not_forward == 2
    assert str(resampler.counters) == "1 not finite, 2 not forward"


def test_a_sensor_that_died_does_not_fill_the_memory_and_may_come_back():
    """Half an hour of acceleration alone leaves a minute waiting; then windows come again."""
    intake = SensorIntake(MOTION, {"acc": 50.0, "gyro": 50.0})
    second_s = np.arange(50) / 50.0
    for second in range(1800):
        assert not intake.push("acc", second + second_s, np.ones((50, 3)))
    waiting = sum(len(one.index) for one in intake._streams["acc"].blocks)
    assert 59 * 50 <= waiting <= 61 * 50
    assert intake.counters["acc"].unmatched == pytest.approx(1739 * 50, abs=100)
    windows = intake.push("gyro", 1760 + np.arange(2000) / 50.0, np.ones((2000, 3)))
    assert windows[0].start_s == pytest.approx(1760, abs=0.1)


def test_wrong_input_is_named():
    intake = SensorIntake(MOTION, {"imu": 50.0})
    with pytest.raises(InputError, match="sensor 'wrist'"):
        intake.push("wrist", np.zeros(1), np.zeros((1, 6)))
    with pytest.raises(InputError, match="expected 6 channels in all, got 3"):
        intake.push("imu", np.arange(500) / 50.0, np.zeros((500, 3)))
    with pytest.raises(InputError, match="not a series"):
        SensorIntake(Preprocessing(input_shape=(1, 8, 8)), {"imu": 50.0})
