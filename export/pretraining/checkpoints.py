"""Checkpoints: a model's tensors in one safetensors file, with what built it as metadata.

Metadata (all strings): ``model`` (a name or ``package.module:function``), ``settings`` (JSON
object), ``classes`` or ``targets`` (JSON list of names), ``objective``, and free entries of
provenance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from protofleet.durable import move_whole
from protofleet.errors import InputError, MissingDataError
from protofleet.export.models import build_model
from protofleet.export.pickled import refuse_pickled

_JSON: Mapping[str, type] = {"settings": dict, "classes": list, "targets": list}


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata; the file appears whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    copies = {name: value.detach().contiguous().clone() for name, value in tensors.items()}
    save_file(copies, partial, dict(metadata))
    move_whole(partial, path)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata of a checkpoint.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no safetensors file, or its metadata have another form.
    """
    if not path.is_file():
        raise MissingDataError(f"checkpoint '{path}': no such file; make one with pretrain")
    refuse_pickled(path, "checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise InputError(f"checkpoint '{path}': expected a safetensors file, {error}") from error
    for name, kind in _JSON.items():
        _check_json(path, name, metadata.get(name), kind)
    return tensors, metadata


def _check_json(path: Path, name: str, text: str | None, kind: type) -> None:
    try:
        found = kind() if text is None else json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, kind):
        wanted = "object" if kind is dict else "list"
        raise InputError(
            f"checkpoint '{path}': metadata '{name}': expected a JSON {wanted}, got '{text}'"
        )


def load_model(
    path: Path,
    spec: str | None = None,
    settings: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
) -> tuple[nn.Module, dict[str, str]]:
    """Build a model with a checkpoint's tensors, and read the checkpoint's metadata.

    A checkpoint may name a ``package.module:function``, which is imported and called: load only
    checkpoints from those whose code you would run.

    Args:
        path: the checkpoint.
        spec: the model; None: the one that the metadata name.
        settings: they win over those in the metadata, which count for that model only.
        sizes: settings where neither says any.

    Raises:
        MissingDataError: there is no such file.
        InputError: no model is named, or the tensors are another model's.
    """
    tensors, metadata = load_checkpoint(path)
    spec = spec or metadata.get("model")
    if spec is None:
        raise InputError(f"checkpoint '{path}': expected metadata 'model', got none")
    known = (
        json.loads(metadata.get("settings", "{}")) if metadata.get("model") in {None, spec} else {}
    )
    chosen = {**(sizes or {}), **known, **(settings or {})}
    model = build_model(spec, **chosen)
    missing, unused = fill(model, tensors)
    if missing or unused:
        raise InputError(
            f"checkpoint '{path}': tensor '{min(missing + unused)}' does not fit model "
            f"'{spec}' with settings {chosen}"
        )
    return model, metadata


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[list[str], list[str]]:
    """Copy tensors into a model where name and shape agree.

    Returns:
        Names of the model's tensors that stayed as they were, and of tensors not used.
    """
    own = model.state_dict()
    fitting = {
        name: value
        for name, value in tensors.items()
        if name in own and own[name].shape == value.shape
    }
    model.load_state_dict(fitting, strict=False)
    return sorted(own.keys() - fitting.keys()), sorted(tensors.keys() - fitting.keys())
