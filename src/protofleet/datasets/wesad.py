"""WESAD: 15 people's chest signals at 700 Hz while at rest, stressed, amused and meditating.

P. Schmidt et al., "Introducing WESAD, a Multimodal Dataset for Wearable Stress and Affect
Detection", ICMI 2018. Windows follow FedSub (Campana, Delmastro): 10 000 samples every 5 000, ECG
and skin conductance only. The features stand in for its NeuroKit2 ones: ``_physiology.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets._physiology import FEATURES, clean, features
from protofleet.datasets._signals import same_runs, standardise, window_starts
from protofleet.datasets._unpickle import load_arrays
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

__all__ = ["CLASSES", "FEATURES", "wesad_pool"]

RATE_HZ = 700.0
CLASSES = ("baseline", "stress", "amusement", "meditation")
WINDOW = 10_000
HOP = 5_000
_FILE = re.compile(r"S(\d+)\.pkl")


def wesad_pool(root: Path, *, normalise: bool = True) -> Pool:
    """Rows ``(n, 30)`` in the order of ``FEATURES``; client: the person, ``S2`` to ``S17``.

    A window lies inside one condition (labels 1 to 4; the others are left out), and windows of a
    condition overlap by half. Where a window has fewer than three usable intervals between beats,
    their features are the means over all people. A pickle takes about 1 GB of memory while it is
    read, one after the other.

    Args:
        root: folder with ``wesad/`` in it, which holds the published folders ``S2`` to ``S17``
            or only their ``S<k>.pkl``.
        normalise: bring each feature to mean 0 and deviation 1 over all people.

    Raises:
        MissingDataError: no pickle is there; the message says what to put where.
        InputError: a pickle holds more than arrays, or lacks a signal, or has another form.
    """
    folder = root / "wesad"
    found = {int(m[1]): p for p in sorted(folder.rglob("S*.pkl")) if (m := _FILE.fullmatch(p.name))}
    if not found:
        raise MissingDataError(
            f"WESAD: put the published 'S2.pkl' to 'S17.pkl' at '{folder / 'S2' / 'S2.pkl'}' and "
            "so on (UCI Machine Learning Repository, 'WESAD (Wearable Stress and Affect "
            "Detection)')"
        )
    parts = {f"S{person}": _person(found[person]) for person in sorted(found)}
    lengths = [len(label) for _, label, _ in parts.values()]
    recordings: list[NDArray[np.int64]] = []
    earlier = 0
    for _, _, recording in parts.values():
        recordings.append(recording + earlier)
        earlier += len(np.unique(recording))
    recording = np.concatenate(recordings)
    return Pool(
        x=standardise(np.concatenate([values for values, _, _ in parts.values()]), scale=normalise),
        y=np.concatenate([label for _, label, _ in parts.values()]),
        classes=CLASSES,
        client=np.repeat(list(parts), lengths),
        recording=recording,
        follows=np.concatenate([[False], recording[1:] == recording[:-1]]),
    )


def _person(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Features ``(n, 30)``, labels ``(n,)`` and recordings ``(n,)``, counted from 0."""
    ecg, eda, label = _signals(path)
    session = clean(ecg, eda, RATE_HZ)
    rows: list[NDArray[np.float64]] = []
    labels: list[int] = []
    recordings: list[int] = []
    for start, stop in same_runs(label):
        starts = start + window_starts(stop - start, WINDOW, HOP)
        if not 1 <= label[start] <= len(CLASSES) or not len(starts):
            continue
        rows += [features(session, first, first + WINDOW) for first in starts.tolist()]
        recordings += [recordings[-1] + 1 if recordings else 0] * len(starts)
        labels += [int(label[start]) - 1] * len(starts)
    if not rows:
        raise InputError(f"WESAD '{path}': expected {WINDOW} samples of a label 1 to 4, got none")
    return np.stack(rows), np.array(labels, np.int64), np.array(recordings, np.int64)


def _signals(
    path: Path,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    content: Any = load_arrays(path)
    try:
        chest = content["signal"]["chest"]
        arrays = [np.asarray(array) for array in (chest["ECG"], chest["EDA"], content["label"])]
        ecg, eda = (array.astype(np.float64).reshape(-1) for array in arrays[:2])
        label = arrays[2].astype(np.int64)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"WESAD '{path}': expected signal/chest/ECG, signal/chest/EDA and label, got {error!r}"
        ) from error
    if not len(ecg) == len(eda) == label.size or label.ndim != 1:
        raise InputError(
            f"WESAD '{path}': expected ECG, EDA and label of one length, "
            f"got {len(ecg)}, {len(eda)} and {label.shape}"
        )
    if not (np.isfinite(ecg).all() and np.isfinite(eda).all()):
        raise InputError(f"WESAD '{path}': ECG or EDA contains NaN or infinite values")
    return ecg, eda, label
