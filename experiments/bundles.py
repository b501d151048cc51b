"""Bundles of experiments: programs compiled once for a model, values drawn for every seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from protofleet.experiments.config import ModelSettings
from protofleet.export.build import BundleSpec, export_bundle, initial_values
from protofleet.export.models import build_model, has_setting
from protofleet.wire.blobs import encode
from protofleet.wire.bundle import Bundle, write_bundle
from protofleet.wire.manifest import Preprocessing

Form = tuple[tuple[str, ...], tuple[int, ...]]
"""Class names, and the shape of one example."""


def compile_model(
    model: ModelSettings,
    objectives: tuple[str, ...],
    form: Form,
    path: Path,
    key: Ed25519PrivateKey,
) -> None:
    """Export a model with a training program for each objective.

    Raises:
        InputError: no such model or setting.
        ExportError: a program differs from PyTorch, or the logits do not fit the classes.
    """
    classes, input_shape = form
    spec = BundleSpec(
        name=model.name,
        strategy="fedavg",
        classes=classes,
        preprocessing=Preprocessing(input_shape=input_shape),
        objectives=objectives,
    )
    export_bundle(_build(model, len(classes), 0), spec, out=path, key=key)


def reseed(
    compiled: Path, model: ModelSettings, seed: int, path: Path, key: Ed25519PrivateKey
) -> None:
    """Write the same programs with the initial values that a seed draws."""
    bundle = Bundle.open(compiled)
    manifest = bundle.manifest
    params, state = initial_values(_build(model, len(manifest.classes), seed))
    files = {program.file: bundle.read(program.file) for program in manifest.programs.values()}
    files["params.safetensors"] = encode(params)
    if state:
        files["state.safetensors"] = encode(state)
    write_bundle(path, manifest, files, key)


def _build(model: ModelSettings, classes: int, seed: int) -> nn.Module:
    settings: dict[str, Any] = dict(model.settings)
    if "classes" not in settings and has_setting(model.name, "classes"):
        settings["classes"] = classes
    torch.manual_seed(seed)
    return build_model(model.name, **settings)
