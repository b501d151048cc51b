import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.intake import SensorIntake
from protofleet.errors import InputError
from protofleet.firmware_sim.imu import ImuProfile, readings
from protofleet.firmware_sim.motion import (
    ACTIVITIES,
    Motion,
    join_recordings,
    load_motion,
    synthesise,
)

WINDOWS = Preprocessing(
    input_shape=(128, 6), rate_hz=50.0, window=128, hop=64, channels=tuple("abcdef"),
    mean=(0.0,) * 6, std=(1.0,) * 6,
)  # fmt: skip


def _recorded(rng=None):
    rng = rng or np.random.default_rng(0)
    times_s = np.arange(1000) / 50.0
    waves = np.sin(2 * np.pi * 1.3 * times_s[:, None] + np.arange(6)).astype(np.float32)
    return join_recordings(
        [(waves, np.zeros(1000, np.int64)), (waves, np.ones(1000, np.int64))], 50
    )


def test_faultless_playback_at_the_recorded_rate_is_exact():
    motion = _recorded()
    parts = list(readings(motion, ImuProfile(rate_hz=50.0), np.random.default_rng(0)))
    assert len(parts) == 2
    assert np.array_equal(np.concatenate([values for _, values, _ in parts]), motion.values)
    assert np.array_equal(np.concatenate([labels for _, _, labels in parts]), motion.labels)


@pytest.mark.parametrize("rate_hz", [31.0, 100.0, 208.0])
def test_other_rates_follow_the_same_motion(rate_hz):
    motion = _recorded()
    times_s, values, _ = next(
        iter(readings(motion, ImuProfile(rate_hz=rate_hz), np.random.default_rng(0)))
    )
    assert np.diff(times_s) == pytest.approx(1 / rate_hz)
    expected = np.sin(2 * np.pi * 1.3 * times_s[:, None] + np.arange(6))
    assert np.abs(values - expected)[10:-10].max() < 0.01


def test_faults_have_their_stated_size():
    motion = _recorded()
    profile = ImuProfile(rate_hz=50.0, noise_g=0.1, noise_rad_s=0.2, bias_g=0.5, jitter_s=0.001)
    times_s, values, _ = next(iter(readings(motion, profile, np.random.default_rng(3))))
    error = values - np.sin(2 * np.pi * 1.3 * times_s[:, None] + np.arange(6))
    assert error[:, :3].std(axis=0) == pytest.approx([0.1] * 3, rel=0.15)
    assert error[:, 3:].std(axis=0) == pytest.approx([0.2] * 3, rel=0.15)
    assert np.abs(error[:, :3].mean(axis=0)).max() > 0.05
    assert np.diff(times_s).std() == pytest.approx(0.001 * np.sqrt(2), rel=0.15)


def test_gaps_lose_readings_and_the_intake_sees_them():
    profile = ImuProfile(rate_hz=50.0, gap_every_s=5.0, gap_s=0.5)
    intake = SensorIntake(WINDOWS, {"imu": 50.0})
    count = 0
    for times_s, values, _ in readings(_recorded(), profile, np.random.default_rng(1)):
        intake.push("imu", times_s, values)
        count += len(times_s)
    assert count < 2000
    assert intake.counters["imu"].gaps > 1


def test_synthesised_activities_differ_and_people_differ():
    motion = synthesise(20.0, np.random.default_rng(0))
    assert np.bincount(motion.labels).tolist() == [4000] * len(ACTIVITIES)
    sway = [motion.values[motion.labels == k, :3].std(axis=0).max() for k in range(len(ACTIVITIES))]
    assert sway[ACTIVITIES.index("walking")] > 10 * sway[ACTIVITIES.index("sitting")]
    other = synthesise(20.0, np.random.default_rng(1))
    assert not np.array_equal(motion.values, other.values)
    assert np.array_equal(motion.values, synthesise(20.0, np.random.default_rng(0)).values)


def test_saved_motion_is_read_back(tmp_path):
    motion = _recorded()
    motion.save(tmp_path / "motion.npz")
    read = load_motion(tmp_path / "motion.npz")
    assert isinstance(read, Motion)
    assert np.array_equal(read.values, motion.values)


def test_impossible_profile_is_named():
    with pytest.raises(InputError, match=r"imu\.noise_g"):
        ImuProfile(noise_g=-1.0)
