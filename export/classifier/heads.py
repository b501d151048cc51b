"""Replaces a model's head by one that has a prototype or a direction for each class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.classifier.calls import evaluation
from protofleet.export.classifier.parts import Parts
from protofleet.export.classifier.view import ClassifierView
from protofleet.export.models.layers import head_of


def features_width(model: nn.Module, parts: Parts, x: Tensor) -> int:
    """Width d of the features that the model makes of examples ``x``."""
    with evaluation(model):
        return int(ClassifierView(model, parts).features(x).shape[1])


def unfit_head(model: nn.Module, parts: Parts, x: Tensor) -> str:
    """Why the head alone does not classify features (``ClassifierView.classify``); ``""``: it does.

    Args:
        model: of which ``x`` are examples.
        parts: of it, with a head.
        x: a few examples.
    """
    with evaluation(model):
        return ClassifierView(model, parts).cannot_classify(x)


def with_head(model: nn.Module, parts: Parts, x: Tensor, kind: str) -> nn.Module:
    """Put a head of ``HEADS`` in the place of the model's; everything else keeps its values.

    Args:
        model: changed in place.
        parts: of it.
        x: a few examples.
        kind: name in ``HEADS``.

    Raises:
        InputError: its head is not known, is no module, takes something else than features (B, d),
            or is not what makes the logits.
    """
    if parts.head is None:
        raise InputError(f"--head-kind {kind}: {parts.missing}")
    name = parts.head or "head"
    if not isinstance(dict(model.named_modules()).get(name), nn.Module):
        raise InputError(
            f"--head-kind {kind}: the model's 'head' is a method; make it a torch.nn.Module, or "
            "name one with --head NAME"
        )
    with evaluation(model):
        logits = model(x)
    model.set_submodule(name, head_of(kind, features_width(model, parts, x), logits.shape[-1]))
    try:
        with evaluation(model):
            again: Tensor = model(x)
    except Exception as error:
        what, *_ = f"{type(error).__name__}: {error}".splitlines()
        raise InputError(_unfit(kind, name, what)) from error
    if again.shape != logits.shape or not torch.isfinite(again).all():
        got = f"{tuple(again.shape)} instead of {tuple(logits.shape)}"
        raise InputError(_unfit(kind, name, got))
    return model


def _unfit(kind: str, name: str, why: str) -> str:
    return (
        f"--head-kind {kind}: '{name}' cannot be replaced, expected a module that takes "
        f"features (B, d) and gives the logits: {why}; name another with --head NAME"
    )
