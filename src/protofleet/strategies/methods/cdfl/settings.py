"""Settings of CDFL, and the forms of its images: hidden, as bytes, as numbers."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import pixelise
from protofleet.strategies.bounds import (
    MOST_BATCH,
    MOST_PASSES,
    Bounds,
    Passes,
    Share,
    Weight,
    check_range,
)
from protofleet.strategies.optimisers import Adam, Sgd
from protofleet.strategies.training import Training

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class CdflSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training of both networks, what clients show, and what the server does with it.

    Attributes:
        pixelise: ``boxes`` hides the regions that come with the data, ``whole`` all of an image.
        factor: how many times fewer pixels a hidden region has (a).
        value_range: the examples' values that stand for black and white.
        tau: temperature of both contrastive terms.
        contrastive: weight of the term between pixelised and original examples (λ1).
        distillation: weight of the term between local and personalised features (λ2).
        clustering: weight of the distance to the centroid (λ3).
        restarts: runs of k-means from which the pseudo-labels are the best.
        images_per_centroid: images that a centroid chooses (m).
        uploaders: share of the known clients that upload in the next round.
        newcomers: whether a client that joins after round 1 uploads in its first round.
        validation: share of a client's images on which the server ranks it.
        split_seed: draws those images.
        server_epochs: passes over the clients' images after averaging; 0: none.
        server_batch_size: examples per step of the server.
        server_optimiser: of the server; made anew each round.
    """

    epochs: int = 5
    batch_size: int = 32
    optimiser: Adam | Sgd = Sgd(lr=0.01, momentum=0.9, weight_decay=1e-5)
    pixelise: Literal["boxes", "whole"] = "boxes"
    factor: Passes = 8
    value_range: tuple[float, float] = (0.0, 1.0)
    tau: Annotated[float, Bounds(1e-6)] = 0.5
    contrastive: Weight = 0.1
    distillation: Weight = 0.1
    clustering: Weight = 0.05
    restarts: Passes = 10
    images_per_centroid: Passes = 3
    uploaders: Share = 0.5
    newcomers: bool = True
    validation: Share = 0.2
    split_seed: Annotated[int, Bounds(0)] = 0
    server_epochs: Annotated[int, Bounds(0, MOST_PASSES)] = 1
    server_batch_size: Annotated[int, Bounds(1, MOST_BATCH)] = 32
    server_optimiser: Adam | Sgd = Sgd(lr=0.01, momentum=0.9)

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.value_range
        check_range("value_range", high - low, low=1e-6)


def check_examples(settings: CdflSettings, x: Floats) -> None:
    """Raise InputError unless the images ``x`` have values that bytes can stand for."""
    low, high = settings.value_range
    slack = (high - low) / 255
    if x.size and not low - slack <= x.min() <= x.max() <= high + slack:
        raise InputError(
            f"setting 'value_range': expected examples from {low:g} to {high:g}, got "
            f"{x.min():g} to {x.max():g}; set the range of the data"
        )


def pixelised(settings: CdflSettings, x: Floats, boxes: Floats | None) -> Floats:
    """Pixelised examples ``(n, C, H, W)``.

    Raises:
        InputError: regions are to be hidden and the data have none.
    """
    if not len(x) or settings.pixelise == "whole":
        return pixelise(x, None, settings.factor)
    if boxes is None:
        raise InputError(
            "strategy 'cdfl': expected boxes with the data (pixelise = \"boxes\"), got none; give "
            "the data set a file of boxes (its option 'boxes'), or set pixelise = \"whole\" to "
            "hide whole images"
        )
    return pixelise(x, boxes, settings.factor)


def to_bytes(settings: CdflSettings, x: Floats) -> Bytes:
    """Values of the range as 0 to 255, the nearest."""
    low, high = settings.value_range
    levels: Floats = np.rint(np.clip((x - low) * np.float32(255 / (high - low)), 0, 255))
    return levels.astype(np.uint8)


def to_values(settings: CdflSettings, images: Bytes) -> Floats:
    """What 0 to 255 stand for, float32."""
    low, high = settings.value_range
    return images.astype(np.float32) * np.float32((high - low) / 255) + np.float32(low)
