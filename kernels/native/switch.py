"""Which of the two implementations runs."""

from __future__ import annotations

import importlib
import logging
import os
from functools import cache, lru_cache
from importlib.util import find_spec
from types import ModuleType

_log = logging.getLogger(__name__)


def numba_enabled() -> bool:
    """True if compiled kernels run: Numba is installed and PROTOFLEET_NUMBA is not ``0``."""
    return os.environ.get("PROTOFLEET_NUMBA", "1") != "0" and _numba_works()


@lru_cache(maxsize=1)
def _numba_works() -> bool:
    """Numba itself is not imported: only compiling needs it."""
    try:
        if find_spec("numba") is None:
            return False
        importlib.import_module("llvmlite.binding")
    except (ImportError, OSError) as error:
        if not isinstance(error, ModuleNotFoundError):
            _log.warning("llvmlite cannot be used (%s); NumPy kernels run", error)
        return False
    return True


def backend(name: str) -> ModuleType:
    """The module of that name in ``compiled/`` or in ``plain/``, imported when needed."""
    return _module(f"protofleet.kernels.{'compiled' if numba_enabled() else 'plain'}.{name}")


@cache
def _module(name: str) -> ModuleType:
    return importlib.import_module(name)
