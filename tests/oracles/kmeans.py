"""Lloyd's algorithm by brute force in float64; an empty cluster stands at its first row.

Centres are rounded to float32 after each step, which is how they are kept.
"""

import numpy as np


def distances(points, centers):
    points, centers = points.astype(np.float64), centers.astype(np.float64)
    return np.array([np.sqrt(((centers - point) ** 2).sum(axis=1)) for point in points])


def labels_of(points, centers):
    return distances(points, centers).argmin(axis=1)


def means_of(points, labels, init):
    means = [
        points[labels == j].mean(axis=0, dtype=np.float64) if (labels == j).any() else init[j]
        for j in range(len(init))
    ]
    return np.array(means).astype(np.float32)


def inertia_of(points, centers, labels):
    return ((points.astype(np.float64) - centers[labels].astype(np.float64)) ** 2).sum()


def kmeans(points, init, max_iter, tol):
    limit = tol * points.astype(np.float64).var(axis=0).mean()
    centers, previous = init, None
    for n_iter in range(1, max_iter + 1):
        labels = labels_of(points, centers)
        old, centers = centers, means_of(points, labels, init)
        if previous is not None and (labels == previous).all():
            return centers, labels, n_iter
        if ((centers.astype(np.float64) - old) ** 2).sum() <= limit:
            break
        previous = labels
    return centers, labels_of(points, centers), n_iter


def relocating_kmeans(points, init, max_iter, tol):
    """As scikit-learn moves empty clusters, sums of float64 rounded to float32 centres."""
    exact = points.astype(np.float64)
    limit, count = tol * exact.var(axis=0).mean(), 0
    centers, previous = init, None
    for n_iter in range(1, max_iter + 1):
        labels = labels_of(points, centers)
        old, sums = centers, np.array([exact[labels == j].sum(axis=0) for j in range(len(init))])
        sizes = np.bincount(labels, minlength=len(init))
        far = ((exact - old[labels].astype(np.float64)) ** 2).sum(axis=1)
        if far.max() > 0:
            order = sorted(range(len(points)), key=lambda i: (-far[i], i))
            for j, i in zip([j for j in range(len(init)) if not sizes[j]], order, strict=False):
                sums[labels[i]] -= exact[i]
                sizes[labels[i]] -= 1
                sums[j], sizes[j] = exact[i], 1
                count += 1
        made = [sums[j] / sizes[j] if sizes[j] else init[j] for j in range(len(init))]
        centers, largest = np.array(made).astype(np.float32), np.argmax(sizes)
        for j in set(labels.tolist()):
            if not sizes[j]:  # it lost its only point
                factor, mean = (1 if j > largest else sizes[largest]), exact.mean(axis=0)
                centers[j] = (mean + factor * (centers[largest] - mean)).astype(np.float32)
        if previous is not None and (labels == previous).all():
            return centers, labels, n_iter, count
        if ((centers.astype(np.float64) - old) ** 2).sum() <= limit:
            break
        previous = labels
    return centers, labels_of(points, centers), n_iter, count


def kmeans_plusplus(points, k, rng):
    """Numbers of the seeds, and whether rounding could have chosen others."""
    points = points.astype(np.float64)
    seeds, tied = [rng.integers(len(points))], False
    for _ in range(1, k):
        nearest = ((points[:, None] - points[seeds]) ** 2).sum(axis=2).min(axis=1)
        total = np.cumsum(nearest)
        drawn = np.searchsorted(total, rng.uniform(size=2 + int(np.log(k))) * total[-1])
        gains = [
            np.minimum(nearest, ((points - points[i]) ** 2).sum(axis=1)).sum()
            for i in np.minimum(drawn, len(points) - 1)
        ]
        best = min(drawn[np.argmin(gains)], len(points) - 1)
        rivals = np.array(gains)[drawn != best]
        tied |= bool((rivals <= min(gains) * (1 + 1e-9)).any())
        seeds.append(best)
    return np.array(seeds), tied
