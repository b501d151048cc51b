"""Compiles every kernel ahead of time, for images of SD cards and containers."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from protofleet.errors import InputError, ProtofleetError, UnavailableError
from protofleet.kernels.native.kernel import Kernel, cache_folder, make_cache_folder
from protofleet.kernels.native.switch import numba_enabled


class Warmed(NamedTuple):
    """How many kernels were compiled, how many were in the cache already, and where it is."""

    compiled: int
    kept: int
    folder: Path


class CacheState(NamedTuple):
    """How many kernels there are, and of how many the cache has no machine code.

    ``problem``: why nothing is compiled, or kept; else ''.
    """

    folder: Path
    total: int = 0
    missing: int = 0
    problem: str = ""


def cache_state() -> CacheState:
    """What ``warm`` would find; nothing is compiled."""
    folder = cache_folder()
    try:
        _check_compiler()
        _check_folder()
    except ProtofleetError as error:
        return CacheState(folder, problem=str(error))
    built = [kernel.is_built() for kernel in all_kernels()]
    return CacheState(folder, len(built), built.count(False))


def warm(report: Callable[[str, bool], None] = lambda _name, _compiled: None) -> Warmed:
    """Make sure that the machine code of every kernel is in the cache.

    It fits this processor model only, these sources and these versions of Numba and llvmlite.

    Args:
        report: gets a kernel's name, and True if it had to be compiled.

    Raises:
        UnavailableError: there is nothing to compile, as NumPy kernels run here.
        InputError: the cache folder cannot be written.
    """
    _check_compiler()
    _check_folder()
    results = []
    for kernel in all_kernels():
        results.append(kernel.build())
        report(kernel.name, results[-1])
    return Warmed(sum(results), len(results) - sum(results), cache_folder())


def all_kernels() -> tuple[Kernel, ...]:
    """Every kernel of this package, in the order of their names."""
    package = importlib.import_module("protofleet.kernels.compiled")
    found = {
        value.name: value
        for module in pkgutil.iter_modules(package.__path__)
        for value in _kernels_of(importlib.import_module(f"{package.__name__}.{module.name}"))
    }
    return tuple(found[name] for name in sorted(found))


def _kernels_of(module: ModuleType) -> list[Kernel]:
    return [value for value in vars(module).values() if isinstance(value, Kernel)]


def _check_compiler() -> None:
    if os.environ.get("PROTOFLEET_NUMBA") == "0":
        raise UnavailableError(
            "kernels: PROTOFLEET_NUMBA=0 selects the NumPy kernels, there is nothing to compile; "
            "unset it"
        )
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}:
        raise UnavailableError(
            "kernels: NUMBA_DISABLE_JIT lets them run as Python, nothing is compiled; unset it"
        )
    if not numba_enabled():
        raise UnavailableError(
            "kernels: Numba is not installed, so the NumPy kernels run and there is nothing to "
            "compile; for compiled ones: pip install 'protofleet[edge]'"
        )


def _check_folder() -> None:
    """A kernel runs without its cache; a folder made ahead of time would be of no use."""
    folder = cache_folder()
    try:
        make_cache_folder()
        probe = folder / f"probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"kernel cache '{folder}': expected a folder that can be written ({error.strerror})"
        ) from error
