"""Bundles of rehearsals: programs compiled once for a model, values drawn for every seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.export.build import BundleSpec, export_bundle, initial_values
from protofleet.export.models import build_model, has_setting
from protofleet.tensors.blobs import encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model before any value is drawn.

    Attributes:
        name: a factory's, as ``build_model`` takes it.
        settings: its keywords; ``classes`` is filled in where the factory takes it.
        classes: class names.
        input_shape: of one example.
    """

    name: str
    settings: Mapping[str, Any]
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]


def compile_model(
    recipe: Recipe, objectives: tuple[str, ...], path: Path, key: Ed25519PrivateKey
) -> None:
    """Export a model with a training program for each objective.

    Raises:
        InputError: no such model or setting.
        ExportError: a program differs from PyTorch, or the logits do not fit the classes.
    """
    spec = BundleSpec(
        name=recipe.name,
        strategy="fedavg",
        classes=recipe.classes,
        preprocessing=Preprocessing(input_shape=recipe.input_shape),
        objectives=objectives,
    )
    export_bundle(_build(recipe, 0), spec, out=path, key=key)


def reseed(compiled: Path, recipe: Recipe, seed: int, path: Path, key: Ed25519PrivateKey) -> None:
    """Write the same programs with the initial values that a seed draws."""
    bundle = Bundle.open(compiled)
    manifest = bundle.manifest
    params, state = initial_values(_build(recipe, seed))
    programs = manifest.programs.values()
    paths = {path for program in programs for path in (program.file, program.tflite) if path}
    files = {path: bundle.read(path) for path in paths}
    files["params.safetensors"] = encode(params)
    if state:
        files["state.safetensors"] = encode(state)
    write_bundle(path, manifest, files, key)


def _build(recipe: Recipe, seed: int) -> nn.Module:
    settings: dict[str, Any] = dict(recipe.settings)
    if "classes" not in settings and has_setting(recipe.name, "classes"):
        settings["classes"] = len(recipe.classes)
    torch.manual_seed(seed)
    return build_model(recipe.name, **settings)
