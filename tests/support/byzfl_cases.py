"""The vectors that our rules and ByzFL's are given."""

from typing import NamedTuple

import numpy as np


class Case(NamedTuple):
    """Vectors of ``clients``, the last ``liars`` of which are ``far`` away."""

    seed: int
    clients: int
    liars: int
    size: int
    far: float


CASES = (
    Case(seed=1, clients=7, liars=1, size=5, far=4.0),
    Case(seed=2, clients=10, liars=2, size=33, far=50.0),
    Case(seed=3, clients=11, liars=5, size=8, far=3.0),
    Case(seed=4, clients=30, liars=6, size=17, far=1.0),
    Case(seed=5, clients=9, liars=0, size=12, far=0.0),
)


def vectors_of(case):
    """``(clients, size) float64``, exact in float32; honest clients in three groups."""
    rng = np.random.default_rng(case.seed)
    centres = rng.normal(size=(3, case.size))
    vectors = centres[rng.integers(0, 3, case.clients)] + rng.normal(
        size=(case.clients, case.size), scale=0.5
    )
    vectors[case.clients - case.liars :] += case.far
    return vectors.astype(np.float32).astype(np.float64)


def key(case, name, *, mixing=False):
    """Name of an outcome in the file."""
    return f"{name}{' after mixing' if mixing else ''}, seed {case.seed}"
