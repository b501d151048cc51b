"""HHAR: nine people, eight phones of four models at the waist, 50 to 200 Hz, six activities.

A. Stisen et al., "Smart Devices are Different: Assessing and Mitigating Mobile Sensing
Heterogeneities for Activity Recognition", SenSys 2015. Windows, decimation and normalisation
follow FedAli (Ek et al.) as its authors published them; a person with a phone model is a client.

Deviations from that code: a run of rows never crosses from one physical phone to the other of the
same model, and ``gyroscope="rows"`` counts rows inside each phone's own part of the file.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from protofleet.datasets._signals import cut, same_runs, scale_sensors, window_starts
from protofleet.datasets._tables import TableRows, read_table
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

CLASSES = ("Sitting", "Standing", "Walking", "Upstairs", "Downstairs", "Biking")
COMBINED_CLASSES = (*CLASSES, "Running", "Lying", "Jumping")
"""Classes of HHAR and RealWorld together; HHAR's come first and keep their numbers."""

WINDOW = 128
GYROSCOPES = ("rows", "file_rows", "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A phone model: samples in a native window, shortest usable run."""

    window: int
    shortest_run: int


# Rates 200, 150, 100 and 50 Hz; the shortest runs are those of FedAli's published code, whose
# table lookup is off by a factor of two.
_MODELS = {
    "nexus4": _Model(window=512, shortest_run=512),
    "s3": _Model(window=384, shortest_run=512),
    "s3mini": _Model(window=256, shortest_run=384),
    "samsungold": _Model(window=128, shortest_run=384),
}
_DEVICES = tuple(f"{model}_{copy}" for model in _MODELS for copy in (1, 2))
_USERS = tuple("abcdefghi")
_LABELS = ("sit", "stand", "walk", "stairsup", "stairsdown", "bike", "null")
_NULL = _LABELS.index("null")
_COLUMNS = {"x": "f4", "y": "f4", "z": "f4", "User": "S8", "Device": "S16", "gt": "S16"}
_FOLDER = "Activity recognition exp"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sensor:
    """All rows of one file: ``xyz (n, 3)``, codes ``(n,)``, arrival in ms (empty if not read)."""

    xyz: NDArray[np.float32]
    phone: NDArray[np.int16]
    label: NDArray[np.int16]
    arrival_ms: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Windows of one run: ``x (n, 128, 6)``."""

    x: NDArray[np.float32]
    label: int
    user: str
    model: str


def hhar_pool(
    root: Path,
    *,
    gyroscope: str = "rows",
    normalise: bool = True,
    combined_classes: bool = False,
) -> Pool:
    """Windows ``(n, 128, 6)``: accelerometer, then gyroscope; client ``<user>_<model>``.

    Native windows of 512, 384, 256 or 128 samples with half overlap are cut inside runs of one
    label and decimated to 128 by a zero-phase Chebyshev filter of order 8 (also where the factor
    is 1). Clients that lack one of the six activities are left out. Inside a client the windows
    are ordered by activity, then by time.

    Args:
        root: folder with ``hhar/`` in it.
        gyroscope: which gyroscope row belongs to an accelerometer row: ``rows``: the one with the
            same number among the phone's and person's rows; ``file_rows``: the same number in the
            whole file, as FedAli's published code does, which also pairs different people;
            ``time``: the one of that phone and person that arrived nearest in time.
        normalise: one scalar mean and deviation per sensor and phone model, over all clients.
        combined_classes: name the nine classes that HHAR and RealWorld have together.

    Raises:
        MissingDataError: a file is not there; the message says what to put where.
        InputError: a line is not as published, or no client has all activities.
    """
    if gyroscope not in GYROSCOPES:
        raise InputError(
            f"HHAR: expected gyroscope to be one of {', '.join(GYROSCOPES)}, got '{gyroscope}'"
        )
    timed = gyroscope == "time"
    acc = _read(root, "Phones_accelerometer.csv", timed=timed)
    gyro = _read(root, "Phones_gyroscope.csv", timed=timed)
    runs = [run for phone in np.unique(acc.phone) for run in _runs(acc, gyro, phone, gyroscope)]
    classes = COMBINED_CLASSES if combined_classes else CLASSES
    return _pool(_complete(runs), normalise=normalise, classes=classes)


def _runs(acc: _Sensor, gyro: _Sensor, phone: int, gyroscope: str) -> Iterator[_Run]:
    """Decimated windows of one person with one physical phone, in time order."""
    user, device = _USERS[phone // len(_DEVICES)], _DEVICES[phone % len(_DEVICES)]
    model = device.rpartition("_")[0]
    rows = np.flatnonzero(acc.phone == phone)
    partner = _partners(acc, gyro, rows, gyroscope)
    rows = rows[: len(partner)]
    label = acc.label[rows].astype(np.int64)
    for start, stop in same_runs(label):
        form = _MODELS[model]
        if label[start] == _NULL or stop - start < form.shortest_run:
            continue
        both = np.hstack([acc.xyz[rows[start:stop]], gyro.xyz[partner[start:stop]]])
        starts = window_starts(stop - start, form.window, form.window // 2, use_exact_end=False)
        yield _Run(
            x=_decimate(cut(both, starts, form.window), form.window // WINDOW),
            label=int(label[start]),
            user=user,
            model=model,
        )


def _partners(
    acc: _Sensor, gyro: _Sensor, rows: NDArray[np.int64], gyroscope: str
) -> NDArray[np.int64]:
    """Gyroscope rows of the first accelerometer rows; fewer where the gyroscope ends earlier."""
    if gyroscope == "file_rows":
        return rows[rows < len(gyro.phone)]
    own = np.flatnonzero(gyro.phone == acc.phone[rows[0]])
    if gyroscope == "rows" or not len(own):
        return own[: len(rows)]
    own = own[np.argsort(gyro.arrival_ms[own], kind="stable")]
    arrivals, wanted = gyro.arrival_ms[own], acc.arrival_ms[rows]
    after = np.clip(np.searchsorted(arrivals, wanted), 1, max(len(own) - 1, 1))
    after = np.minimum(after, len(own) - 1)
    before = np.maximum(after - 1, 0)
    nearer = wanted - arrivals[before] <= arrivals[after] - wanted
    return own[np.where(nearer, before, after)]


def _decimate(windows: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    if not len(windows):
        return np.empty((0, WINDOW, windows.shape[2]), np.float32)
    low: NDArray[np.float64] = signal.decimate(
        windows.astype(np.float64), factor, n=8, axis=1, zero_phase=True
    )
    return low.astype(np.float32)


def _complete(runs: list[_Run]) -> list[_Run]:
    """Runs of clients that have every activity, ordered by model, user and activity."""
    held: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        if len(run.x):
            held.setdefault((run.user, run.model), set()).add(run.label)
    complete = {client for client, labels in held.items() if len(labels) == len(CLASSES)}
    if not complete:
        raise InputError("HHAR: expected a client with windows of all six activities, got none")
    order = list(_MODELS)
    kept = [run for run in runs if len(run.x) and (run.user, run.model) in complete]
    return sorted(kept, key=lambda run: (order.index(run.model), run.user, run.label))


def _pool(runs: list[_Run], *, normalise: bool, classes: tuple[str, ...]) -> Pool:
    lengths = [len(run.x) for run in runs]
    x = np.concatenate([run.x for run in runs])
    if normalise:
        x = scale_sensors(x, np.repeat([run.model for run in runs], lengths))
    recording = np.repeat(np.arange(len(runs), dtype=np.int64), lengths)
    return Pool(
        x=x,
        y=np.repeat(np.array([run.label for run in runs], np.int64), lengths),
        classes=classes,
        client=np.repeat([f"{run.user}_{run.model}" for run in runs], lengths),
        recording=recording,
        follows=np.concatenate([[False], recording[1:] == recording[:-1]]),
    )


def _read(root: Path, name: str, *, timed: bool) -> _Sensor:
    columns = {"Arrival_Time": "i8", **_COLUMNS} if timed else _COLUMNS
    xyz, phone, label, arrival = [], [], [], []
    with _open(root, name) as (lines, where):
        for chunk in read_table(lines, name=where, columns=columns):
            rows = chunk.rows
            values = np.stack([rows[axis] for axis in "xyz"], axis=1)
            chunk.require(np.isfinite(values).all(axis=1), "finite x, y and z")
            xyz.append(values)
            user = _codes(chunk, "User", _USERS)
            phone.append(user * len(_DEVICES) + _codes(chunk, "Device", _DEVICES))
            label.append(_codes(chunk, "gt", _LABELS))
            arrival.append(rows["Arrival_Time"] if timed else np.empty(0, np.int64))
    if not xyz:
        raise InputError(f"'{name}': expected rows below the header, got none")
    return _Sensor(
        xyz=np.concatenate(xyz),
        phone=np.concatenate(phone),
        label=np.concatenate(label),
        arrival_ms=np.concatenate(arrival),
    )


def _codes(chunk: TableRows, column: str, known: tuple[str, ...]) -> NDArray[np.int16]:
    codes = np.full(len(chunk.rows), -1, np.int16)
    for code, name in enumerate(known):
        codes[chunk.rows[column] == name.encode()] = code
    chunk.require(codes >= 0, f"{column} to be one of {', '.join(known)}")
    return codes


@contextmanager
def _open(root: Path, name: str) -> Iterator[tuple[io.TextIOBase, str]]:
    """A published file's lines: loose, in its published folder, or in the published zip."""
    folder = root / "hhar"
    archive = folder / f"{_FOLDER}.zip"
    for path in (folder / name, folder / _FOLDER / name):
        if path.is_file():
            with path.open(encoding="utf-8", errors="replace") as lines:
                yield lines, str(path)
            return
    if not archive.is_file():
        raise MissingDataError(
            f"HHAR: put '{name}' at '{folder / name}', or the published '{archive.name}' at "
            f"'{archive}' (UCI Machine Learning Repository, 'Heterogeneity Activity Recognition')"
        )
    with zipfile.ZipFile(archive) as opened:
        member = f"{_FOLDER}/{name}"
        if member not in opened.namelist():
            raise InputError(f"HHAR '{archive}': lacks '{member}'")
        with io.TextIOWrapper(opened.open(member), "utf-8", errors="replace") as lines:
            yield lines, f"{archive}:{member}"
