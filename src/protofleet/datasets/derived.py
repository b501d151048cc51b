"""Small published excerpts of HHAR, WISDM and WESAD after somebody's preprocessing.

They are good for tests, demonstrations and comparing methods with each other, not for claims about
the original data sets: ``docs/data.md`` says what was done to each.
"""

from __future__ import annotations

import csv
import io
import math
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets._signals import standardise
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

_HHAR = Path("hhar") / "hhar_phone_windows128_standardised.npz"
_WISDM = Path("wisdm") / "wisdm_v1.1_windows128_standardised.npz"
_WESAD = Path("wesad") / "wesad_features_30s.tar.gz"
_SHAPE = (128, 3)

WESAD_CLASSES = ("amusement", "baseline", "stress")
# Two names are swapped in the published tables; the mean, min and max columns are left out,
# because each was taken over all signals together. Respiration is from the chest, the rest from
# the wrist. ACC_z_std is a scaled copy of ACC_x_std.
_WESAD_COLUMNS = {
    "net_acc_std": "EDA_std",
    "EDA_phasic_std": "EDA_phasic_std",
    "EDA_smna_std": "EDA_smna_std",
    "EDA_tonic_std": "EDA_tonic_std",
    "BVP_std": "BVP_std",
    "TEMP_std": "TEMP_std",
    "ACC_x_std": "ACC_x_std",
    "ACC_y_std": "ACC_y_std",
    "ACC_z_std": "ACC_z_std",
    "Resp_std": "Resp_std",
    "0_std": "net_acc_std",
    "BVP_peak_freq": "BVP_peak_freq",
    "TEMP_slope": "TEMP_slope",
}
WESAD_FEATURES = tuple(_WESAD_COLUMNS.values())
"""What the columns really are, in order."""

_ONE_SET = ["False", "False", "True"]
_TABLE = re.compile(r"(?:.*/)?S(\d+)_feats_4\.csv")


def hhar_windows_pool(root: Path) -> Pool:
    """HHAR's accelerometer windows ``(4436, 128, 3)``; client: the person, ``0`` to ``8``.

    They are in no order and already standardised per person, time step and axis.

    Raises:
        MissingDataError: the file is not there; the message says what to put where.
        InputError: the file has another form.
    """
    path = root / _HHAR
    arrays = _arrays(path, ("X", "y", "user", "classes"))
    return Pool(
        x=arrays["X"].astype(np.float32),
        y=arrays["y"].astype(np.int64),
        classes=tuple(str(name) for name in arrays["classes"]),
        client=arrays["user"].astype(np.str_),
    )


def wisdm_windows_pool(root: Path) -> Pool:
    """WISDM's accelerometer windows ``(7292, 128, 3)``; client: the person, ``1`` to ``36``.

    They are in no order, do not overlap, and are already standardised per person, time step and
    axis. ``is_test`` is the split they were published with.

    Raises:
        MissingDataError: the file is not there; the message says what to put where.
        InputError: the file has another form.
    """
    path = root / _WISDM
    arrays = _arrays(path, ("X", "y", "user", "is_test", "classes"))
    return Pool(
        x=arrays["X"].astype(np.float32),
        y=arrays["y"].astype(np.int64),
        classes=tuple(str(name) for name in arrays["classes"]),
        client=arrays["user"].astype(np.str_),
        is_test=arrays["is_test"].astype(np.bool_),
    )


def wesad_features_pool(root: Path, *, normalise: bool = True) -> Pool:
    """Rows ``(1178, 13)`` of WESAD in the order of ``WESAD_FEATURES``; client ``S2`` to ``S17``.

    A row describes 30 s. A recording is one person's condition.

    Args:
        root: folder with ``wesad/`` in it.
        normalise: bring each feature to mean 0 and deviation 1 over all people; without it,
            scales differ by seven orders of magnitude.

    Raises:
        MissingDataError: the archive is not there; the message says what to put where.
        InputError: a table lacks a column or has a malformed line.
    """
    path = root / _WESAD
    _require(path)
    people = dict(sorted(_tables(path)))
    if not people:
        raise InputError(f"'{path}': expected tables S<k>_feats_4.csv, got none")
    lengths = [len(label) for _, label in people.values()]
    person = np.repeat(np.array(list(people)), lengths)
    y = np.concatenate([label for _, label in people.values()])
    breaks = (person[1:] != person[:-1]) | (y[1:] != y[:-1])
    return Pool(
        x=standardise(np.concatenate([rows for rows, _ in people.values()]), scale=normalise),
        y=y,
        classes=WESAD_CLASSES,
        client=np.char.add("S", person.astype(np.str_)),
        recording=np.concatenate([[0], np.cumsum(breaks)]).astype(np.int64),
    )


def _require(path: Path) -> None:
    if not path.is_file():
        raise MissingDataError(
            f"derived data: put '{path.name}' at '{path}' (this project's test data)"
        )


def _arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    _require(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in names}
    except (ValueError, KeyError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise InputError(
            f"'{path}': expected an .npz with the arrays {', '.join(names)}, got {error}"
        ) from error
    if arrays["X"].shape[1:] != _SHAPE:
        raise InputError(f"'{path}': expected X (n, 128, 3), got {arrays['X'].shape}")
    return arrays


def _tables(path: Path) -> Iterator[tuple[int, tuple[NDArray[np.float64], NDArray[np.int64]]]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                match = _TABLE.fullmatch(member.name)
                content = archive.extractfile(member) if match else None
                if match and content is not None:
                    with io.TextIOWrapper(content, "utf-8", newline="") as lines:
                        yield int(match[1]), _table(lines, f"{path}:{member.name}")
    except (tarfile.TarError, OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}': not a readable .tar.gz ({error})") from error


def _table(lines: io.TextIOWrapper, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    reader = csv.DictReader(lines)
    for column in (*_WESAD_COLUMNS, "0", "1", "2"):
        if column not in (reader.fieldnames or ()):
            raise InputError(f"'{name}' line 1: expected a column '{column}', got no such")
    rows, labels = [], []
    for record in reader:
        try:
            values = [float(record[column]) for column in _WESAD_COLUMNS]
        except (TypeError, ValueError):
            values = [math.nan]
        flags = [record[column] for column in ("0", "1", "2")]
        if not all(map(math.isfinite, values)) or sorted(flags, key=str) != _ONE_SET:
            raise InputError(
                f"'{name}' line {reader.line_num}: expected finite features and one True among "
                f"the columns 0, 1 and 2, got {values} and {flags}"
            )
        rows.append(values)
        labels.append(flags.index("True"))
    return np.array(rows, np.float64).reshape(-1, len(_WESAD_COLUMNS)), np.array(labels, np.int64)
