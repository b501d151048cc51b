"""The ALP plan as the paper lists it: a matrix divided in place, in float64, loops elsewhere."""

import numpy as np


def plan(x, prototypes, epsilon, iterations):
    """``x (N, d)``, ``prototypes (M, d)`` -> plan ``(N, M)`` whose columns sum to one."""
    rows, columns = unit(x), unit(prototypes)
    q = np.exp(rows @ columns.T / epsilon)
    for _ in range(iterations):
        q /= q.sum(axis=1, keepdims=True)
        q /= q.sum(axis=0, keepdims=True)
    return q


def log_plan(x, prototypes, epsilon, iterations):
    """Logarithm of ``plan``, for temperatures at which its numbers overflow."""
    log_q = unit(x) @ unit(prototypes).T / epsilon
    for _ in range(iterations):
        log_q -= np.logaddexp.reduce(log_q, axis=1, keepdims=True)
        log_q -= np.logaddexp.reduce(log_q, axis=0, keepdims=True)
    return log_q


def unit(rows):
    rows = np.asarray(rows, np.float64)
    return rows / np.sqrt(np.maximum((rows**2).sum(axis=1, keepdims=True), 1e-12))


def count(variant, batch, tokens, prototypes):
    """How many embeddings a prototype takes."""
    if variant == "bulk_code":
        return max(1, batch // prototypes)
    return int(np.ceil(batch * tokens / prototypes))


def update(x, local, q, variant, gamma):
    """New local prototypes from the local half ``q (N, G)`` of the plan; x is ``(B, Z, d)``."""
    batch, tokens, width = x.shape
    rows = x.reshape(-1, width).astype(np.float64)
    new = local.astype(np.float64)
    if variant == "single_code":
        for i, row in enumerate(rows):
            j = int(np.argmax(q[i]))
            new[j] = gamma * local[j] + (1 - gamma) * row
        return new
    k = count(variant, batch, tokens, len(local))
    for j in range(len(local)):
        order = sorted(range(len(rows)), key=lambda i: (-q[i, j], i))[:k]
        weights = q[order, j]
        picked = rows[order]
        if variant == "paper_pseudo":
            picked = unit(picked)
        else:
            weights = weights / weights.sum()
        new[j] = gamma * local[j] + (1 - gamma) * (weights @ picked)
    return new
