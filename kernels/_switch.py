"""Which of the two implementations runs, and with how many threads."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeVar

from protofleet.errors import InputError

_log = logging.getLogger(__name__)
_Function = TypeVar("_Function", bound=Callable[..., Any])

REDUCE = frozenset({"reassoc", "contract", "nsz"})
"""Lets sums run in vector lanes. Never ``nnan``/``ninf``: NaN must stay visible."""

FUSE = frozenset({"contract"})
"""Lets a product and a sum become one fused instruction; the order of operations stays."""


def numba_enabled() -> bool:
    """True if the Numba kernels run: Numba can be imported and PROTOFLEET_NUMBA is not ``0``."""
    return os.environ.get("PROTOFLEET_NUMBA", "1") != "0" and _numba_works()


@lru_cache(maxsize=1)
def _numba_works() -> bool:
    try:
        importlib.import_module("numba")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            _log.warning("numba misses '%s'; NumPy kernels run", error.name)
        return False
    except ImportError as error:
        _log.warning("numba is installed but cannot be used (%s); NumPy kernels run", error)
        return False
    return True


def backend(name: str) -> ModuleType:
    """The module ``_<name>_numba`` or ``_<name>_numpy`` of this package, imported when needed."""
    kind = "numba" if numba_enabled() else "numpy"
    return importlib.import_module(f"protofleet.kernels._{name}_{kind}")


def jit(flags: frozenset[str] = frozenset()) -> Callable[[_Function], _Function]:
    """Compile a function at its first call, cached on disk, with the named fast-math flags.

    Where neither the package's folder nor the user's cache folder can be written, the function is
    compiled anew in each process.
    """
    import numba  # noqa: PLC0415 - a device without Numba must be able to import this module

    def decorate(function: _Function) -> _Function:
        options = {"fastmath": set(flags), "nogil": True, "error_model": "numpy"}
        try:
            compiled: _Function = numba.njit(cache=True, **options)(function)
        except RuntimeError as error:
            _log.info("%s: compiled without a cache: %s", function.__name__, error)
            compiled = numba.njit(**options)(function)
        return compiled

    return decorate


def set_threads(n: int) -> None:
    """Bound the threads of the matrix products in this process to ``n``.

    The kernels' own loops are serial, so that a result never depends on a number of threads.

    Raises:
        InputError: ``n`` is below 1.
    """
    if n < 1:
        raise InputError(f"threads: expected at least 1, got {n}")
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - it scans all loaded libraries

    threadpool_limits(n)
