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


def scores(x, prototypes, assignment):
    """What embeddings ``(N, d)`` are matched by without a plan, ``(N, M)``."""
    if assignment == "cosine":
        return unit(x) @ unit(prototypes).T
    x, prototypes = x.astype(np.float64), prototypes.astype(np.float64)
    return -((x[:, None] - prototypes) ** 2).sum(axis=2)


def ablated(x, local, global_, *, variant, banks, assignment, gamma):
    """Chosen prototypes ``(B, Z, d)`` and new local ones of a row of Table 4."""
    rows = x.reshape(-1, x.shape[2])
    active = {"both": [local, global_], "local": [local], "global": [global_]}[banks]
    together = np.concatenate(active)
    if assignment == "transport":
        values = plan(rows, together, 0.05, 3)
    else:
        values = scores(rows, together, assignment)
    own, others = values[:, : len(local)], values[:, len(together) - len(local) :]
    chosen = active[-1][others.argmax(axis=1)].reshape(x.shape)
    if assignment == "transport" or variant == "single_code":
        return chosen, update(x, local, own, variant, gamma)
    k, new = count(variant, *x.shape[:2], len(local)), local.astype(np.float64)
    for j in range(len(local)):
        nearest = sorted(range(len(rows)), key=lambda i: (-own[i, j], i))[:k]
        new[j] = gamma * local[j] + (1 - gamma) * rows[nearest].astype(np.float64).mean(axis=0)
    return chosen, new


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
