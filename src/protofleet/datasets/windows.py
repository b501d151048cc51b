"""Labelled windows of one person in recording order, and how to split them without a leak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.device_data import DeviceData


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows in time order.

    Attributes:
        x: ``(n, window, channels) float32``.
        y: ``(n,) int64`` class indices.
        follows: ``(n,) bool``: this window overlaps the one before it.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    follows: NDArray[np.bool_]


def parts_in_time(
    y: NDArray[np.integer], follows: NDArray[np.bool_], *, test_fraction: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which windows train and which test, ``(n,)`` each, as ``split_in_time`` has it.

    Args:
        y: ``(n,)`` class indices.
        follows: as of ``Windows``.
        test_fraction: part of each class's windows for the test.
    """
    train = np.zeros(len(y), bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        train[rows[: len(rows) - round(test_fraction * len(rows))]] = True
    after_train = np.concatenate([[False], train[:-1]]) & follows
    before_train = np.concatenate([train[1:] & follows[1:], [False]])
    return train, ~train & ~after_train & ~before_train


def split_in_time(
    windows: Windows, classes: tuple[str, ...], *, test_fraction: float = 0.3
) -> DeviceData:
    """Split inside each activity in time order, with a gap.

    The first part of each activity trains, the rest tests; a test window that overlaps a training
    window is left out, because a random or adjoining split would leak half a window.
    """
    train, test = parts_in_time(windows.y, windows.follows, test_fraction=test_fraction)
    return DeviceData(
        x_train=windows.x[train],
        y_train=windows.y[train],
        x_test=windows.x[test],
        y_test=windows.y[test],
        classes=classes,
    )


def normalise(windows: Windows, mean: tuple[float, ...], std: tuple[float, ...]) -> Windows:
    """Z-normalise every channel with the given statistics, each of length ``channels``."""
    x = (windows.x - np.asarray(mean)) / np.asarray(std)
    return Windows(x=x.astype(np.float32), y=windows.y, follows=windows.follows)
