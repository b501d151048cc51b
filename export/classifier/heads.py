"""Replaces a model's head by one prototype per class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.classifier.calls import evaluation
from protofleet.export.classifier.parts import Parts
from protofleet.export.classifier.view import ClassifierView
from protofleet.export.models.layers import PrototypeHead


def features_width(model: nn.Module, parts: Parts, x: Tensor) -> int:
    """Width d of the features that the model makes of examples ``x``."""
    with evaluation(model):
        return int(ClassifierView(model, parts).features(x).shape[1])


def with_prototypes(model: nn.Module, parts: Parts, x: Tensor) -> nn.Module:
    """Put ``PrototypeHead`` in the place of the head; everything else keeps its values.

    Args:
        model: changed in place.
        parts: of it.
        x: a few examples.

    Raises:
        InputError: its head is not known, is no module, takes something else than features (B, d),
            or is not what makes the logits.
    """
    if parts.head is None:
        raise InputError(f"--head-kind prototypes: {parts.missing}")
    name = parts.head or "head"
    if not isinstance(dict(model.named_modules()).get(name), nn.Module):
        raise InputError(
            "--head-kind prototypes: the model's 'head' is a method; make it a torch.nn.Module, or "
            "name one with --head NAME"
        )
    with evaluation(model):
        logits = model(x)
    model.set_submodule(name, PrototypeHead(features_width(model, parts, x), logits.shape[-1]))
    try:
        with evaluation(model):
            again: Tensor = model(x)
    except Exception as error:
        what, *_ = f"{type(error).__name__}: {error}".splitlines()
        raise InputError(_unfit(name, what)) from error
    if again.shape != logits.shape or not torch.isfinite(again).all():
        raise InputError(_unfit(name, f"{tuple(again.shape)} instead of {tuple(logits.shape)}"))
    return model


def _unfit(name: str, why: str) -> str:
    return (
        f"--head-kind prototypes: '{name}' cannot be replaced, expected a module that takes "
        f"features (B, d) and gives the logits: {why}; name another with --head NAME"
    )
