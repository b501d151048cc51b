"""Bounds on the thread pools of numerical libraries, which read them once, when they are loaded."""

from __future__ import annotations

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def thread_variables(threads: int) -> dict[str, str]:
    """Environment of a process whose pools have at most ``threads`` threads each."""
    return dict.fromkeys(_VARIABLES, str(threads))
