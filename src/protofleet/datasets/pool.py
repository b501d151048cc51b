"""A whole data set in memory, before it is divided among clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.arrays import to_targets
from protofleet.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Labelled examples of all people.

    Attributes:
        x: ``(n, …) float32``: windows ``(n, time, channels)``, rows of features ``(n, d)``, images
            ``(n, channels, height, width)`` in [0, 1], or texts as token numbers ``(n, length)``
            (whole numbers below 2**24, which float32 holds exactly).
        y: ``(n,) int64`` class indices, ``(n, S) int64`` of steps, or ``(n, T) float32`` targets.
        classes: class names, in index order; empty where ``y`` has targets.
        targets: their names, in the order of the columns; empty where ``y`` has classes.
        client: ``(n,) str``: whose example it is; None where the data have no natural owners.
        recording: ``(n,) int64``: examples of one recording, in time order; None if order means
            nothing.
        follows: ``(n,) bool``: the window overlaps the one before it; None if none does.
        is_test: ``(n,) bool``: the publisher's test part; None if there is none.
        boxes: ``(n, k, 4) float32``: regions to hide as left, top, right, bottom in pixels, unused
            rows zero; None if there are none.

    Raises:
        InputError: lengths differ, a label is outside its range, or a number is not finite.
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    client: NDArray[np.str_] | None = None
    recording: NDArray[np.int64] | None = None
    follows: NDArray[np.bool_] | None = None
    is_test: NDArray[np.bool_] | None = None
    boxes: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        n = len(self.x)
        for name in ("y", "client", "recording", "follows", "is_test", "boxes"):
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise InputError(f"pool: expected {n} entries of '{name}', got {len(value)}")
        if bool(self.classes) == bool(self.targets):
            raise InputError("pool: expected names of either classes or targets")
        if self.targets:
            to_targets(self.y, "pool: y", self.targets)
        elif n and not 0 <= self.y.min() <= self.y.max() < len(self.classes):
            raise InputError(
                f"pool: expected labels 0…{len(self.classes) - 1}, "
                f"got {self.y.min()}…{self.y.max()}"
            )
        if not np.isfinite(self.x).all():
            raise InputError("pool: x contains NaN or infinite values")
