"""UCI-HAR: 30 people, a phone on the waist, 50 Hz, windows of 128 samples with half overlap.

D. Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones",
ESANN 2013. Read from the published zip as it is; the 561-feature files are not needed.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets._signals import (
    TRIAXIAL_PAIR,
    scale_sensors,
    standardise_people,
)
from protofleet.datasets.pool import Pool
from protofleet.datasets.windows import Windows
from protofleet.errors import InputError, MissingDataError

RATE_HZ = 50.0
WINDOW = 128
HOP = 64
CLASSES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
_FILES = tuple(f"{kind}_{axis}" for kind in ("total_acc", "body_gyro") for axis in "xyz")
_ARCHIVE = Path("ucihar") / "UCI HAR Dataset.zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class UciHar:
    """All people's windows.

    Attributes:
        windows: ``x (n, 128, 6)``: total acceleration (g), then angular velocity (rad/s).
        subject: ``(n,) int64``, 1…30; each person is one block of rows.
        is_test: ``(n,) bool``: published in the test part, which shares no person with the other.
    """

    windows: Windows
    subject: NDArray[np.int64]
    is_test: NDArray[np.bool_]

    def of(self, subject: int) -> Windows:
        """One person's windows.

        Raises:
            InputError: no such person.
        """
        mine = self.subject == subject
        if not mine.any():
            raise InputError(f"UCI-HAR subject {subject}: expected one of 1…30")
        w = self.windows
        return Windows(x=w.x[mine], y=w.y[mine], follows=w.follows[mine])


def load_ucihar(data_root: Path) -> UciHar:
    """Read all 10 299 windows; the published train and test parts are merged.

    Raises:
        MissingDataError: the zip is not under ``data_root``; the message says what to put where.
        InputError: the zip lacks a file or a file has another form than published.
    """
    path = data_root / _ARCHIVE
    if not path.is_file():
        raise MissingDataError(
            f"UCI-HAR: put the published 'UCI HAR Dataset.zip' at '{path}' "
            "(UCI Machine Learning Repository, 'Human Activity Recognition Using Smartphones')"
        )
    with zipfile.ZipFile(path) as archive:
        parts = [_read_part(archive, part) for part in ("train", "test")]
    x = np.concatenate([part[0] for part in parts])
    subject = np.concatenate([part[2] for part in parts])
    y = np.concatenate([part[1] for part in parts])
    windows = Windows(x=x, y=y, follows=_continuations(x, subject))
    is_test = np.repeat([False, True], [len(part[1]) for part in parts])
    return UciHar(windows=windows, subject=subject, is_test=is_test)


def ucihar_pool(
    root: Path,
    *,
    channels: Literal["all", "accelerometer"] = "all",
    normalise: bool | Literal["person"] = True,
) -> Pool:
    """Windows ``(10299, 128, 6)``: total acceleration, angular velocity; client ``1`` to ``30``.

    A recording is a run of windows that overlap by half; all of it shows one activity.

    Args:
        root: folder with ``ucihar/UCI HAR Dataset.zip`` in it.
        channels: ``accelerometer`` leaves the angular velocity out: ``(10299, 128, 3)``.
        normalise: one scalar mean and deviation per sensor, over all people; ``person``: one for
            each person, time step and axis, as ``hhar_windows`` and ``wisdm_windows`` have it. Both
            are taken over all windows, those that will test among them.

    Raises:
        MissingDataError: the zip is not there; the message says what to put where.
        InputError: the zip lacks a file or a file has another form than published.
    """
    people = load_ucihar(root)
    windows = people.windows
    owner = people.subject.astype(np.str_)
    sensors = TRIAXIAL_PAIR if channels == "all" else TRIAXIAL_PAIR[:1]
    x = windows.x[:, :, : sensors[-1].stop]
    if normalise == "person":
        x = standardise_people(x, owner)
    elif normalise:
        x = scale_sensors(x, sensors=sensors)
    return Pool(
        x=x,
        y=windows.y,
        classes=CLASSES,
        client=owner,
        recording=np.cumsum(~windows.follows) - 1,
        follows=windows.follows,
        is_test=people.is_test,
    )


def ucihar_turning_pool(root: Path) -> Pool:
    """How fast a phone turns, in degrees per second, from its accelerometer alone.

    Windows ``(n, 128, 3)`` of total acceleration, as ``ucihar_pool`` normalises them; target
    ``turning``: the mean length of the angular velocity in the window, as published and not
    normalised. Every second window of a recording, so that none shares samples with another;
    client ``1`` to ``30``.

    Raises:
        MissingDataError: the zip is not there; the message says what to put where.
        InputError: the zip lacks a file or a file has another form than published.
    """
    people = load_ucihar(root)
    windows = people.windows
    first = np.maximum.accumulate(np.where(windows.follows, 0, np.arange(len(windows.y))))
    alone = (np.arange(len(windows.y)) - first) % 2 == 0
    turning = np.rad2deg(np.linalg.norm(windows.x[alone, :, 3:], axis=2).mean(axis=1))
    return Pool(
        x=scale_sensors(windows.x[:, :, :3], sensors=TRIAXIAL_PAIR[:1])[alone],
        y=turning[:, np.newaxis].astype(np.float32),
        targets=("turning",),
        client=people.subject[alone].astype(np.str_),
        is_test=people.is_test[alone],
    )


def normalisation(windows: Windows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, equal over the three axes of a sensor.

    FedAli's published code normalises by one scalar for each sensor, over all people.
    """
    mean: list[float] = []
    std: list[float] = []
    for sensor in (slice(0, 3), slice(3, 6)):
        values = windows.x[:, :, sensor]
        mean += [float(values.mean(dtype=np.float64))] * 3
        std += [float(values.std(dtype=np.float64))] * 3
    return tuple(mean), tuple(std)


