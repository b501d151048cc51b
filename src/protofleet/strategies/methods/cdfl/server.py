"""CDFL's server after averaging: what it keeps of the clients, trains on, and ranks them by."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.methods.cdfl.settings import Bytes, CdflSettings, to_values
from protofleet.strategies.training import (
    DivergedError,
    ExampleRows,
    LocalObjective,
    Training,
    train,
)
from protofleet.strategies.types import ServerTools, TrainTools
from protofleet.tensors import Network, Tensors

_PREFIX = "images/"
_PREDICTED = 32
"""Images turned into numbers at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """Images that clients uploaded, one client after the other.

    Attributes:
        clients: ids, ascending.
        members: ``(k,) uint8``: 1 for the clients that upload in the next round.
        counts: ``(k,) int64``: how many images each has.
        images: ``(n, C, H, W) uint8``.
        labels: ``(n,) int64``.
        is_training: ``(n,) uint8``: 1 for training, 0 for validation.
    """

    clients: tuple[str, ...]
    members: Bytes
    counts: NDArray[np.int64]
    images: Bytes
    labels: NDArray[np.int64]
    is_training: Bytes

    def tensors(self) -> dict[str, NDArray[Any]]:
        """As a server's state keeps it."""
        ids = np.frombuffer(json.dumps(self.clients).encode(), np.uint8)
        arrays = ("members", "counts", "images", "labels", "is_training")
        kept = {_PREFIX + name: getattr(self, name) for name in arrays}
        return {_PREFIX + "clients": ids, **kept}

    def parts(self) -> dict[str, slice]:
        """Each client's place."""
        ends = np.cumsum(self.counts).tolist()
        counts = self.counts.tolist()
        return {
            client: slice(end - count, end)
            for client, end, count in zip(self.clients, ends, counts, strict=True)
        }


def gallery_of(tensors: Tensors) -> Gallery | None:
    """What ``Gallery.tensors`` made; None before the first upload."""
    kept = {n.removeprefix(_PREFIX): v for n, v in tensors.items() if n.startswith(_PREFIX)}
    if not kept:
        return None
    clients = tuple(json.loads(kept.pop("clients").tobytes()))
    return Gallery(clients=clients, **kept)


def is_asked(settings: CdflSettings, tensors: Tensors, client_id: str) -> bool:
    """Whether the client uploads in the next round: everyone does until someone has."""
    gallery = gallery_of(tensors)
    if gallery is None:
        return True
    if client_id not in gallery.clients:
        return settings.newcomers
    return bool(gallery.members[gallery.clients.index(client_id)])


Upload = tuple[Bytes, NDArray[np.int64]]
"""Images and labels of one client."""


def replaced(
    settings: CdflSettings, gallery: Gallery | None, uploads: Mapping[str, Upload]
) -> Gallery:
    """A gallery with the uploads in the place of what their clients had; no one is a member."""
    kept: dict[str, tuple[NDArray[Any], ...]] = {}
    if gallery is not None:
        arrays = gallery.images, gallery.labels, gallery.is_training
        for client, part in gallery.parts().items():
            kept[client] = tuple(array[part] for array in arrays)
    for client, (images, labels) in uploads.items():
        kept[client] = images, labels, _split(settings, labels)
    clients = tuple(sorted(kept))
    images, labels, is_training = (
        np.concatenate(arrays) for arrays in zip(*(kept[client] for client in clients), strict=True)
    )
    return Gallery(
        clients=clients,
        members=np.zeros(len(clients), np.uint8),
        counts=np.array([len(kept[client][1]) for client in clients], np.int64),
        images=images,
        labels=labels,
        is_training=is_training,
    )


def _split(settings: CdflSettings, labels: NDArray[np.int64]) -> Bytes:
    """1 for training: the rest is drawn evenly from the images in the order of their classes."""
    count = len(labels)
    held = min(max(1, round(settings.validation * count)), count - 1)
    order = np.random.default_rng(settings.split_seed).permutation(count)
    by_class = order[np.argsort(labels[order], kind="stable")]
    is_training = np.ones(count, np.uint8)
    if held > 0:
        is_training[by_class[(2 * np.arange(held) + 1) * count // (2 * held)]] = 0
    return is_training


def fine_tuned(
    settings: CdflSettings, network: Network, gallery: Gallery, tools: ServerTools
) -> Network:
    """The network after training on all training images, or as it is if that diverges.

    Uploads may be hostile: whatever they hold, the federation goes on with their average.
    """
    rows = np.flatnonzero(gallery.is_training)
    if not settings.server_epochs or not len(rows):
        return network
    training = Training(
        epochs=settings.server_epochs,
        batch_size=settings.server_batch_size,
        optimiser=settings.server_optimiser,
    )
    labels = gallery.labels[rows]
    examples = TrainTools(
        name="server",
        x=np.empty((len(labels), 0), np.float32),
        y=labels,
        grad_fns=tools.grad_fns,
        rng=tools.rng,
        min_batch=tools.min_batch,
    )
    # The images stay bytes; a batch at a time becomes numbers.
    objective = LocalObjective(
        inputs=lambda batch: {"x": to_values(settings, gallery.images[rows[batch]])}
    )
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            trained = train(network.copy(), examples, training, objective)
    except DivergedError:
        return network
    made = trained.network
    finite = np.isfinite(made.params.buffer).all() and np.isfinite(made.buffers.buffer).all()
    return made if finite else network


def ranked(settings: CdflSettings, network: Network, gallery: Gallery, tools: ServerTools) -> Bytes:
    """1 for the members of the next round: the best share by accuracy, the first of equals."""
    count = max(1, math.floor(settings.uploaders * len(gallery.clients) + 0.5))
    scores = [
        _accuracy(settings, network, gallery, np.arange(part.start, part.stop), tools)
        for part in gallery.parts().values()
    ]
    members = np.zeros(len(scores), np.uint8)
    members[np.argsort(-np.array(scores), kind="stable")[:count]] = 1
    return members


def _accuracy(
    settings: CdflSettings,
    network: Network,
    gallery: Gallery,
    rows: ExampleRows,
    tools: ServerTools,
) -> float:
    """On the validation images among ``rows``; below all others if there are none."""
    held = rows[gallery.is_training[rows] == 0]
    right = 0
    for start in range(0, len(held), _PREDICTED):
        batch = held[start : start + _PREDICTED]
        logits = tools.predict(network, to_values(settings, gallery.images[batch]))
        right += int((logits.argmax(axis=1) == gallery.labels[batch]).sum())
    return right / len(held) if len(held) else -1.0
