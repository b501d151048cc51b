"""RealWorld: 15 people, a device at each of 7 positions, 50 Hz, eight activities.

T. Sztyler, H. Stuckenschmidt, "On-body Localization of Wearable Devices", PerCom 2016. Windows and
normalisation follow FedAli (Ek et al.) as its authors published them; a person with a position is
a client.

Deviation from that code: where the accelerometer has over 100 samples more than the gyroscope,
that code puts resampled accelerometer data into the gyroscope's place; by default, the longer one
is resampled to the length of the shorter here, whichever it is.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import gcd
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from protofleet.datasets._signals import cut, scale_sensors, window_starts
from protofleet.datasets._tables import read_table
from protofleet.datasets.hhar import COMBINED_CLASSES
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

RATE_HZ = 50.0
CLASSES = (
    "Downstairs", "Upstairs", "Running", "Sitting", "Standing", "Walking", "Lying", "Jumping",
)  # fmt: skip
POSITIONS = ("chest", "forearm", "head", "shin", "thigh", "upperarm", "waist")
WINDOW = 128
HOP = 64
_ACTIVITIES = (
    "climbingdown", "climbingup", "running", "sitting", "standing", "walking", "lying", "jumping",
)  # fmt: skip
_TO_COMBINED = np.array([COMBINED_CLASSES.index(name) for name in CLASSES], np.int64)
_TABLE = re.compile(
    rf"(acc|gyr|Gyroscope)_({'|'.join(_ACTIVITIES)})(?:_(\d+))?_({'|'.join(POSITIONS)})\.csv"
)
_ARCHIVE = re.compile(r"(acc|gyr|Gyroscope)_.*\.zip|.*proband\d+.*\.zip|realworld2016.*\.zip")
_NUMBERED = re.compile(r"_(\d+)_csv")
_PERSON = re.compile(r"proband(\d+)")
_DEEPEST = 4  # data set, person, activity, and a zip inside that zip
_RESAMPLED_FROM = 100  # samples
_DROPPED_FROM = 10  # windows


_Key = tuple[int, str, int]  # person, position, activity


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A file below the folder, perhaps inside archives; ``where`` is for messages."""

    where: str
    open: Callable[[], BinaryIO]


def realworld_pool(
    root: Path,
    *,
    normalise: bool = True,
    combined_classes: bool = False,
    published_slip: bool = False,
) -> Pool:
    """Windows ``(n, 128, 6)``: accelerometer, then gyroscope; client ``<person>_<position>``.

    Windows of 128 samples with half overlap. If the two sensors' lengths differ by more than 100
    samples, the longer is resampled to the shorter; if their numbers of windows still differ by
    more than 10, the recording is left out. Inside a client the windows are ordered by activity,
    then by time.

    Args:
        root: folder with ``realworld/`` in it: the published zip, or what it unpacks to, with or
            without the zips inside unpacked; where a file is there twice, the unpacked one counts.
        normalise: one scalar mean and deviation per sensor, over all clients, apart for the
            watch (forearm) and the phones (other positions).
        combined_classes: use the nine classes that HHAR and RealWorld have together.
        published_slip: copy what FedAli's code does where the accelerometer is the longer one:
            it stays as it is, and its resampled values stand in the gyroscope's channels.

    Raises:
        MissingDataError: no recording is there; the message says what to put where.
        InputError: an archive or a line is not as published.
    """
    windows = [
        (key, x)
        for key, sensors in sorted(_tables(root / "realworld").items())
        for acc, gyro in _pairs(sensors["acc"], sensors["gyr"])
        if len(x := _windows(_values(acc), _values(gyro), published_slip=published_slip))
    ]
    if not windows:
        raise MissingDataError(
            f"RealWorld: put the published 'realworld2016_dataset.zip', or the folders 'proband1' "
            f"to 'proband15' it holds, in '{root / 'realworld'}' (University of Mannheim, "
            "'RealWorld (HAR)'); found no recording with accelerometer and gyroscope there"
        )
    lengths = [len(x) for _, x in windows]
    x = np.concatenate([x for _, x in windows])
    position = np.repeat([key[1] for key, _ in windows], lengths)
    if normalise:
        x = scale_sensors(x, np.where(position == "forearm", "watch", "phone"))
    y = np.repeat(np.array([key[2] for key, _ in windows], np.int64), lengths)
    recording = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    return Pool(
        x=x,
        y=_TO_COMBINED[y] if combined_classes else y,
        classes=COMBINED_CLASSES if combined_classes else CLASSES,
        client=np.repeat([f"{person}_{where}" for (person, where, _), _ in windows], lengths),
        recording=recording,
        follows=np.concatenate([[False], recording[1:] == recording[:-1]]),
    )


