"""WISDM v1.1 raw text: a phone in the trouser pocket, accelerometer at 20 Hz, 36 users.

J. R. Kwapisz, G. M. Weiss, S. A. Moore, "Activity Recognition using Cell Phone Accelerometers",
SIGKDD Explorations 12(2), 2010. A record is ``[user],[activity],[timestamp],[x],[y],[z];``; the
published file has records that break this in many ways. Every one of them is counted by reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets._signals import (
    cut,
    same_runs,
    scale_sensors,
    standardise,
    window_starts,
)
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

RATE_HZ = 20.0
CLASSES = ("Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking")
WINDOWS = ("mean_1s", "raw")
_FILE = Path("wisdm") / "WISDM_ar_v1.1_raw.txt"
_LONGEST_GAP_S = 1.0  # 20 sampling intervals: phones pause the sensor for less than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """All readable records, in file order.

    Attributes:
        user: ``(n,) int64``, 1…36.
        label: ``(n,) int64`` index into ``CLASSES``.
        time_s: ``(n,) float64``, the phone's uptime; it jumps and goes back between recordings.
        xyz: ``(n, 3) float32`` in units of 0.1 g.
        recording: ``(n,) int64``: index of the uninterrupted recording the record belongs to
            (same user and activity, time moving forward by at most a second).
        refused: number of unreadable records by reason; blank lines are no records.
    """

    user: NDArray[np.int64]
    label: NDArray[np.int64]
    time_s: NDArray[np.float64]
    xyz: NDArray[np.float32]
    recording: NDArray[np.int64]
    refused: Mapping[str, int]

    @property
    def report(self) -> str:
        """One line for people: records read, records refused and why."""
        refused = ", ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items()))
        return f"WISDM: {len(self.user)} records read; refused: {refused or 'none'}"


def load_wisdm(data_root: Path) -> Recordings:
    """Read the raw file.

    Raises:
        MissingDataError: it is not under ``data_root``; the message says what to put where.
    """
    path = data_root / _FILE
    if not path.is_file():
        raise MissingDataError(
            f"WISDM: put the published 'WISDM_ar_v1.1_raw.txt' at '{path}' "
            "(WISDM Lab, Activity Prediction data set, version 1.1)"
        )
    with path.open(encoding="utf-8", errors="replace") as lines:
        return parse_wisdm(lines)


def wisdm_pool(
    root: Path,
    *,
    window: str = "mean_1s",
    samples: int = 128,
    step: int = 64,
    normalise: bool = True,
) -> Pool:
    """Windows inside uninterrupted recordings; client: the user, ``1`` to ``36``.

    Args:
        root: folder with ``wisdm/WISDM_ar_v1.1_raw.txt`` in it.
        window: ``mean_1s``: rows ``(n, 3)``, the means of x, y and z over 1 s (20 samples)
            without overlap, as FedSub takes them; ``raw``: windows ``(n, samples, 3)``.
        samples: length of raw windows.
        step: distance of raw windows in samples.
        normalise: means: each axis to mean 0 and deviation 1 over all users; raw windows: one
            scalar mean and deviation over all axes and users.

    Raises:
        MissingDataError: the raw file is not there; the message says what to put where.
        InputError: unknown window, lengths below 1, or no recording as long as a window.
    """
    if window not in WINDOWS or samples < 1 or step < 1:
        raise InputError(
            f"WISDM: expected window {' or '.join(WINDOWS)} and samples and step of at least 1, "
            f"got '{window}', {samples} and {step}"
        )
    if window == "mean_1s":
        samples = step = round(RATE_HZ)
    read = load_wisdm(root)
    starts = np.concatenate(
        [np.empty(0, np.int64)]
        + [a + window_starts(b - a, samples, step) for a, b in same_runs(read.recording)]
    )
    if not len(starts):
        raise InputError(f"WISDM: expected a recording of {samples} samples, got none")
    x, recording = cut(read.xyz, starts, samples), read.recording[starts]
    follows = np.concatenate([[False], recording[1:] == recording[:-1]]) & (step < samples)
    if window == "mean_1s":
        x = standardise(x.mean(axis=1, dtype=np.float64), scale=normalise)
    elif normalise:
        x = scale_sensors(x, sensors=(slice(0, 3),))
    return Pool(
        x=x,
        y=read.label[starts],
        classes=CLASSES,
        client=read.user[starts].astype(np.str_),
        recording=recording,
        follows=follows,
    )


def parse_wisdm(lines: Iterable[str]) -> Recordings:
    """Parse raw text; several records on one line and missing final semicolons are read."""
    refused: Counter[str] = Counter()
    rows: list[tuple[int, int, float, float, float, float]] = []
    for line in lines:
        for record in line.strip().split(";"):
            fields = record.strip(" \t\r\n,")
            if not fields:
                continue
            row = _parse_record(fields)
            if isinstance(row, str):
                refused[row] += 1
            else:
                rows.append(row)
    table = np.array(rows, np.float64).reshape(-1, 6)
    user, label = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    return Recordings(
        user=user,
        label=label,
        time_s=table[:, 2],
        xyz=table[:, 3:].astype(np.float32),
        recording=_recordings(user, label, table[:, 2]),
        refused=dict(refused),
    )


def _parse_record(record: str) -> tuple[int, int, float, float, float, float] | str:
    """One record's values, or the reason why it cannot be read."""
    fields = [field.strip() for field in record.split(",")]
    if len(fields) != 6:
        return f"with {len(fields)} fields instead of 6"
    if "" in fields:
        return "with an empty field"
    if fields[1] not in CLASSES:
        return "with an unknown activity"
    try:
        user, stamp_ns = int(fields[0]), int(fields[2])
        x, y, z = (_finite(field) for field in fields[3:])
    except ValueError:
        return "with a field that is no finite number"
    if stamp_ns == 0:
        return "with timestamp 0"
    return user, CLASSES.index(fields[1]), stamp_ns * 1e-9, x, y, z


def _finite(field: str) -> float:
    value = float(field)
    if not math.isfinite(value):
        raise ValueError(field)
    return value


def _recordings(
    user: NDArray[np.int64], label: NDArray[np.int64], time_s: NDArray[np.float64]
) -> NDArray[np.int64]:
    step = np.diff(time_s)
    breaks = (np.diff(user) != 0) | (np.diff(label) != 0) | (step <= 0) | (step > _LONGEST_GAP_S)
    return np.concatenate([[0], np.cumsum(breaks)])[: len(user)].astype(np.int64)
