"""Whether a bundle holds what a strategy needs, known before any device takes part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Manifest
from protofleet.errors import InputError
from protofleet.strategies import DESCRIPTIONS, build
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.tasks import TASKS, objectives_of
from protofleet.strategies.types import Description, UnsuitableModelError
from protofleet.tensors import Model


def build_for(manifest: Manifest, model: Model, name: str, settings: Mapping[str, Any]) -> Strategy:
    """The strategy ``name`` for a bundle.

    Args:
        manifest: of the bundle.
        model: its initial values.
        name: of the strategy.
        settings: what differs from its defaults.

    Raises:
        InputError: no such strategy, a setting that it does not know, or the bundle lacks a part
            or a program that it needs; the message says how to export one that has it.
    """
    try:
        strategy = build(name, settings, model)
    except UnsuitableModelError as error:
        command = _command(manifest, name, error.flags)
        raise InputError(f"{error}; export it anew, other options as before: {command}") from error
    if lack := _lack(manifest, strategy.description):
        headless = strategy.description.reads_features and not manifest.head
        command = _command(manifest, name, "--head NAME" if headless else "")
        raise InputError(
            f"strategy '{name}': needs {lack}, bundle '{manifest.name}' has "
            f"{', '.join(sorted(manifest.programs))}; export it anew, other options as "
            f"before: {command}"
        )
    return strategy


def why_not(bundle: Bundle) -> dict[str, str]:
    """By strategy, why it cannot run on the bundle, in ascending order; ``""``: it can."""
    manifest, model = bundle.manifest, bundle.model()
    reasons = {}
    for name in sorted(DESCRIPTIONS):
        declared = manifest.strategy.settings if name == manifest.strategy.name else {}
        try:
            build_for(manifest, model, name, declared)
        except InputError as error:
            reasons[name] = str(error).removeprefix(f"strategy '{name}': ")
        else:
            reasons[name] = ""
    return reasons


def _lack(manifest: Manifest, description: Description) -> str:
    """A program that the strategy needs and the bundle has not."""
    trained = [program.objective for program in manifest.programs.values()]
    loss = TASKS[manifest.task].loss_of(filter(None, trained))
    for objective in objectives_of(description, loss):
        if objective not in trained:
            return f"a training program '{objective}'"
    if description.reads_features and "features" not in manifest.programs:
        return "a program 'features'"
    return ""


def _command(manifest: Manifest, name: str, flags: str) -> str:
    """The export that makes a bundle for the strategy beside the one that this was made for."""
    model = manifest.provenance.get("model", "MODEL")
    wanted = dict.fromkeys((manifest.strategy.name, name))
    strategies = [f"--strategy {one}" for one in wanted]
    task = "" if manifest.task == "classification" else f"--task {manifest.task}"
    words = ["protofleet export", model, *strategies, task, flags, "--out NEW.pfb"]
    return " ".join(word for word in words if word)
