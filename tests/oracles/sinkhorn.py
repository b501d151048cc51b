"""Sinkhorn's algorithm in the log domain, in float64: rows first, then columns."""

import numpy as np


def sinkhorn(cost, a, b, epsilon, iterations):
    """Potentials after so many iterations from ``g = 0``, -inf where there is no mass."""
    cost = cost.astype(np.float64)
    with np.errstate(divide="ignore"):
        log_a, log_b = np.log(shares(a)), np.log(shares(b))
    total = a.astype(np.float64).sum()
    g = np.where(b > 0, 0.0, -np.inf)
    for _ in range(iterations):
        f = epsilon * (log_a - log_sum((g - cost) / epsilon, 1))
        g = epsilon * (log_b - log_sum((f[:, None] - cost) / epsilon, 0))
    return f + epsilon * np.log(total), g


def plan(cost, f, g, epsilon):
    return np.exp((f[:, None] + g - cost.astype(np.float64)) / epsilon)


def row_error(plan, a):
    return np.abs(plan.sum(axis=1) / plan.sum() - shares(a)).sum()


def shares(masses):
    masses = masses.astype(np.float64)
    return masses / masses.sum()


def log_sum(values, axis):
    """``log Σ exp(values)``; some value along the axis is finite."""
    high = values.max(axis=axis, keepdims=True)
    return np.log(np.exp(values - high).sum(axis=axis)) + high.squeeze(axis)
