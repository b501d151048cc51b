"""Matrix products inside parts that already run on threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from protofleet.kernels._pool import threads


class _Limit:
    """What concurrent users share: the first one limits, the last one lifts."""

    lock = threading.Lock()
    users = 0
    lift: Callable[[], None]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Matrix products run in one thread each: it is their callers that run at the same time.

    The library's own threads would wait for each other in every product, and for long if the
    machine has other work.
    """
    if threads() == 1:
        yield
        return
    with _Limit.lock:
        if not _Limit.users:
            _Limit.lift = _controller().limit(limits=1, user_api="blas").restore_original_limits
        _Limit.users += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.users -= 1
            if not _Limit.users:
                _Limit.lift()


@functools.lru_cache(maxsize=1)
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - it scans all loaded libraries

    return ThreadpoolController()
