"""Threads for kernels: contiguous parts of a range at the same time, and matrix products in them.

Kernels release the interpreter's lock, so Python's own threads suffice; they sleep when idle,
where OpenMP's would spin. What a range is cut into depends on the number of threads: only kernels
whose results do not depend on the cut may be spread.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

from protofleet.errors import InputError

Work = Callable[[int, int], None]


class _Setting:
    threads: int | None = None


class _Here(threading.local):
    serving = False


_here = _Here()


def threads() -> int:
    """How many threads a kernel may use: what was set, else OMP_NUM_THREADS, else every core."""
    if _Setting.threads is None:
        named = os.environ.get("OMP_NUM_THREADS", "")
        _Setting.threads = int(named) if named.isdecimal() and int(named) else _cores()
    return _Setting.threads


def set_threads(n: int) -> None:
    """Bound the threads of kernels and of matrix products in this process to ``n``.

    Results do not depend on it.

    Raises:
        InputError: ``n`` is below 1.
    """
    if not isinstance(n, int) or n < 1:
        raise InputError(f"threads: expected an integer of at least 1, got {n}")
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - it scans all loaded libraries

    threadpool_limits(n)
    _Setting.threads = n


def spread(work: Work, size: int, grain: int) -> None:
    """Call ``work(start, stop)`` over parts that together cover ``range(size)``.

    Waking a thread takes some 40 µs: below 0.3 ms of work, a grain of the whole size is faster.

    Args:
        work: called from several threads at once, each time with another part.
        size: length of the range.
        grain: a part starts at a multiple of it, and is not smaller but for the last.

    Raises:
        BaseException: the first one that ``work`` raised, after all parts have ended.
    """
    blocks = -(-size // grain)
    parts = 1 if _here.serving else min(threads(), blocks)  # a worker that waits for others hangs
    if parts <= 1:
        if size:
            work(0, size)
        return
    cuts = [min(size, grain * (blocks * part // parts)) for part in range(parts + 1)]
    workers = _workers()
    workers.prepare(parts - 1)
    ended = _Ended(parts)
    for part in range(1, parts):
        workers.add(work, cuts[part], cuts[part + 1], ended)
    _run(work, cuts[0], cuts[1], ended)
    if failure := ended.wait():
        raise failure


def _run(work: Work, start: int, stop: int, ended: _Ended) -> None:
    try:
        work(start, stop)
    except BaseException as error:  # noqa: BLE001 - spread raises it
        ended.add(error)
    else:
        ended.add(None)


class _Ended:
    """How parts ended. An interrupted wait goes on: nobody may write after ``spread`` is left."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._failures: list[BaseException | None] = []
        self._news: SimpleQueue[None] = SimpleQueue()

    def add(self, failure: BaseException | None) -> None:
        self._failures.append(failure)
        self._news.put(None)

    def wait(self) -> BaseException | None:
        interrupt: BaseException | None = None
        while len(self._failures) < self._parts:
            try:  # news may get lost with an interrupt, what they are about does not
                self._news.get()
            except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt, raised in the end
                interrupt = error
        return interrupt or next((f for f in self._failures if f is not None), None)


class _Workers:
    """Threads that wait for parts; as many as were ever needed at once, and no more."""

    def __init__(self) -> None:
        self._parts: SimpleQueue[tuple[Work, int, int, _Ended]] = SimpleQueue()
        self._ids: list[int] = []
        self._lock = threading.Lock()
        self._avoided: int | None = None

    def prepare(self, count: int) -> None:
        """Have ``count`` threads, all of them on other cores than the caller's.

        A thread that wakes up is often put on the core of the one that woke it, and then waits
        there for milliseconds although other cores are idle.
        """
        core = _core()
        if len(self._ids) >= count and core == self._avoided:
            return
        with self._lock:
            while len(self._ids) < count:
                started: SimpleQueue[int] = SimpleQueue()
                name = f"kernel-{len(self._ids) + 1}"
                threading.Thread(
                    target=self._serve, args=(started,), name=name, daemon=True
                ).start()
                self._ids.append(started.get())
            if core is not None:
                others = os.sched_getaffinity(0) - {core}
                for thread in self._ids if others else ():
                    with suppress(OSError):  # refused by sandboxes: only speed is lost
                        os.sched_setaffinity(thread, others)
            self._avoided = core

    def add(self, work: Work, start: int, stop: int, ended: _Ended) -> None:
        self._parts.put((work, start, stop, ended))

    def _serve(self, started: SimpleQueue[int]) -> None:
        started.put(threading.get_native_id())
        _here.serving = True
        while True:
            work, start, stop, ended = self._parts.get()
            _run(work, start, stop, ended)
            # Otherwise the arrays that the last part held would live until the next one.
            del work, ended


@lru_cache(maxsize=1)
def _workers() -> _Workers:
    return _Workers()


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_workers.cache_clear)


def _core_reader() -> Callable[[], int | None]:
    try:
        return ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError, TypeError):  # not Linux: the system places threads as it likes
        return lambda: None


_core = _core_reader()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
