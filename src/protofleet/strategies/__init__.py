"""Personalised federated-learning algorithms, one file or package each (``docs/strategies.md``).

Other packages may bring more (``plugins``).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from protofleet.errors import InputError
from protofleet.strategies.methods import (
    apfl,
    apple,
    cdfl,
    ditto,
    fedala,
    fedali,
    fedamp,
    fedavg,
    fedavg_c,
    fedclar,
    feddyn,
    fedfomo,
    fedhkd,
    fedhome,
    fedhp,
    fednh,
    fedpac,
    fedper,
    fedphp,
    fedproto,
    fedprox,
    fedrep,
    fedsub,
    local,
    moon,
    partialfed,
    perfedavg,
    pfedme,
    protohar,
    scaffold,
)
from protofleet.strategies.plugins import GROUP, Plugins, StrategyTable
from protofleet.strategies.types import Description, Factory, Strategy
from protofleet.tensors import Model, TaskName

__all__ = ["DESCRIPTIONS", "STRATEGIES", "build", "check_known", "check_task"]

_MODULES = (
    apfl,
    apple,
    cdfl,
    ditto,
    fedala,
    fedali,
    fedamp,
    fedavg,
    fedavg_c,
    fedclar,
    feddyn,
    fedfomo,
    fedhkd,
    fedhome,
    fedhp,
    fednh,
    fedpac,
    fedper,
    fedphp,
    fedproto,
    fedprox,
    fedrep,
    fedsub,
    local,
    moon,
    partialfed,
    perfedavg,
    pfedme,
    protohar,
    scaffold,
)

_PLUGINS = Plugins(module.DESCRIPTION.name for module in _MODULES)

DESCRIPTIONS: MutableMapping[str, Description] = StrategyTable(
    {m.DESCRIPTION.name: m.DESCRIPTION for m in _MODULES}, _PLUGINS, lambda m: m.DESCRIPTION
)
"""What can be said of each strategy without a model."""

STRATEGIES: MutableMapping[str, Factory] = StrategyTable(
    {m.DESCRIPTION.name: m.build for m in _MODULES}, _PLUGINS, lambda m: m.build
)
"""Factories by name."""


def build(name: str, settings: Mapping[str, Any], model: Model) -> Strategy:
    """The strategy ``name`` for ``model``.

    Args:
        name: key of ``STRATEGIES``.
        settings: what differs from the strategy's defaults.
        model: the bundle's initial values.

    Raises:
        InputError: unknown name or setting, a wrong value, or a model or a task that does not fit.
    """
    check_known(name)
    check_task(DESCRIPTIONS[name], model.task)
    return STRATEGIES[name](settings, model)


def check_known(name: str) -> None:
    """Raise InputError unless there is exactly one strategy of this name; says what to do."""
    if clash := _PLUGINS.clash(name):
        raise InputError(f"strategy '{name}': {clash}")
    if name in STRATEGIES:
        return
    if reason := _PLUGINS.installed.refused.get(name):
        raise InputError(f"strategy '{name}': {reason}")
    raise InputError(
        f"strategy '{name}': unknown; expected one of {', '.join(sorted(STRATEGIES))}; if another "
        f"package brings it (entry point group {GROUP}), install that package on this machine"
    )


def check_task(description: Description, task: TaskName) -> None:
    """Raise InputError unless the strategy runs on bundles of this task; names those that do."""
    if task in description.tasks:
        return
    others = ", ".join(name for name, one in sorted(DESCRIPTIONS.items()) if task in one.tasks)
    raise InputError(
        f"strategy '{description.name}': expected a bundle of task "
        f"{' or '.join(description.tasks)}, because it looks at classes, got {task}; "
        f"use one of {others}"
    )
