"""Whether a bundle holds what a strategy needs, known before any device takes part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Manifest
from protofleet.errors import InputError
from protofleet.strategies import DESCRIPTIONS, build
from protofleet.strategies.types import Description, Strategy
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
    strategy = build(name, settings, model)
    if lack := _lack(manifest, strategy.description):
        raise InputError(
            f"strategy '{name}': needs {lack}, bundle '{manifest.name}' has "
            f"{', '.join(sorted(manifest.programs))}; export it anew: {_command(manifest, name)}"
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
            reasons[name] = str(error)
        else:
            reasons[name] = ""
    return reasons


def _lack(manifest: Manifest, description: Description) -> str:
    """A program that the strategy needs and the bundle has not."""
    trained = {program.objective for program in manifest.programs.values()}
    for objective in (*description.programs, *description.server_programs):
        if objective not in trained:
            return f"a training program '{objective}'"
    if description.features and "features" not in manifest.programs:
        return "a program 'features'"
    return ""


def _command(manifest: Manifest, name: str) -> str:
    """The export that makes a bundle for the strategy beside the one that this was made for."""
    model = manifest.provenance.get("model", "MODEL")
    wanted = dict.fromkeys((manifest.strategy.name, name))
    strategies = " ".join(f"--strategy {one}" for one in wanted)
    return f"protofleet export {model} {strategies} --out NEW.pfb"
