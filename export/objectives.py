"""Training objectives: what a training program minimises, and which inputs it needs for that.

``docs/export.md`` has their formulas. Vectors that come in as inputs are constants: no gradient
reaches them. Cosines take a vector of length zero as orthogonal to everything.

Sources:
    - MOON: Li, He, Song, "Model-Contrastive Federated Learning", arXiv:2103.16257.
    - prototype_mse, FedProto: Tan et al., "FedProto: Federated Prototype Learning across
      Heterogeneous Clients", arXiv:2105.00243.
    - prototype_distance, FedHP: Fonio et al., ESANN 2024.
    - CDFL: Khazaei et al.
    - fedphp, FedPHP: Li et al., "FedPHP: Federated Personalization with Inherited Private Models",
      ECML PKDD 2021; its kernels' bandwidths are PFLlib's.
    - hyper_knowledge, FedHKD: Chen, Wang, Vikalo, "The Best of Both Worlds: Accurate Global and
      Personalized Models through Federated Learning with Data-Free Hyper-Knowledge Distillation",
      arXiv:2301.08968.
    - reconstruction and head_cross_entropy, FedHome: Wu et al., "FedHome: Cloud-Edge based
      Personalized Federated Learning for In-Home Health Monitoring", IEEE TMC 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from protofleet.errors import ExportError
from protofleet.export.catalogue import OBJECTIVES as DECLARED
from protofleet.export.catalogue import Declared
from protofleet.export.models.layers import length, unit

Inputs = Mapping[str, Tensor]
"""A batch by key."""


class ModelCall(Protocol):
    """What an objective sees of a model (``export.classifier.ClassifierView``).

    An objective that looks at features and logits calls ``head(features(x))``: one pass.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (B, C)."""

    def features(self, x: Tensor) -> Tensor:
        """Pooled features (B, d)."""

    def head(self, features: Tensor) -> Tensor:
        """Logits (B, C) of features (B, d)."""

    def classify(self, rows: Tensor) -> Tensor:
        """Logits (n, C) of features (n, d) that no example gave: what the head makes of them."""

    def decode(self, features: Tensor) -> Tensor:
        """Examples (B, …) of features (B, d); raises ExportError without a decoder."""

    @property
    def prototypes(self) -> Tensor | None:
        """Prototypes (C, d) of the head; None: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(Declared):
    """A scalar to minimise.

    Attributes:
        loss: mean loss () of a batch, from the model and the inputs by key.
    """

    loss: Callable[[ModelCall, Inputs], Tensor]


def cross_entropy(model: ModelCall, inputs: Inputs) -> Tensor:
    """Mean cross-entropy of ``x`` and ``y``."""
    return functional.cross_entropy(model(inputs["x"]), inputs["y"])


def step_cross_entropy(model: ModelCall, inputs: Inputs) -> Tensor:
    """Mean cross-entropy of ``x`` and ``y``, over examples and their steps."""
    return functional.cross_entropy(model(inputs["x"]).flatten(0, 1), inputs["y"].flatten())


def mse(model: ModelCall, inputs: Inputs) -> Tensor:
    """Mean squared error of ``x`` and ``y``, over examples and targets."""
    return functional.mse_loss(model(inputs["x"]), inputs["y"])


def huber(model: ModelCall, inputs: Inputs) -> Tensor:
    """Mean Huber loss of ``x`` and ``y``: half the squared error up to 1, then linear."""
    errors = model(inputs["x"]) - inputs["y"]
    bounded = errors.clamp(-1, 1)
    return (bounded * (errors - bounded / 2)).mean()


def bce(model: ModelCall, inputs: Inputs) -> Tensor:
    """Mean cross-entropy of the sigmoids of the logits of ``x`` and ``y``, over labels."""
    logits = model(inputs["x"])
    return (functional.softplus(logits) - logits * inputs["y"]).mean()


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
    if model.prototypes is None:
        raise ExportError(
            "prototype_distance: expected a head with a prototype per class, got another: export "
            "with --head-kind prototypes"
        )
    cosines = (unit(model.prototypes) * unit(inputs["anchors"])).sum(1)
    return cross_entropy(model, inputs) + inputs["weight"] * (1 - cosines).sum()


