"""Aggregation rules in plain NumPy, number by number; weights are repeated clients."""

import numpy as np


def mean(vectors, weights):
    """``(size,)`` float64: one client after the other."""
    total = np.zeros(len(vectors[0]))
    for vector, weight in zip(vectors, weights, strict=True):
        total += weight * np.asarray(vector, np.float64)
    return total / sum(weights)


def median(vectors):
    """``(size,)`` float32."""
    return np.median(np.asarray(vectors, np.float64), axis=0).astype(np.float32)


def weighted_median(vectors, weights):
    """The median of as many copies of each client as its weight, an integer, says."""
    return median(np.repeat(np.asarray(vectors, np.float64), weights, axis=0))