def recordings(windows: Windows) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Continuous signals behind one person's half-overlapping windows.

    Returns:
        For each run of windows that continue one another: ``(samples, 6) float32`` at 50 Hz and
        the activity of every sample, ``(samples,) int64``.
    """
    starts = np.flatnonzero(~windows.follows)
    runs = []
    for start, stop in zip(starts, [*starts[1:], len(windows.y)], strict=True):
        first = windows.x[start]
        rest = windows.x[start + 1 : stop, HOP:].reshape(-1, first.shape[1])
        labels = np.repeat(windows.y[start:stop], HOP)
        runs.append(
            (np.concatenate([first, rest]), np.concatenate([np.full(HOP, labels[0]), labels]))
        )
    return runs


def _read_part(
    archive: zipfile.ZipFile, part: str
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    folder = f"UCI HAR Dataset/{part}"
    labels = _numbers(archive, f"{folder}/y_{part}.txt").astype(np.int64) - 1
    subjects = _numbers(archive, f"{folder}/subject_{part}.txt").astype(np.int64)
    channels = []
    for name in _FILES:
        member = f"{folder}/Inertial Signals/{name}_{part}.txt"
        values = _numbers(archive, member)
        if values.size != len(labels) * WINDOW or len(subjects) != len(labels):
            raise InputError(
                f"UCI-HAR '{member}': expected {len(labels)} rows of {WINDOW}, "
                f"got {values.size} values"
            )
        channels.append(values.reshape(-1, WINDOW))
    return np.stack(channels, axis=2).astype(np.float32), labels, subjects


def _numbers(archive: zipfile.ZipFile, member: str) -> NDArray[np.float64]:
    try:
        text = archive.read(member)
    except KeyError as error:
        raise InputError(f"UCI-HAR: the zip lacks '{member}'") from error
    return np.loadtxt(io.BytesIO(text), dtype=np.float64).reshape(-1)


def _continuations(x: NDArray[np.float32], subject: NDArray[np.int64]) -> NDArray[np.bool_]:
    overlap = (x[1:, :HOP] == x[:-1, HOP:]).all(axis=(1, 2)) & (subject[1:] == subject[:-1])
    return np.concatenate([[False], overlap])
