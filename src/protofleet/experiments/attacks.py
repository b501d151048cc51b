"""What hostile clients send, for experiments: pure functions of updates, and of labels.

Sources: sign flip and label flip as in Allouah et al. (arXiv:2302.01772), section 6; scaling is
model replacement as in Bagdasaryan et al. (arXiv:1807.00459), equation 3; ALIE: Baruch, Baruch and
Goldberg, "A Little Is Enough" (arXiv:1902.06083). Liars know what the honest clients send, and all
of them send the same but for label flip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.tensors import Tensors, blobs

AttackName = Literal["sign_flip", "alie", "label_flip", "scaling"]

Differences = NDArray[np.float64]
"""``(h, size)``, of the honest clients' tensors to what they started from."""

Lie = Callable[[Differences, int], NDArray[np.float64]]
"""The difference ``(size,)`` that each of so many liars sends."""


class Hostile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hostile`` of a method: who lies, and how.

    Attributes:
        attack: what they do.
        share: of the clients that lie, rounded to whole clients; drawn by the run's seed.
        deviations: z, by how many standard deviations ALIE shifts; absent: as many as its paper
            allows (``largest_shift``). ByzFL's default is 1.5.
    """

    attack: AttackName
    share: float = 0.2
    deviations: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"`share`: expected a fraction between 0 and 1, got {self.share}")
        if self.deviations is not None and self.attack != "alie":
            raise ValueError(f"`deviations`: expected attack alie, got {self.attack}")

    @property
    def lie(self) -> Lie | None:
        """What every liar sends in the place of its update; None: it trains on other labels."""
        lies: dict[AttackName, Lie] = {
            "sign_flip": sign_flip,
            "scaling": scaling,
            "alie": partial(alie, deviations=self.deviations),
        }
        return lies.get(self.attack)


def sign_flip(honest: Differences, _liars: int) -> NDArray[np.float64]:
    """Minus the mean of the honest differences."""
    return -np.asarray(honest.mean(axis=0))


def scaling(honest: Differences, liars: int) -> NDArray[np.float64]:
    """What takes a plain mean of all to minus the honest mean: the model is replaced."""
    clients = len(honest) + liars
    return -np.asarray(honest.mean(axis=0)) * (clients + len(honest)) / liars


def alie(
    honest: Differences, liars: int, *, deviations: float | None = None
) -> NDArray[np.float64]:
    """The honest mean, every number shifted down by so many of the honest standard deviations.

    Args:
        honest: ``(h, size)``.
        liars: how many there are.
        deviations: z; None: ``largest_shift``.
    """
    z = largest_shift(len(honest), liars) if deviations is None else deviations
    return np.asarray(honest.mean(axis=0) - z * honest.std(axis=0))


def largest_shift(honest: int, liars: int) -> float:
    """Z of arXiv:1902.06083, algorithm 3: the most at which liars are in a majority.

    So many honest clients lie farther out than the liars that both together are more than half.
    """
    needed = max((honest + liars) // 2 + 1 - liars, 1)
    nearer = (honest - needed) / honest
    return NormalDist().inv_cdf(nearer) if nearer > 0.5 else 0.0


def flipped_labels(y: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """``(n,) int64``: every label becomes that of the class at the other end, C - 1 - y."""
    return np.asarray(classes - 1 - y)


def liars_among(hostile: Hostile, clients: tuple[str, ...], seed: int) -> frozenset[str]:
    """Who of the clients lies in the run of a seed."""
    ordered = sorted(clients)
    count = round(hostile.share * len(ordered))
    chosen = np.random.default_rng((seed, len(ordered))).permutation(len(ordered))[:count]
    return frozenset(ordered[index] for index in chosen)


@dataclass(frozen=True, slots=True)
class Sent:
    """A client's update as a raw blob, and the tensors that it started from."""

    blob: bytes | memoryview
    baseline: Tensors


def lied(hostile: Hostile, liars: frozenset[str], sent: Mapping[str, Sent]) -> dict[str, bytes]:
    """The raw blobs that the liars send in the place of their own; empty for label flip.

    Args:
        hostile: what they do.
        liars: who of the clients lies.
        sent: what every client of the round would send if it were honest.
    """
    lie = hostile.lie
    liars &= sent.keys()
    if lie is None or not liars or len(liars) == len(sent):
        return {}
    decoded = {name: blobs.decode(one.blob, max_bytes=len(one.blob)) for name, one in sent.items()}
    honest = np.stack(
        [_difference(decoded[name][0], sent[name].baseline) for name in sent if name not in liars]
    )
    difference = lie(honest, len(liars))
    return {
        name: blobs.encode(
            _moved(decoded[name][0], sent[name].baseline, difference), decoded[name][1]
        )
        for name in sorted(liars)
    }


def _floats(tensors: Tensors) -> list[str]:
    return sorted(name for name, value in tensors.items() if value.dtype == np.float32)


def _difference(tensors: Tensors, baseline: Tensors) -> NDArray[np.float64]:
    parts = [
        tensors[name].astype(np.float64).ravel() - np.ravel(baseline.get(name, 0.0))
        for name in _floats(tensors)
    ]
    return np.concatenate(parts)


def _moved(tensors: Tensors, baseline: Tensors, difference: NDArray[np.float64]) -> Tensors:
    moved, start = dict(tensors), 0
    for name in _floats(tensors):
        value = tensors[name]
        part = difference[start : start + value.size].reshape(value.shape)
        moved[name] = (baseline.get(name, 0.0) + part).astype(np.float32)
        start += value.size
    return moved
