"""What a method does otherwise than the other methods of its experiment, by its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from protofleet.experiments.config import Experiment, Method
from protofleet.experiments.store import MethodResult
from protofleet.strategies.optimisers import Adam, Sgd

_KINDS = {one.__struct_config__.tag for one in (Adam, Sgd)}
_NOT_OF_THE_MODEL = ("decision_optimiser",)
"""Optimisers that move no parameter of a model: PartialFed's moves the choice of its layers."""


def makes_more_steps(runs: Sequence[MethodResult], base: Sequence[MethodResult]) -> bool:
    """Whether a method makes more steps in a round than another; False: settings are not told."""
    ours, theirs = _passes(runs), _passes(base)
    return ours is not None and theirs is not None and ours > theirs


def other_optimisers(experiment: Experiment, runs: Sequence[MethodResult]) -> dict[str, Any]:
    """A method's optimisers that are not the experiment's, by the names of their settings."""
    shared = experiment.training.get("optimiser")
    if shared is None:
        return {}
    usual = msgspec.convert(shared, Adam | Sgd)
    return {
        name: value
        for name, value in runs[0].settings.items()
        if _is_optimiser(name, value) and msgspec.convert(value, Adam | Sgd) != usual
    }


def own_settings(experiment: Experiment, method: Method) -> dict[str, Any]:
    """What a method's row in the file sets, its model and rounds included."""
    model = {} if method.model in (None, experiment.model) else {"model": method.model.name}
    return model | ({"rounds": method.rounds} if method.rounds else {}) | method.settings


def _passes(runs: Sequence[MethodResult]) -> float | None:
    """Steps in a round for each step of one pass over the examples; None: not told."""
    settings = runs[0].settings
    if not settings:
        return None
    steps = settings.get("epochs", 0) * settings.get("inner_steps", 1)
    return float(steps + settings.get("head_epochs", 0) + settings.get("personal_epochs", 0))


def _is_optimiser(name: str, value: Any) -> bool:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    return kind in _KINDS and name not in _NOT_OF_THE_MODEL