def hyper_knowledge(model: ModelCall, inputs: Inputs) -> Tensor:
    """Cross-entropy + pulls of what the head makes of prototypes, and of features, to the common.

    ``prediction_weight`` times the mean over the classes that are ``present`` of the distance
    between the softened prediction of the class's prototype and ``predictions``, and
    ``feature_weight`` times the mean over the batch of the distance between features and their
    class's prototype, 0 for absent classes.
    """
    features = model.features(inputs["x"])
    present = inputs["present"]
    # Nothing of an absent prototype's row may be read, whatever stands there.
    prototypes = torch.where(present[:, None] > 0, inputs["prototypes"], 0.0)
    softened = torch.softmax(model.classify(prototypes) / inputs["temperature"], 1)
    apart = present * length(softened - inputs["predictions"])
    chosen = torch.index_select(prototypes, 0, inputs["y"])
    counts = torch.index_select(present, 0, inputs["y"])
    return (
        _head_loss(model, features, inputs)
        + inputs["prediction_weight"] * apart.sum() / present.sum().clamp(min=1)
        + inputs["feature_weight"] * (counts * length(features - chosen)).mean()
    )


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


def fedphp(model: ModelCall, inputs: Inputs) -> Tensor:
    """Weighted cross-entropy + what the model learns from the client's personal one.

    The squared maximum mean discrepancy of the batch's features to ``teacher``, and the
    Kullback-Leibler divergence of the predictions from those of ``teacher_outputs``.
    """
    features = model.features(inputs["x"])
    outputs = model.head(features)
    expected = functional.log_softmax(inputs["teacher_outputs"], 1)
    missed = expected - functional.log_softmax(outputs, 1)
    return (
        inputs["local"] * functional.cross_entropy(outputs, inputs["y"])
        + inputs["mmd"] * _discrepancy(features, inputs["teacher"])
        + inputs["kl"] * (expected.exp() * missed).sum(1).mean()
    )


_BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
"""Squared widths of the Gaussian kernels whose sum compares features."""


def _discrepancy(features: Tensor, others: Tensor) -> Tensor:
    """Squared distance of the means of two samples' rows in the kernels' space."""
    within = _affinities(features, features) + _affinities(others, others)
    return within - 2 * _affinities(features, others)


def _affinities(rows: Tensor, others: Tensor) -> Tensor:
    """Mean kernel over all pairs; the square is multiplied out, so no (B, B, d) array arises."""
    lengths = rows.square().sum(1, keepdim=True) + others.square().sum(1)
    apart = lengths - 2 * rows @ others.T
    kernels = [(apart * (-0.5 / width)).exp() for width in _BANDWIDTHS]
    return sum(kernels[1:], kernels[0]).mean(1).mean()


def reconstruction(model: ModelCall, inputs: Inputs) -> Tensor:
    """Cross-entropy + weight · mean squared difference of the decoded features to ``x``.

    Raises:
        ExportError: the model has no decoder.
    """
    features = model.features(inputs["x"])
    gaps = model.decode(features).flatten(1) - inputs["x"].flatten(1)
    return _head_loss(model, features, inputs) + inputs["weight"] * gaps.square().mean()


def head_cross_entropy(model: ModelCall, inputs: Inputs) -> Tensor:
    """Cross-entropy of the head alone, on ``features`` that come in.

    Raises:
        ExportError: the model's head takes none but its own.
    """
    return _head_loss(model, inputs["features"], inputs)


def _head_loss(model: ModelCall, features: Tensor, inputs: Inputs) -> Tensor:
    return functional.cross_entropy(model.head(features), inputs["y"])


def _pairs(anchors: Tensor, partners: Tensor, tau: Tensor) -> Tensor:
    """Mean over j of -log softmax over k of cos(anchor_j, partner_k)/tau, at k = j."""
    others = torch.logsumexp(anchors @ partners.T / tau, 1)
    return (others - (anchors * partners).sum(1) / tau).mean()


_LOSSES = (
    cross_entropy,
    step_cross_entropy,
    mse,
    huber,
    bce,
    moon,
    prototype_mse,
    prototype_distance,
    hyper_knowledge,
    reconstruction,
    head_cross_entropy,
    cdfl,
    fedphp,
)
OBJECTIVES: dict[str, Objective] = {
    loss.__name__: Objective(
        name=loss.__name__,
        inputs=DECLARED[loss.__name__].inputs,
        needs=DECLARED[loss.__name__].needs,
        loss=loss,
    )
    for loss in _LOSSES
}
"""Objectives by name; a new one is a function here, and what is known of it in ``catalogue``."""
