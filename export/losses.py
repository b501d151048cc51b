"""The losses. Vectors that come in as inputs are constants: no gradient reaches them.

Sources:
    - MOON: Li, He, Song, "Model-Contrastive Federated Learning", arXiv:2103.16257.
    - prototype_mse, FedProto: Tan et al., "FedProto: Federated Prototype Learning across
      Heterogeneous Clients", arXiv:2105.00243.
    - prototype_distance, FedHP: Fonio et al., ESANN 2024.
    - CDFL: Khazaei et al.

Cosines take a vector of length zero as orthogonal to everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from protofleet.errors import ExportError
from protofleet.export.geometry import length, unit

Inputs = Mapping[str, Tensor]
"""A batch by key."""


class ModelCall(Protocol):
    """What an objective sees of a model; every module of ``protofleet.export.models`` fits.

    An objective that looks at features and logits calls ``head(features(x))``: one pass.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (B, C)."""

    def features(self, x: Tensor) -> Tensor:
        """Pooled features (B, d)."""

    def head(self, features: Tensor) -> Tensor:
        """Logits (B, C) of features (B, d)."""


def cross_entropy(model: ModelCall, inputs: Inputs) -> Tensor:
    """Mean cross-entropy of ``x`` and ``y``."""
    return functional.cross_entropy(model(inputs["x"]), inputs["y"])


def moon(model: ModelCall, inputs: Inputs) -> Tensor:
    """Cross-entropy + mu · pull of every feature to ``positive``, away from ``negative``.

    With two candidates, -log softmax is softplus of their difference.
    """
    features = model.features(inputs["x"])
    direction = unit(features)
    closer = (direction * unit(inputs["positive"])).sum(1)
    farther = (direction * unit(inputs["negative"])).sum(1)
    contrast = functional.softplus((farther - closer) / inputs["tau"]).mean()
    return _head_loss(model, features, inputs) + inputs["mu"] * contrast


def prototype_mse(model: ModelCall, inputs: Inputs) -> Tensor:
    """Cross-entropy + weight · mean squared difference to the class's prototype.

    Examples of a class that is not ``present`` add nothing, but count in the mean.
    """
    features = model.features(inputs["x"])
    chosen = torch.index_select(inputs["prototypes"], 0, inputs["y"])
    counts = torch.index_select(inputs["present"], 0, inputs["y"])
    # Nothing of an absent prototype's row may be read, whatever stands there.
    gaps = torch.where(counts[:, None] > 0, features - chosen, 0.0)
    return _head_loss(model, features, inputs) + inputs["weight"] * gaps.square().mean()


def prototype_distance(model: ModelCall, inputs: Inputs) -> Tensor:
    """Cross-entropy over distances to the model's prototypes + weight · Σ (1 - cos to anchors).

    Raises:
        ExportError: the model's head has no prototypes.
    """
    prototypes = getattr(model.head, "prototypes", None)
    if not isinstance(prototypes, Tensor):
        raise ExportError(
            "prototype_distance: expected a model with head.prototypes (cnn_prototypes, "
            f"mlp_prototypes), got {type(model).__name__}"
        )
    cosines = (unit(prototypes) * unit(inputs["anchors"])).sum(1)
    return cross_entropy(model, inputs) + inputs["weight"] * (1 - cosines).sum()


def cdfl(model: ModelCall, inputs: Inputs) -> Tensor:
    """Loss of CDFL's local network on pixelised examples ``z`` beside the originals ``x``.

    Batch statistics see ``z`` first, then ``x``.
    """
    features = model.features(inputs["z"])
    classification = functional.cross_entropy(model.head(features), inputs["y"])
    originals = model.features(inputs["x"])
    anchors = unit(features)
    return (
        classification
        + inputs["contrastive"] * _pairs(anchors, unit(originals), inputs["tau"])
        + inputs["distillation"] * _pairs(anchors, unit(inputs["teacher"]), inputs["tau"])
        + inputs["clustering"] * length(features - inputs["centroids"]).mean()
    )


def _head_loss(model: ModelCall, features: Tensor, inputs: Inputs) -> Tensor:
    return functional.cross_entropy(model.head(features), inputs["y"])


def _pairs(anchors: Tensor, partners: Tensor, tau: Tensor) -> Tensor:
    """Mean over j of -log softmax over k of cos(anchor_j, partner_k)/tau, at k = j."""
    others = torch.logsumexp(anchors @ partners.T / tau, 1)
    return (others - (anchors * partners).sum(1) / tau).mean()
