"""DREAMT: 100 people's nights, a wristband's signals at 64 Hz beside the laboratory's sleep stages.

W. K. Wang et al., "Addressing Wearable Sleep Tracking Inequity: A New Dataset and Novel Methods for
a Population with Sleep Disorders", CHIL 2024 (PhysioNet, 'DREAMT'). FedSub (Campana, Delmastro)
uses about one row for each 15 s; its reduction is unpublished, the mean is our choice.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets._signals import standardise
from protofleet.datasets._tables import TableRows, read_table
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

CLASSES = ("Wake", "Sleep")
FEATURES = ("BVP", "ACC_X", "ACC_Y", "ACC_Z", "TEMP", "EDA", "HR", "IBI")
_STAGES = {"W": 0, "N1": 1, "N2": 1, "N3": 1, "R": 1}
_FILE = re.compile(r"(S\d+)_whole_df\.csv")
_COLUMNS = {"TIMESTAMP": "f8", **dict.fromkeys(FEATURES, "f8"), "Sleep_Stage": "S8"}


def dreamt_pool(root: Path, *, block_s: float = 15.0, normalise: bool = True) -> Pool:
    """Rows ``(n, 8)`` in the order of ``FEATURES``; client: the person, such as ``S002``.

    A row is the mean over a block of 15 s of those samples whose stage is W, N1, N2, N3 or R;
    samples of other stages (P, Missing) are left out. Its label is that of most of them, Sleep at
    a tie. Missing values (such as IBI before the first pair of beats) do not enter a mean; a block
    without any gets the feature's mean over all people.

    Args:
        root: folder with ``dreamt/`` in it, which holds the published ``data_64Hz`` folder (or
            its files).
        block_s: length of a block in seconds.
        normalise: bring each feature to mean 0 and deviation 1 over all people.

    Raises:
        MissingDataError: no night is there; the message says what to put where.
        InputError: a file lacks a column, a line is not as published, or a night has no stages.
    """
    if not block_s > 0:
        raise InputError(f"DREAMT: expected block_s above 0, got {block_s}")
    nights = _nights(root / "dreamt")
    parts = [_blocks(path, block_s) for path in nights.values()]
    lengths = [len(label) for _, label in parts]
    return Pool(
        x=standardise(np.concatenate([means for means, _ in parts]), scale=normalise),
        y=np.concatenate([label for _, label in parts]),
        classes=CLASSES,
        client=np.repeat(list(nights), lengths),
        recording=np.repeat(np.arange(len(parts), dtype=np.int64), lengths),
    )


def _nights(folder: Path) -> dict[str, Path]:
    found = sorted(path for path in folder.rglob("S*_whole_df.csv") if _FILE.fullmatch(path.name))
    if not found:
        raise MissingDataError(
            f"DREAMT: put the published folder 'data_64Hz' with its 'S002_whole_df.csv' and so on "
            f"at '{folder / 'data_64Hz'}' (PhysioNet, 'DREAMT', restricted access)"
        )
    nights: dict[str, Path] = {}
    for path in found:
        person = path.name.partition("_")[0]
        if person in nights:
            raise InputError(f"DREAMT: two files of {person}: '{nights[person]}' and '{path}'")
        nights[person] = path
    return nights


def _blocks(path: Path, block_s: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One night's means ``(n, 8)``, NaN where nothing was measured, and labels ``(n,)``."""
    sums: dict[int, NDArray[np.float64]] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        for chunk in read_table(lines, name=str(path), columns=_COLUMNS, empty_is_nan=True):
            for block, total in _sums(chunk, block_s):
                sums[block] = sums[block] + total if block in sums else total
    if not sums:
        raise InputError(f"DREAMT '{path}': expected rows with a sleep stage, got none")
    totals = np.stack([sums[block] for block in sorted(sums)])
    values, counts, votes = totals[:, :8], totals[:, 8:16], totals[:, 16:]
    means = np.where(counts > 0, values / np.maximum(counts, 1), np.nan)
    return means, (votes[:, 1] >= votes[:, 0]).astype(np.int64)


def _sums(chunk: TableRows, block_s: float) -> list[tuple[int, NDArray[np.float64]]]:
    """Per block: sums and counts of the 8 features, then samples awake and asleep."""
    rows = chunk.rows
    chunk.require(np.isfinite(rows["TIMESTAMP"]), "a finite TIMESTAMP")
    staged = np.isin(rows["Sleep_Stage"], [stage.encode() for stage in _STAGES])
    rows = rows[staged]
    if not len(rows):
        return []
    asleep = rows["Sleep_Stage"] != b"W"
    values = np.stack([rows[name] for name in FEATURES], axis=1)
    present = np.isfinite(values)
    table = np.column_stack([np.where(present, values, 0.0), present, ~asleep, asleep])
    blocks, place = np.unique(np.floor(rows["TIMESTAMP"] / block_s), return_inverse=True)
    totals = np.zeros((len(blocks), table.shape[1]))
    np.add.at(totals, place, table)
    return [(int(block), total) for block, total in zip(blocks, totals, strict=True)]
