"""The hyperspherical loss entry by entry in float64."""

import numpy as np


def loss(prototypes):
    """Mean over the rows of the largest entry of ``P Pᵀ - 2 I``."""
    rows = np.asarray(prototypes, np.float64)
    return np.mean([max(product(rows, i, j) for j in range(len(rows))) for i in range(len(rows))])


def gradient(prototypes):
    """Row i's first largest entry (i, j) pulls on i and on j."""
    rows = np.asarray(prototypes, np.float64)
    out = np.zeros_like(rows)
    for i in range(len(rows)):
        products = [product(rows, i, j) for j in range(len(rows))]
        j = products.index(max(products))
        out[i] += rows[j] / len(rows)
        out[j] += rows[i] / len(rows)
    return out


def product(rows, i, j):
    return float(sum(a * b for a, b in zip(rows[i], rows[j], strict=True))) - 2.0 * (i == j)


def started(start, steps, lr, momentum, weight_decay):
    """SGD on the loss with rows scaled to unit length before every step and at the end."""
    rows = np.asarray(start, np.float64)
    velocity = np.zeros_like(rows)
    for _ in range(steps):
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        velocity = momentum * velocity + gradient(rows) + weight_decay * rows
        rows = rows - lr * velocity
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
