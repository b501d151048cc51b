"""CDFL's client: pseudo-labels, two networks in one loop, the images it shows, and its scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import KMeansResult, kmeans, kmeans_restarts
from protofleet.strategies.methods.cdfl.settings import CdflSettings, pixelised
from protofleet.strategies.training import ExampleRows, LocalObjective, Trained, Trainer, passes
from protofleet.strategies.types import PERSONALISED, ClientTools, Evaluation
from protofleet.tensors import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredImages:
    """Pixelised examples and their clusters."""

    images: NDArray[np.float32]
    clusters: KMeansResult


def pseudo_labels(
    settings: CdflSettings, start: Network, z: NDArray[np.float32], tools: ClientTools
) -> KMeansResult:
    """Centroids μ̃ and the nearest of each example."""
    if not len(z):
        nothing = np.empty((0, 0), np.float32)
        return KMeansResult(centers=nothing, labels=np.empty(0, np.int64), n_iter=0, inertia=0.0)
    features = tools.features(start, z)
    classes, rng = len(np.unique(tools.training.y)), tools.training.rng
    return kmeans_restarts(features, classes, rng=rng, restarts=settings.restarts)  # Eq. 10


def train_pair(
    settings: CdflSettings, start: Network, clustered: ClusteredImages, tools: ClientTools
) -> tuple[Network, Trained]:
    """The personalised and the local network after all epochs; the latter in ``start``'s memory."""
    z, clusters = clustered.images, clustered.clusters
    weights = {
        name: np.float32(getattr(settings, name))
        for name in ("tau", "contrastive", "distillation", "clustering")
    }
    examples = tools.training
    personal = Trainer(start.copy(), examples, settings)

    def inputs(rows: ExampleRows) -> Mapping[str, Any]:
        return {
            "z": z[rows],
            "teacher": tools.features(personal.network, examples.x[rows]),
            "centroids": clusters.centers[clusters.labels[rows]],
            **weights,
        }

    local = Trainer(start, examples, settings, LocalObjective(loss="cdfl", inputs=inputs))

    def step(rows: ExampleRows) -> float:
        personal.step(rows)
        return local.step(rows)

    loss = passes(step, examples, settings)
    return personal.trained(math.nan).network, local.trained(loss)


def chosen_rows(
    settings: CdflSettings, local: Trained, clustered: ClusteredImages, tools: ClientTools
) -> ExampleRows:
    """Numbers of the examples of S_i, ascending: the m nearest of all to each new centroid."""
    z, clusters = clustered.images, clustered.clusters
    if not len(z):
        return np.empty(0, np.int64)
    features = tools.features(local.network, z)
    centroids = kmeans(features, clusters.centers).centers
    nearest = [
        np.argsort(_squares(features, centroid), kind="stable")[: settings.images_per_centroid]
        for centroid in centroids
    ]
    return np.unique(np.concatenate(nearest))


def _squares(points: NDArray[np.float32], centre: NDArray[np.float32]) -> NDArray[np.float64]:
    gaps = points.astype(np.float64) - centre
    squares: NDArray[np.float64] = np.einsum("nd,nd->n", gaps, gaps)
    return squares


def evaluate(
    settings: CdflSettings, personal: Network, local: Trained, tools: ClientTools
) -> Evaluation:
    """Scores of the local network, and further ones by name."""
    scores = tools.evaluate(local.network)
    more = {
        "pixelised": tools.statistics(local.network, view=partial(pixelised, settings)),
        PERSONALISED: tools.statistics(personal),
    }
    counted = {name: counts for name, counts in more.items() if counts is not None}
    return replace(scores, more={**scores.more, **counted})
