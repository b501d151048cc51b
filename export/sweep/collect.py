"""All cases of the sweep, by their groups."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util

from protofleet.errors import InputError
from protofleet.export.sweep.cases import SweepCase

_MODULES = (
    *("shapes", "numbers", "signals", "layers", "recurrent", "images", "sequences"),
    *("series", "activities", "brains", "sounds", "vision", "patches", "texts", "mixers", "tables"),
)


def all_cases(only: str | None = None) -> tuple[SweepCase, ...]:
    """The cases whose name or group a pattern fits, in the table's order.

    Args:
        only: a part of a name, or a pattern with ``*``; upper and lower case are the same.

    Raises:
        InputError: no case fits.
    """
    cases = [case for name in _MODULES for case in _of_module(name)]
    if only is None:
        return tuple(cases)
    pattern = f"*{only.lower()}*"
    found = tuple(
        case
        for case in cases
        if fnmatch.fnmatch(case.name.lower(), pattern) or case.group == only.lower()
    )
    if not found:
        groups = ", ".join(dict.fromkeys(case.group for case in cases))
        raise InputError(f"--only '{only}': no case is called that; the groups are {groups}")
    return found


def _of_module(name: str) -> tuple[SweepCase, ...]:
    full = f"{__package__}.{name}"
    if importlib.util.find_spec(full) is None:
        return ()
    cases: tuple[SweepCase, ...] = importlib.import_module(full).CASES
    return cases
