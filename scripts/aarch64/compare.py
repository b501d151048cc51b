"""How far two runs of one federation lie from each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle
from protofleet.edge.state.store import read_personal
from protofleet.tensors import blobs

Arrays = Mapping[str, NDArray[Any]]
_PARAMS = "params/"


def server_distance(ours: Path, other: Path, bundle: Bundle, round_id: int) -> float:
    """Between the server's parameters after a round, as ``distance``."""
    first, second = (_server_state(run, round_id) for run in (ours, other))
    return distance(first, second, bundle)


def personal_distance(ours: Path, other: Path, bundle: Bundle) -> float:
    """Between the models that two stores keep, as ``distance``."""
    first, second = (read_personal(store)[1].tensors for store in (ours, other))
    return distance(first, second, bundle)


def distance(ours: Arrays, other: Arrays, bundle: Bundle) -> float:
    """Euclidean distance of two sets of parameters ÷ how far the second went from the bundle's."""
    names = [name for name in other if name.startswith(_PARAMS)]
    start = bundle.model().params
    apart = _norm([ours[name] - other[name] for name in names])
    return apart / _norm([other[name] - start[name.removeprefix(_PARAMS)] for name in names])


def _norm(arrays: list[NDArray[Any]]) -> float:
    squares = [np.square(array, dtype=np.float64).sum() for array in arrays]
    return float(np.sqrt(np.sum(squares)))


def _server_state(run: Path, round_id: int) -> Arrays:
    (file,) = (run / "run/states").glob(f"{round_id:06d}*")
    return blobs.decode(file.read_bytes(), max_bytes=1 << 30)[0]
