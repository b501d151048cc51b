"""CDFL: clients share clustered, pixelised images, and the best of them also their networks.

Source: Khazaei, Esmaeilzehi, Taha, Hatzinakos, "CDFL: Efficient Federated Human Activity
Recognition using Contrastive Learning and Deep Clustering" (arXiv:2407.12287v1); no code was
published. A client has two networks of one architecture, a personalised one for its original images
x and a local one for pixelised images z.

| symbol | name | shape | dtype |
|---|---|---|---|
| θ | ``params/<name>``, ``state/<name>`` down | the model's | float32 |
| θ̃_i | ``params/<name>``, ``state/<name>`` up | the model's | float32 |
| θ_i | ``params/<name>``, ``state/<name>`` of a client's state | the model's | float32 |
| S_i | ``shown/images``, ``shown/labels`` up | (s, channels, H, W), (s,) | uint8, int64 |
| whether i is in the set of uploaders | ``uploads`` down | () | uint8 |
| all S_i and that set | ``images/<array>`` of the server's state | ``Gallery`` | ``Gallery`` |
| n_i | ``num_examples`` | () | int |
| a, m | ``factor``, ``images_per_centroid`` | () | int |
| τ, λ1, λ2, λ3 | ``tau``, ``contrastive``, ``distillation``, ``clustering`` | () | float |

A round: θ goes to all invited clients; both networks of each begin with it. K-means on θ's features
of z, with as many clusters as the client has classes, gives every example its centroid μ̃. In each
batch the personalised network trains first, then the local one with the objective ``cdfl``.
Uploaders send θ̃_i and S_i: for each centroid of θ̃_i's features, found by k-means from μ̃, the m
nearest of all own examples, once each. The server averages the uploaded networks by examples,
trains the mean on the training part of all S_i, and ranks the clients by its accuracy on their
validation parts: the best are the next uploaders. In round 1, and until someone has uploaded,
everyone is one.

Scores: ``own`` and ``pooled`` are those of the local network on original images; further scores are
``pixelised``, the local network on pixelised test images, and ``personalised``, the personalised
network on originals. A device infers with its personalised network.

Deviations:
    - Published nowhere, chosen here: a = 8, τ = 0.5, the split of S_i (4 : 1, even over classes,
      one fixed seed), one epoch of the server at the clients' rate and momentum, ten runs of
      k-means, the order of the networks, everyone uploading in round 1. m = 3 is the paper's for 30
      clients; for 10 it has up to 9.
    - N, of which the uploaders are the half, counts the clients that have uploaded before: the
      server knows no others. A client that is first invited after round 1 uploads once, and is
      ranked from then on, so that the server gets an S_i of every client; ``newcomers = false``
      leaves it out.
    - An uploader that is not invited or not done in time does not upload; if nobody does, network
      and uploaders stay as they are. What others upload is left out.
    - Buffers of the model (batch-norm statistics) travel and are averaged like parameters, because
      the server trains and ranks with them; those of the personalised network stay.
    - Images travel as bytes; the paper does not say how. A client that shows a single image is
      ranked last, because that one is trained on.
    - If the server's training meets a number that is not finite, the round's average stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, RefusedError
from protofleet.strategies.aggregation import TermsReader
from protofleet.strategies.common import (
    BUFFERS,
    PARAMS,
    network_tensors,
    prefixed_layout,
    unpack_network,
)
from protofleet.strategies.methods.cdfl.client import (
    ClusteredImages,
    chosen_rows,
    evaluate,
    pseudo_labels,
    train_pair,
)
from protofleet.strategies.methods.cdfl.server import (
    Upload,
    fine_tuned,
    gallery_of,
    is_asked,
    ranked,
    replaced,
)
from protofleet.strategies.methods.cdfl.settings import (
    CdflSettings,
    check_examples,
    pixelised,
    to_bytes,
)
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import (
    TASK_LOSS,
    ClientState,
    ClientTools,
    Description,
    Payload,
    ServerState,
    ServerTools,
    TensorSchema,
    TensorSchemas,
    Update,
    Updates,
    WireContents,
    float32_schemas,
)
from protofleet.tensors import Layout, Model, Network, TensorMap

UPLOADS = "uploads"
IMAGES = "shown/images"
LABELS = "shown/labels"


def _flag(value: int) -> NDArray[np.uint8]:
    made = np.array(value, np.uint8)
    made.flags.writeable = False
    return made


_FLAGS = _flag(0), _flag(1)  # the very same arrays for all clients: payloads are encoded once


class Cdfl(Strategy):
    """Pixelised images, their clusters, and a few of them on the server."""

    description = Description(
        name="cdfl",
        paper="Khazaei et al., CDFL: Efficient Federated Human Activity Recognition using "
        "Contrastive Learning and Deep Clustering, arXiv:2407.12287",
        objectives=(TASK_LOSS, "cdfl"),
        travels=WireContents(
            down=("parameters", "buffers of the model", "whether to upload"),
            up=(
                "if asked: parameters and buffers of the local network",
                "if asked: pixelised images with their labels",
                "number of examples",
            ),
            personal=("the personalised network", "original images"),
        ),
        server_objectives=(TASK_LOSS,),
        combines="rule",
        reads_features=True,
        published={"kind": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
    )
    settings: CdflSettings

    def __init__(self, settings: CdflSettings, model: Model) -> None:
        if len(model.input_shape) != 3:
            raise InputError(
                "strategy 'cdfl': expected images (channels, height, width), which it pixelises, "
                f"got {model.input_shape}: take fedproto, moon or protohar for other data"
            )
        super().__init__(settings, model)
        params = prefixed_layout(PARAMS, model.params.layout).shapes
        buffers = prefixed_layout(BUFFERS, model.buffers.layout).shapes
        self.network = Layout.of({**params, **buffers})
        received = {**float32_schemas(self.network), UPLOADS: TensorSchema((), "uint8")}
        self.payload = TensorSchemas(required=received)
        self.uplink = self._uplink()

    def _uplink(self) -> TensorSchemas:
        most = self._most_images()
        shown = {
            IMAGES: TensorSchema((None, *self.model.input_shape), "uint8", most),
            LABELS: TensorSchema((None,), "int64", most),
        }
        return TensorSchemas(optional={**float32_schemas(self.network), **shown})

    def _most_images(self) -> int:
        """Images that a client shows: each of at most C centroids chooses m."""
        return self.settings.images_per_centroid * self.model.num_classes

    def server_init(self, model: Model, _rng: np.random.Generator) -> ServerState:
        return ServerState(round_id=0, tensors=network_tensors(model.network))

    def server_model(self, state: ServerState) -> Network:
        return unpack_network(state.tensors, self.model)

    def downlink(self, state: ServerState, client_id: str) -> Payload:
        tensors = {name: state.tensors[name] for name in self.network.shapes}
        tensors[UPLOADS] = _FLAGS[is_asked(self.settings, state.tensors, client_id)]
        return Payload(round_id=state.round_id + 1, tensors=tensors)

    def rank(self, state: ServerState, candidates: Sequence[str]) -> Sequence[str]:
        """The next uploaders first: a round without any of them changes nothing."""
        return sorted(candidates, key=lambda one: not is_asked(self.settings, state.tensors, one))

    def client_update(
        self, _state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings = self.settings
        check_examples(settings, tools.training.x)
        z = pixelised(settings, tools.training.x, tools.boxes)
        start = unpack_network(payload.tensors, self.model)
        clusters = pseudo_labels(settings, start, z, tools)
        clustered = ClusteredImages(images=z, clusters=clusters)
        personal, local = train_pair(settings, start, clustered, tools)
        tensors: dict[str, NDArray[Any]] = {}
        if payload.tensors[UPLOADS]:
            rows = chosen_rows(settings, local, clustered, tools)
            tensors = network_tensors(local.network)
            tensors |= {IMAGES: to_bytes(settings, z[rows]), LABELS: tools.training.y[rows]}
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors=tensors,
            evaluation=evaluate(settings, personal, local, tools),
            loss=local.loss,
        )
        return ClientState(round_id=payload.round_id, tensors=network_tensors(personal)), update

    def check(self, update: Update) -> None:
        if not update.tensors:
            return
        images, labels = update.tensors[IMAGES], update.tensors[LABELS]
        classes = self.model.num_classes
        if len(images) != len(labels):
            raise RefusedError(
                "content", f"images: expected as many labels, got {len(images)} and {len(labels)}"
            )
        fewest = min(1, update.num_examples)
        most = min(self._most_images(), update.num_examples)
        if not fewest <= len(images) <= most:
            raise RefusedError(
                "content", f"images: expected {fewest} to {most} of them, got {len(images)}"
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
            raise RefusedError(
                "content",
                f"labels: expected 0 to {classes - 1}, got {labels.min()} to {labels.max()}",
            )

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        settings = self.settings
        uploads: dict[str, Upload] = {}
        read = partial(self._delivered, state, updates, uploads)
        old = {name: state.tensors[name] for name in self.network.shapes}
        buffer = tools.aggregator.combine(
            TensorMap.pack(old, self.network).buffer, TermsReader(read, len(updates))
        )
        if buffer is None:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        gallery = replaced(settings, gallery_of(state.tensors), uploads)
        combined = unpack_network(TensorMap(self.network, buffer), self.model)
        network = fine_tuned(settings, combined, gallery, tools)
        gallery = replace(gallery, members=ranked(settings, network, gallery, tools))
        tensors = {**network_tensors(network), **gallery.tensors()}
        return ServerState(round_id=state.round_id + 1, tensors=tensors)

    def _delivered(
        self, state: ServerState, updates: Updates, uploads: dict[str, Upload]
    ) -> Iterator[tuple[NDArray[np.float32], int]]:
        """Networks and weights, 0 but of the uploaders; their images go into ``uploads``."""
        nothing = np.zeros(0, np.float32), 0
        if isinstance(updates, Sequence):
            updates = sorted(updates, key=lambda update: update.client_id)
        for update in updates:
            asked = is_asked(self.settings, state.tensors, update.client_id)
            if not (update.tensors and update.num_examples and asked):
                yield nothing
                continue
            # Copied: an update is a view into a file that is not to stay in memory.
            uploads[update.client_id] = (
                np.array(update.tensors[IMAGES]),
                np.array(update.tensors[LABELS]),
            )
            network = {name: update.tensors[name] for name in self.network.shapes}
            yield TensorMap.pack(network, self.network).buffer, update.num_examples