def _tables(folder: Path) -> dict[_Key, dict[str, dict[int, _Found]]]:
    """Files by sensor (``acc`` and ``gyr``) and number of the recording."""
    tables: dict[_Key, dict[str, dict[int, _Found]]] = {}
    loose = sorted(path for path in folder.rglob("*") if path.is_file())
    # Loose tables first, so that they win over the same table in a zip.
    for path in sorted(loose, key=lambda path: path.suffix == ".zip"):
        whole = _Found(where=str(path), open=partial(_loose, path))
        for found in _unpacked(whole, path.name, 0):
            match = _TABLE.fullmatch(re.split(r"[/\\:]", found.where)[-1])
            person = _PERSON.findall(found.where)
            if match is None or not person:
                continue
            sensor, activity, number, position = match.groups()
            key = (int(person[-1]), position, _ACTIVITIES.index(activity))
            sensors = tables.setdefault(key, {"acc": {}, "gyr": {}})
            outer = _NUMBERED.findall(found.where)
            counted = int(number or (outer[-1] if outer else 1))
            sensors["acc" if sensor == "acc" else "gyr"].setdefault(counted, found)
    return tables


def _pairs(acc: dict[int, _Found], gyro: dict[int, _Found]) -> list[tuple[_Found, _Found]]:
    """Recordings of both sensors: in order if equally many, else those of the same number."""
    if len(acc) == len(gyro):
        return [(acc[a], gyro[g]) for a, g in zip(sorted(acc), sorted(gyro), strict=True)]
    return [(acc[number], gyro[number]) for number in sorted(acc.keys() & gyro.keys())]


def _loose(path: Path) -> BinaryIO:
    return path.open("rb")


def _unpacked(found: _Found, name: str, depth: int) -> Iterator[_Found]:
    if not _ARCHIVE.fullmatch(name) or depth >= _DEEPEST:
        yield found
        return
    try:
        with found.open() as file, zipfile.ZipFile(file) as archive:
            members = [info.filename for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"RealWorld '{found.where}': not a readable zip ({error})") from error
    for member in members:
        inner = _Found(
            where=f"{found.where}:{member}",
            open=partial(_member, found, member),
        )
        yield from _unpacked(inner, member.rpartition("/")[2], depth + 1)


def _member(found: _Found, member: str) -> io.BytesIO:
    with found.open() as file, zipfile.ZipFile(file) as archive:
        return io.BytesIO(archive.read(member))


def _windows(
    acc: NDArray[np.float32], gyro: NDArray[np.float32], *, published_slip: bool
) -> NDArray[np.float32]:
    """Windows ``(n, 128, 6)`` of one recording; none if the sensors disagree too much."""
    surplus = len(acc) - len(gyro)
    if surplus < -_RESAMPLED_FROM:
        gyro = _resampled(gyro, len(acc))
    elif surplus > _RESAMPLED_FROM and published_slip:
        gyro = _resampled(acc, len(gyro))
    elif surplus > _RESAMPLED_FROM:
        acc = _resampled(acc, len(gyro))
    acc_starts, gyro_starts = (
        window_starts(len(part), WINDOW, HOP, use_exact_end=False) for part in (acc, gyro)
    )
    count = min(len(acc_starts), len(gyro_starts))
    # Only published_slip leaves lengths that differ by so much.
    if abs(len(acc_starts) - len(gyro_starts)) > _DROPPED_FROM:
        count = 0
    starts = acc_starts[:count]
    return np.concatenate([cut(acc, starts, WINDOW), cut(gyro, starts, WINDOW)], axis=2)


def _resampled(values: NDArray[np.float32], samples: int) -> NDArray[np.float32]:
    if not samples:
        return values[:0]
    shared = gcd(len(values), samples)
    up, down = samples // shared, len(values) // shared
    resampled: NDArray[np.float64] = signal.resample_poly(
        values.astype(np.float64), up, down, padtype="line"
    )
    return resampled[:samples].astype(np.float32)


def _values(found: _Found) -> NDArray[np.float32]:
    columns = {"attr_x": "f4", "attr_y": "f4", "attr_z": "f4"}
    parts = [np.empty((0, 3), np.float32)]
    with found.open() as file, io.TextIOWrapper(file, "utf-8", errors="replace") as lines:
        for chunk in read_table(lines, name=found.where, columns=columns):
            values = np.stack([chunk.rows[column] for column in columns], axis=1)
            chunk.require(np.isfinite(values).all(axis=1), "finite attr_x, attr_y and attr_z")
            parts.append(values)
    return np.concatenate(parts)
