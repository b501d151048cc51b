"""Client similarity, predicted prototypes and the Davies-Bouldin index by loops in float64."""

import numpy as np


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b) / (max(np.sqrt(a @ a), 1e-6) * max(np.sqrt(b @ b), 1e-6))


def similarity(prototypes, present):
    clients = range(len(prototypes))
    return np.array([[shared(prototypes, present, u, v) for v in clients] for u in clients])


def shared(prototypes, present, u, v):
    both = [y for y in range(present.shape[1]) if present[u, y] and present[v, y]]
    return np.mean([cosine(prototypes[u, y], prototypes[v, y]) for y in both]) if both else 0.0


def predicted(prototypes, present, similarities, neighbours):
    """Missing prototypes from the real ones of the most similar owners; zeros without an owner."""
    clients, classes, width = prototypes.shape
    out = np.zeros((clients, classes, width))
    for u in range(clients):
        for y in range(classes):
            owners = [v for v in range(clients) if present[v, y]]
            if present[u, y]:
                out[u, y] = prototypes[u, y]
            elif owners:
                owners.sort(key=lambda v: (-similarities[u, v], v))
                out[u, y] = mean_of(prototypes[:, y], similarities[u], owners[:neighbours])
    return out


def mean_of(rows, similarities, members):
    weights = [max(float(similarities[v]), 0.0) for v in members]
    if sum(weights) == 0:
        weights = [1.0] * len(members)
    total = sum(w * rows[v].astype(np.float64) for w, v in zip(weights, members, strict=True))
    return total / sum(weights)


def davies_bouldin(points, labels):
    points = np.asarray(points, np.float64)
    groups = [points[labels == label] for label in np.unique(labels)]
    centers = [group.mean(axis=0) for group in groups]
    spreads = [
        np.mean([np.linalg.norm(point - center) for point in group])
        for group, center in zip(groups, centers, strict=True)
    ]
    gaps = np.array([[np.linalg.norm(a - b) for b in centers] for a in centers])
    if np.allclose(spreads, 0) or np.allclose(gaps, 0):
        return 0.0
    ratios = [
        [(spreads[i] + spreads[j]) / gap if gap > 0 else 0.0 for j, gap in enumerate(row)]
        for i, row in enumerate(gaps)
    ]
    return float(np.mean(np.max(ratios, axis=1)))
