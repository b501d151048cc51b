"""Lloyd's algorithm by brute force in float64; an empty cluster stands at its first row."""

import numpy as np


def labels_of(points, centers):
    return np.array([np.argmin(((centers - point) ** 2).sum(axis=1)) for point in points])


def means_of(points, labels, init):
    return np.array(
        [
            points[labels == j].mean(axis=0) if (labels == j).any() else init[j]
            for j in range(len(init))
        ]
    )


def kmeans(points, init, max_iter, tol):
    points, init = points.astype(np.float64), init.astype(np.float64)
    limit = tol * points.var(axis=0).mean()
    centers, previous = init, None
    for n_iter in range(1, max_iter + 1):
        labels = labels_of(points, centers)
        old, centers = centers, means_of(points, labels, init)
        if previous is not None and (labels == previous).all():
            return centers, labels, n_iter
        if ((centers - old) ** 2).sum() <= limit:
            break
        previous = labels
    return centers, labels_of(points, centers), n_iter
