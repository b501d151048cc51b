"""Which clients FedSub treats alike, class by class (section 5.3, steps 1 to 3 of the server)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import (
    davies_bouldin,
    kmeans_restarts,
    predict_missing_prototypes,
    shared_class_similarity,
)

Labels = NDArray[np.int64]
NOBODY = -1
"""Label of everyone for a class that no client owns."""


def cluster_by_class(
    prototypes: NDArray[np.float32],
    owned: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    neighbours: int,
    restarts: int,
) -> Labels:
    """Cluster the clients anew for each class, by real prototypes and predicted ones.

    Args:
        prototypes: ``(M, C, d)``; those of classes that a client does not own are not looked at.
        owned: ``(M, C)``, which classes a client has examples of.
        rng: draws the seeds of k-means.
        neighbours: owners from which a missing prototype is predicted.
        restarts: runs of k-means for each number of clusters.

    Returns:
        ``(M, C)``, a client's cluster for each class; ``NOBODY`` for classes without an owner.
    """
    similarity = shared_class_similarity(prototypes, owned)
    filled = predict_missing_prototypes(prototypes, owned, similarity, neighbours=neighbours)
    labels = np.full(owned.shape, NOBODY, np.int64)
    for y in np.flatnonzero(owned.any(axis=0)):
        labels[:, y] = _best_clusters(np.ascontiguousarray(filled[:, y]), rng, restarts)
    return labels


def _best_clusters(points: NDArray[np.float32], rng: np.random.Generator, restarts: int) -> Labels:
    """The clustering of least Davies-Bouldin index, the coarsest of equals.

    The index falls towards 0 when nearly every point is a cluster of its own, so there are at most
    half as many clusters as points.
    """
    best, least = np.zeros(len(points), np.int64), np.inf
    for k in range(2, len(points) // 2 + 1):
        labels = kmeans_restarts(points, k, rng=rng, restarts=restarts).labels
        if (labels == labels[0]).all():  # all points coincide
            continue
        if (index := davies_bouldin(points, labels)) < least:
            best, least = labels, index
    return best
