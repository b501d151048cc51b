"""Personalised federated-learning algorithms, one file or package each (``docs/strategies.md``).

Other packages may bring more (``plugins``).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from protofleet.errors import InputError
from protofleet.strategies import methods
from protofleet.strategies.plugins import GROUP, Plugins, StrategyTable
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import Description
from protofleet.tensors import Model, TaskName

__all__ = ["DESCRIPTIONS", "STRATEGIES", "build", "check_known", "check_task"]


def _own() -> Iterator[type[Strategy]]:
    """Every class of the folder ``methods`` that is a strategy by its own description."""
    for found in pkgutil.iter_modules(methods.__path__):
        module = import_module(f"{methods.__name__}.{found.name}")
        for one in vars(module).values():
            is_here = isinstance(one, type) and one.__module__.startswith(module.__name__)
            if is_here and issubclass(one, Strategy) and "description" in vars(one):
                yield one


_OWN = {one.description.name: one for one in _own()}
_PLUGINS = Plugins(_OWN)

STRATEGIES: MutableMapping[str, type[Strategy]] = StrategyTable(_OWN, _PLUGINS, lambda one: one)
"""Strategies by name."""

DESCRIPTIONS: MutableMapping[str, Description] = StrategyTable(
    {name: one.description for name, one in _OWN.items()}, _PLUGINS, lambda one: one.description
)
"""What can be said of each without a model."""


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
    return STRATEGIES[name].build(settings, model)


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
