"""K-means of a fleet's prototypes, as FedAli's server runs it, and of points without clusters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protofleet.benchmarks.kernels.comparison import KernelCase, Peer, Sides
from protofleet.kernels import kmeans

_TARGET = 2.0
_CHECKED = 8  # clients whose clustering is compared with scikit-learn's before timing
_NEAR_TIES = 1e-4  # share of points that scikit-learn's float32 sums may label otherwise
_EQUAL = 1e-3  # relative difference of inertias: both stop where nothing moves, not in one place
_BLOCK = 1024  # points of one matrix product

_Floats = NDArray[np.float32]


class _Data(NamedTuple):
    """Points by client ``(C, G, d)``, initial centres, and whether slots are likely labels."""

    points: _Floats
    init: _Floats
    slots: bool


def _fleet(clients: int, slots: int, width: int) -> _Data:
    """Local prototypes: global ones, moved towards embeddings of the client.

    The moves are 5 % to 50 % of the distance from a global prototype to its nearest other one.
    """
    rng = np.random.default_rng(0)
    base = rng.standard_normal((slots, width), dtype=np.float32)
    gaps = np.sqrt(_least_squares(base))
    points = np.empty((clients, slots, width), np.float32)
    for own in points:
        embeddings = base[rng.integers(slots, size=slots)]
        moves = embeddings + rng.standard_normal((slots, width), dtype=np.float32) - base
        lengths = rng.uniform(0.05, 0.5, slots) * gaps / np.linalg.norm(moves, axis=1)
        own[:] = base + moves * lengths[:, None]
    return _Data(points, points.mean(axis=0), slots=True)


def _without_slots(clients: int, slots: int, width: int) -> _Data:
    """A fleet's prototypes without the labels that they probably have."""
    return _fleet(clients, slots, width)._replace(slots=False)


def _overlapping(clients: int, slots: int, width: int) -> _Data:
    """Moves as long as the distances between prototypes, in a space of 16 dimensions."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((slots, 16), dtype=np.float32)
    plane = rng.standard_normal((16, width), dtype=np.float32) / 4
    moved = base + rng.standard_normal((clients, slots, 16), dtype=np.float32)
    points = moved @ plane + 0.1 * rng.standard_normal((clients, slots, width), dtype=np.float32)
    return _Data(points, points.mean(axis=0), slots=True)


def _shapeless(clients: int, slots: int, width: int) -> _Data:
    """Gaussian points, and some of them as centres."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((clients, slots, width), dtype=np.float32)
    return _Data(points, points[0].copy(), slots=False)


def _least_squares(base: _Floats) -> _Floats:
    norms = np.square(base).sum(axis=1)
    squares = norms[:, None] + norms - 2 * base @ base.T
    np.fill_diagonal(squares, np.inf)
    least: _Floats = squares.min(axis=1)
    return least


def _prepare(
    make: Callable[[int, int, int], _Data], shape: tuple[int, int, int], target: float | None
) -> Sides:
    data = make(*shape)
    _check(data)
    points = data.points.reshape(-1, shape[2])
    inertia = [0.0]

    def ours() -> None:
        inertia[0] = kmeans(points, data.init, guess=_guess(data)).inertia

    def theirs() -> None:
        found = _theirs(points, data.init).inertia_
        if abs(inertia[0] / found - 1) > _EQUAL:
            raise ArithmeticError(f"k-means: inertia {inertia[0]}, scikit-learn's is {found}")

    scores = np.empty((_BLOCK, len(data.init)), np.float32)

    def product() -> None:
        for start in range(0, len(points), _BLOCK):
            part = points[start : start + _BLOCK]
            np.matmul(part, data.init.T, out=scores[: len(part)])

    peers = (
        Peer(name="scikit-learn", run=theirs, target=target),
        Peer(name="matrix product of one iteration alone", run=product),
    )
    return Sides(ours=ours, peers=peers)


def _theirs(points: _Floats, init: _Floats, max_iter: int = 300) -> Any:
    from sklearn.cluster import KMeans  # noqa: PLC0415 - seconds that other cases need not pay

    return KMeans(len(init), init=init, n_init=1, algorithm="lloyd", max_iter=max_iter).fit(points)


def _check(data: _Data) -> None:
    """Two iterations over a few clients give scikit-learn's labels and inertia."""
    few = _Data(data.points[:_CHECKED], data.init, data.slots)
    points = few.points.reshape(-1, few.points.shape[2])
    mine = kmeans(points, few.init, guess=_guess(few), max_iter=2)
    theirs = _theirs(points, few.init, max_iter=2)
    other = float(np.mean(mine.labels != theirs.labels_))
    if other > _NEAR_TIES or abs(mine.inertia / theirs.inertia_ - 1) > _NEAR_TIES:
        raise AssertionError(
            f"k-means: expected scikit-learn's clustering, got {other:.2%} other labels "
            f"and inertia {mine.inertia}, not {theirs.inertia_}"
        )


def _guess(data: _Data) -> NDArray[np.int64] | None:
    return np.tile(np.arange(len(data.init)), len(data.points)) if data.slots else None


_FLEETS = ((36, 2048, 192), (105, 2048, 192), (1000, 64, 192))

CASES: tuple[KernelCase, ...] = (
    *(
        KernelCase(
            kernel="k-means",
            case=f"fleet C={shape[0]} G={shape[1]} d={shape[2]}",
            size=shape[0] * shape[1],
            unit="points",
            prepare=partial(_prepare, _fleet, shape, _TARGET if shape[1] == 2048 else None),
            quick=shape[0] == 105,
        )
        for shape in _FLEETS
    ),
    *(
        KernelCase(
            kernel=f"k-means, {name}",
            case="C=36 G=512 d=192",
            size=36 * 512,
            unit="points",
            prepare=partial(_prepare, make, (36, 512, 192), None),
        )
        for name, make in (
            ("slots unknown", _without_slots),
            ("overlapping clusters", _overlapping),
            ("no clusters", _shapeless),
        )
    ),
)
