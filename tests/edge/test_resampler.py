"""Where a stretch of readings ends: silences, and clocks that are set back."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.edge.data.resampler import Resampler, StepBack


def _all(times_s, block=1000):
    """What is resampled from a ramp, stretch by stretch, and the counters."""
    resampler = Resampler(50.0, 50.0)
    values = np.arange(float(len(times_s)))[:, np.newaxis]
    stretches = [[]]
    for start in range(0, len(times_s), block):
        part = slice(start, start + block)
        goes_on, *new = resampler.push(np.asarray(times_s[part]), values[part])
        stretches[-1].append(goes_on)
        stretches += [[one] for one in new]
    stretches[-1].append(resampler.flush())
    return stretches, resampler.counters


def _set_back(by_s):
    times_s = 100 + np.arange(200) / 50
    times_s[100:] -= by_s
    return times_s


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("by_s", [0.25, 30.0, 3600.0])
def test_a_clock_that_is_set_back_begins_a_new_stretch_of_which_nothing_is_lost(by_s, block):
    (before, after), counters = _all(_set_back(by_s), block)
    assert (counters.set_back, counters.not_forward, counters.gaps) == (1, 0, 0)
    assert after[0].after == StepBack(pytest.approx(101.98), pytest.approx(102 - by_s))
    index = [np.concatenate([one.index for one in part]) for part in (before, after)]
    assert [len(one) for one in index] == [100, pytest.approx(100, abs=1)]
    assert all((np.diff(one) == 1).all() for one in index)


@pytest.mark.parametrize("by_s", [0.02, 0.1, 0.18])
def test_a_step_shorter_than_a_silence_may_last_is_waited_out(by_s):
    stretches, counters = _all(_set_back(by_s))
    assert (len(stretches), counters.set_back) == (1, 0)
    assert counters.not_forward == pytest.approx(by_s * 50, abs=1)


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_single_readings_that_are_late_are_dropped(block):
    """By a sample, by a second, twice the same, and one at the very end."""
    times_s = 100 + np.arange(200) / 50
    times_s[[20, 50, 90, 91, 199]] = times_s[19] - 0.01, 100.0, 90.0, 90.0, 95.0
    stretches, counters = _all(times_s, block)
    assert (len(stretches), counters.set_back, counters.not_forward) == (1, 0, 5)


def test_two_clocks_in_turn_are_no_steps():
    times_s = 100 + np.repeat(np.arange(100), 2) / 50 - np.tile([0, 60], 100)
    stretches, counters = _all(times_s)
    assert (len(stretches), counters.set_back, counters.not_forward) == (1, 0, 100)


def test_every_step_of_a_clock_that_is_set_back_again_and_again_counts():
    times_s = np.concatenate([100 - 10 * k + np.arange(50) / 50 for k in range(5)])
    stretches, counters = _all(times_s)
    assert (len(stretches), counters.set_back, counters.not_forward) == (5, 4, 0)
