"""Readings that share a stamp, or come in packets."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.edge.data.packets import Spreader, find_packets, is_known

_WINDOW_S = 2.56


def _taken(rate_hz, seconds=20.0):
    """When readings are taken, beginning within a second."""
    return 1000.37 + np.arange(round(seconds * rate_hz)) / rate_hz


def _found(times_s, wanted_hz=50.0):
    return find_packets(times_s, wanted_hz, _WINDOW_S)


def _arrived(times_s, every_s, apart_s=0.001):
    """Stamps of arrival, of what a link hands over together."""
    begins = np.ceil(times_s / every_s) * every_s
    within = np.concatenate([np.arange(n) for n in np.unique(begins, return_counts=True)[1]])
    return begins + within * apart_s


_STAMPS = {
    "whole seconds": np.floor,
    "tenths of a second": lambda t: np.floor(t * 10) / 10,
    "packets of a second": lambda t: _arrived(t, 1.0),
    "packets of a tenth": lambda t: _arrived(t, 0.1),
    "packets of a second at one moment": lambda t: _arrived(t, 1.0, 0.0),
}


@pytest.mark.parametrize("block", [1, 64, 1000])
@pytest.mark.parametrize("rate_hz", [48.0, 50.0, 55.0])
@pytest.mark.parametrize("stamps", _STAMPS)
def test_readings_are_spread_as_they_were_taken(stamps, rate_hz, block):
    """But for a shift of all, which resampling does not see, and for the ends."""
    taken = _taken(rate_hz)
    stamped = _STAMPS[stamps](taken)
    found = _found(stamped)
    assert found is not None
    assert found.fits(50.0)
    assert found.rate_hz == pytest.approx(rate_hz, rel=0.03)
    spreader = Spreader(found)
    parts = [spreader.push(stamped[k : k + block]) for k in range(0, len(taken), block)]
    spread = np.concatenate([*parts, spreader.flush()])
    assert len(spread) == len(taken)
    late_s = (spread - taken)[100:-100]
    assert np.ptp(late_s) < 1.5 / rate_hz
    assert (np.diff(spread) > 0).all()
    assert np.diff(spread).max() < 3 / rate_hz


@pytest.mark.parametrize(
    "times_s",
    [
        _taken(50.0),
        _taken(12.5),
        _taken(200.0),
        _taken(1000.0),
        _taken(50.0) + np.random.default_rng(0).uniform(-0.004, 0.004, 1000),
        # Three seconds of each nine are recorded, at a rate whose mean would fit.
        _taken(150.0, 3.0)[np.newaxis] + 9 * np.arange(4)[:, np.newaxis],
        # A pause in the first samples.
        np.concatenate([_taken(50.0)[:8], _taken(50.0)[8:] + 30]),
    ],
)
def test_readings_with_times_of_their_own_are_no_packets(times_s):
    assert _found(np.ravel(times_s)) is None


def test_packets_of_another_number_do_not_fit():
    found = _found(np.floor(_taken(25.0)))
    assert not found.fits(50.0)
    assert found.fits(25.0)
    assert (found.period_s, found.is_shared) == (1.0, True)
    assert found.words == "about 25 readings share each time, 25 a second"
    assert "come together each time" in _found(_arrived(_taken(25.0), 1.0)).words


def test_the_first_that_tell_are_looked_at_however_many_there_are():
    """So a file and a stream of it give the same windows."""
    stamped = np.floor(_taken(52.0))
    known = next(n for n in range(2, 1000) if is_known(stamped[:n], 50.0, _WINDOW_S))
    assert known == 33 + 2 * 52 + 1  # a part of a second, two whole, and one that begins
    assert _found(stamped[:known]) == _found(stamped)
    regular = _taken(50.0)
    assert next(n for n in range(2, 1000) if is_known(regular[:n], 50.0, _WINDOW_S)) == 16
    fast = _taken(200.0)
    assert is_known(fast[:520], 50.0, _WINDOW_S)
    assert not is_known(fast[:500], 50.0, _WINDOW_S)


def test_a_packet_that_lacks_readings_keeps_their_distance():
    """A sensor that paused, and one that began in the middle of the first second."""
    stamped = np.repeat([0.0, 1, 2, 3, 4, 10, 11], [10, 50, 50, 20, 50, 50, 50])
    spreader = Spreader(_found(stamped))
    spread = np.concatenate([spreader.push(stamped), spreader.flush()])
    steps = np.diff(spread)
    np.testing.assert_allclose(spread[:10], 0.8 + np.arange(10) / 50)
    assert np.flatnonzero(steps > 0.03).tolist() == [129, 179]
    np.testing.assert_allclose(steps[[129, 179]], [0.62, 5.02])


def test_a_stamp_that_stays_and_one_that_is_lacking():
    spreader = Spreader(_found(np.floor(_taken(50.0))))
    given = sum(len(spreader.push(np.full(50, 7.0))) for _ in range(100))
    assert 5000 - 300 < given <= 5000
    spreader = Spreader(_found(np.floor(_taken(50.0))))
    stamped = np.floor(np.arange(150) / 50)
    stamped[[0, 60]] = np.nan
    spread = np.concatenate([spreader.push(stamped), spreader.flush()])
    assert np.flatnonzero(np.isnan(spread)).tolist() == [0, 60]
    assert (np.diff(spread[np.isfinite(spread)]) > 0).all()


def test_a_clock_that_is_set_back_keeps_the_distance():
    stamped = np.repeat([100.0, 101, 102, 103, 40, 41, 42], 50)
    spreader = Spreader(_found(stamped))
    steps = np.diff(np.concatenate([spreader.push(stamped), spreader.flush()]))
    assert np.flatnonzero(np.abs(steps - 0.02) > 1e-6).tolist() == [199]
