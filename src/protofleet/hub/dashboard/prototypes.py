"""The server's prototypes over its last states, on a plane: read when the page asks for them."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import ProtofleetError
from protofleet.report.projection import principal_plane
from protofleet.tensors import blobs

_MOST_BYTES = 256 << 20
_LAYERS = 4
_POINTS = 120
"""Of a layer that are shown, evenly chosen among all."""

Point = tuple[float, float]


class PrototypeLayer(msgspec.Struct, frozen=True, kw_only=True):
    """Prototypes of one tensor after several rounds.

    Attributes:
        name: of the tensor in the server's state.
        rounds: after which, rising.
        count: how many prototypes there are; ``shown``: how many of them are among the points.
        points: of the last round ``(shown, 2)``, on the plane of all rounds' first two components.
        moves: of each shown prototype from its place after a round to that after the next:
            ``(x, y)`` and ``(x, y)``. A prototype is its row: strategies keep their order.
        shift: how far the last round moved all of them, in all dimensions, on average.
        shares: of the variance, of the two components.
    """

    name: str
    rounds: tuple[int, ...]
    count: int
    shown: int
    points: tuple[Point, ...]
    moves: tuple[tuple[Point, Point], ...]
    shift: float
    shares: tuple[float, float]


def read_prototypes(folder: Path) -> tuple[PrototypeLayer, ...]:
    """Of the states that the run keeps (``limits.keep_states``); none where there are none."""
    try:
        files = sorted((folder / "states").glob("*.safetensors"))
        return _layers(tuple((file, file.stat().st_mtime_ns) for file in files))
    except (OSError, ProtofleetError):
        return ()  # a state that was removed meanwhile; the next look finds the others


@lru_cache(maxsize=4)
def _layers(files: tuple[tuple[Path, int], ...]) -> tuple[PrototypeLayer, ...]:
    states = {}
    for file, _ in files:
        tensors, _ = blobs.decode(file.read_bytes(), max_bytes=_MOST_BYTES)
        states[int(file.stem)] = {
            name: np.asarray(value, np.float64)
            for name, value in tensors.items()
            if "prototype" in name and value.ndim == 2 and min(value.shape) > 1
        }
    if not states:
        return ()
    names = sorted(set.intersection(*(set(found) for found in states.values())))
    layers = []
    for name in names[:_LAYERS]:
        values = {round_id: found[name] for round_id, found in states.items()}
        if len({value.shape for value in values.values()}) == 1:
            layers.append(_layer(name, values))
    return tuple(layers)


def _layer(name: str, values: dict[int, NDArray[np.float64]]) -> PrototypeLayer:
    rounds = tuple(sorted(values))
    ordered = [values[round_id] for round_id in rounds]
    last = ordered[-1]
    kept = [value[:: max(1, -(-len(last) // _POINTS))] for value in ordered]
    plane, shares = principal_plane(np.concatenate(kept))
    places = [[(float(x), float(y)) for x, y in part] for part in np.split(plane, len(kept))]
    moved = np.linalg.norm(last - ordered[-2], axis=1) if len(ordered) > 1 else np.zeros(1)
    return PrototypeLayer(
        name=name,
        rounds=rounds,
        count=len(last),
        shown=len(kept[-1]),
        points=tuple(places[-1]),
        moves=tuple(
            move for before, after in pairwise(places) for move in zip(before, after, strict=True)
        ),
        shift=float(moved.mean()),
        shares=shares,
    )
