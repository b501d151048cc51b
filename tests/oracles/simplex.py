"""The least of aᵀ P a on the simplex, by trying every set of numbers that are not zero."""

from itertools import chain, combinations

import numpy as np


def least(form):
    """``a`` of the smallest value among the stationary points of all faces, in float64."""
    size = len(form)
    faces = chain.from_iterable(combinations(range(size), n + 1) for n in range(size))
    best, value = None, np.inf
    for face in faces:
        # Stationary on the face's plane: 2 P a = μ 1, Σ a = 1.
        system = np.ones((len(face) + 1, len(face) + 1))
        system[:-1, :-1] = 2 * form[np.ix_(face, face)]
        system[-1, -1] = 0
        found = np.linalg.lstsq(system, np.r_[np.zeros(len(face)), 1.0], rcond=None)[0][:-1]
        if (found < -1e-12).any() or abs(found.sum() - 1) > 1e-9:
            continue
        whole = np.zeros(size)
        whole[list(face)] = found
        if whole @ form @ whole < value:
            best, value = whole, whole @ form @ whole
    return best


def projected(point):
    """The nearest point of the simplex."""
    ordered = np.sort(point)[::-1]
    sums = np.cumsum(ordered) - 1
    last = np.flatnonzero(ordered > sums / np.arange(1, len(point) + 1))[-1]
    return np.maximum(point - sums[last] / (last + 1), 0)


def descended(form, steps=20000):
    """The same by projected gradient steps, for forms too large for all faces."""
    a = np.full(len(form), 1 / len(form))
    rate = 0.5 / np.linalg.eigvalsh(form)[-1]
    for _ in range(steps):
        a = projected(a - rate * 2 * (form @ a))
    return a
