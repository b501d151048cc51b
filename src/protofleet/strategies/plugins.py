"""Strategies that other packages bring: entry points of the group ``protofleet.strategies``.

An entry point is called as the strategy and names its class, a ``strategy.Strategy``. Installed
packages are code that somebody with the rights of this user has chosen; nothing that arrives over
the network can bring one.
"""

from __future__ import annotations

import logging
import re
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import Description

GROUP = "protofleet.strategies"
"""Of entry points."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledStrategies:
    """What the installed packages bring.

    Attributes:
        classes: by the strategy's name.
        refused: why one cannot be used, by name.
    """

    classes: dict[str, type[Strategy]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class Plugins:
    """The strategies of installed packages; each is loaded once, when a name is first asked for.

    Args:
        own: names that Protofleet uses itself.
    """

    def __init__(self, own: Iterable[str]) -> None:
        self._own = frozenset(own)

    @cached_property
    def _listed(self) -> dict[str, list[EntryPoint]]:
        """Entry points by name; the same one twice, of a package installed twice, counts once."""
        found: dict[str, list[EntryPoint]] = {}
        for point in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
            if point.value not in {one.value for one in found.get(point.name, [])}:
                found.setdefault(point.name, []).append(point)
        return found

    def clash(self, name: str) -> str:
        """Who else is called so; '' if nobody is. Loads nothing."""
        points = self._listed.get(name, [])
        owners = [*(["Protofleet itself"] if name in self._own else []), *map(_origin, points)]
        if len(owners) < 2:
            return ""
        return (
            f"{' and '.join(owners)} both bring one of this name; rename one in its entry point, "
            "or uninstall it"
        )

    @cached_property
    def installed(self) -> InstalledStrategies:
        """What loads, and why the others do not, which is also logged."""
        found = InstalledStrategies()
        for name, points in self._listed.items():
            try:
                if clash := self.clash(name):
                    raise ValueError(clash)  # noqa: TRY301 - one place tells of all that is wrong
                found.classes[name] = _loaded(points[0])
            except Exception as error:  # noqa: BLE001 - another package's code may raise anything
                found.refused[name] = str(error) or type(error).__name__
                _log.warning("strategy '%s' of an installed package: %s", name, error)
        return found


def _loaded(point: EntryPoint) -> type[Strategy]:
    """The class, if it is a strategy.

    Raises:
        ValueError: it is not, or its import failed.
    """
    try:
        found: Any = point.load()
    except Exception as error:
        raise ValueError(
            f"{_origin(point)} does not import: {type(error).__name__}: {error}"
        ) from error
    is_one = isinstance(found, type) and issubclass(found, Strategy)
    description = getattr(found, "description", None)
    if not is_one or not isinstance(description, Description):
        raise ValueError(
            f"{_origin(point)}: expected the class of a strategy (strategies.strategy.Strategy) "
            "with a description"
        )
    if description.name != point.name or not _NAME.fullmatch(point.name):
        raise ValueError(
            f"{_origin(point)}: expected its entry point and its description to have one name of "
            f"a-z, 0-9 and _, got '{point.name}' and '{description.name}'"
        )
    if lacking := sorted(found.__abstractmethods__):
        raise ValueError(f"{_origin(point)}: expected the methods {', '.join(lacking)}, too")
    try:
        found.settings_type()
    except (NameError, TypeError) as error:
        raise ValueError(
            f"{_origin(point)}: expected that 'settings' is annotated with its record: {error}"
        ) from error
    loaded: type[Strategy] = found
    return loaded


def _origin(point: EntryPoint) -> str:
    package = point.dist
    owner = "a package" if package is None else f"package {package.name} {package.version}"
    return f"{owner} ({point.value})"


class StrategyTable(UserDict[str, _T]):
    """Something of every strategy by its name: Protofleet's own, then those of packages.

    Args:
        own: of Protofleet's own; these are found without a look at the packages.
        plugins: the packages'.
        of: the same of another class.
    """

    def __init__(
        self, own: dict[str, _T], plugins: Plugins, of: Callable[[type[Strategy]], _T]
    ) -> None:
        super().__init__(own)
        self._plugins, self._of = plugins, of
        self._complete = False

    def _completed(self) -> dict[str, _T]:
        if not self._complete:
            self._complete = True  # before: a package may look in here while it is loaded
            for name, one in self._plugins.installed.classes.items():
                self.data.setdefault(name, self._of(one))
        return self.data

    def __missing__(self, name: str) -> _T:
        return self._completed()[name]

    def __contains__(self, name: object) -> bool:
        return name in self.data or name in self._completed()

    def __iter__(self) -> Iterator[str]:
        return iter(self._completed())

    def __len__(self) -> int:
        return len(self._completed())
