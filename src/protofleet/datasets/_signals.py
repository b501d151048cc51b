"""Steps that the sensor data sets share: cutting windows, decimating, bringing to one scale."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

TRIAXIAL_PAIR = (slice(0, 3), slice(3, 6))
"""Channels of the accelerometer, then of the gyroscope."""


def window_starts(
    samples: int, width: int, step: int, *, use_exact_end: bool = True
) -> NDArray[np.int64]:
    """First samples of the windows of one run.

    Args:
        samples: length of the run.
        width: length of a window.
        step: distance between windows.
        use_exact_end: whether a window may end exactly at the end of the run; in FedAli's
            published code it may not.
    """
    return np.arange(0, samples - width + use_exact_end, step, dtype=np.int64)


def cut(signal: NDArray[np.float32], starts: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Windows ``(n, width, channels)`` of a signal ``(samples, channels)``."""
    windows: NDArray[np.float32] = signal[starts[:, np.newaxis] + np.arange(width)]
    return windows


def same_runs(*keys: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Start and stop of every stretch of rows in which all keys stay the same."""
    n = len(keys[0])
    changes = np.zeros(max(n - 1, 0), bool)
    for key in keys:
        changes |= key[1:] != key[:-1]
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), n]
    return [(start, stop) for start, stop in pairwise(edges) if stop > start]


def scale_sensors(
    x: NDArray[np.float32],
    group: NDArray[np.str_] | None = None,
    sensors: tuple[slice, ...] = TRIAXIAL_PAIR,
) -> NDArray[np.float32]:
    """Normalise each sensor by one scalar mean and deviation over its three axes.

    FedAli's published code does this for all people of a device group together, train and test
    alike, before splitting. A sensor that never changes becomes zero.

    Args:
        x: ``(n, time, channels) float32``.
        group: ``(n,) str``: device group of each window; None: all are one group.
        sensors: channels of each sensor.
    """
    scaled = np.empty_like(x)
    groups = np.full(len(x), "") if group is None else group
    for name in np.unique(groups):
        rows = np.flatnonzero(groups == name)
        for channels in sensors:
            values = x[rows, :, channels].astype(np.float64)
            mean = values.mean()
            scaled[rows, :, channels] = (values - mean) / _guarded(values.std(), mean)
    return scaled


def standardise_people(x: NDArray[np.float32], owner: NDArray[np.str_]) -> NDArray[np.float32]:
    """Bring each person's windows to mean 0 and deviation 1 for every time step and channel.

    What tells people apart by level or scale, gravity too, is gone then. A value that never changes
    becomes zero.

    Args:
        x: ``(n, time, channels) float32``.
        owner: ``(n,) str``: whose window it is.
    """
    scaled = np.empty_like(x)
    for name in np.unique(owner):
        rows = np.flatnonzero(owner == name)
        values = x[rows].astype(np.float64)
        mean = values.mean(axis=0)
        scaled[rows] = (values - mean) / _guarded(values.std(axis=0), mean)
    return scaled


def standardise(features: NDArray[np.float64], *, scale: bool = True) -> NDArray[np.float32]:
    """Bring each column to mean 0 and deviation 1 with statistics of all people together.

    Pooled rather than per person, because prototypes would otherwise lose what tells people apart
    (FedSub). A constant column becomes zero; a missing value (NaN) becomes its column's mean.

    Args:
        features: ``(n, d) float64``.
        scale: False keeps the units and only fills missing values.
    """
    present = ~np.isnan(features)
    count = np.maximum(present.sum(axis=0), 1)
    mean = np.where(present, features, 0.0).sum(axis=0) / count
    filled = np.where(present, features, mean)
    if scale:
        deviation = np.sqrt(((filled - mean) ** 2).sum(axis=0) / count)
        filled = (filled - mean) / _guarded(deviation, mean)
    return filled.astype(np.float32)


def _guarded(deviation: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    # Rounding leaves a constant a deviation of about 1e-16 of its size, not exactly zero.
    return np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)
