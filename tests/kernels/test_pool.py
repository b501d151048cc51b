"""Parts of a range on several threads."""

import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from protofleet.errors import InputError
from protofleet.kernels import set_threads
from protofleet.kernels.native import pool


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(pool._Setting, "threads", 1)
    with threadpool_limits():
        yield


@given(size=st.integers(0, 300), grain=st.integers(1, 50), threads=st.integers(1, 7))
def test_parts_cover_the_range_once_and_start_at_grains(size, grain, threads):
    pool._Setting.threads = threads
    parts = []
    pool.spread(lambda start, stop: parts.append((start, stop)), size, grain)
    parts.sort()
    assert [i for start, stop in parts for i in range(start, stop)] == list(range(size))
    assert all(start % grain == 0 for start, _ in parts)
    assert len(parts) == min(threads, -(-size // grain))


def test_parts_run_at_the_same_time():
    """Each part waits for the others: one after the other they would never end."""
    set_threads(3)
    barrier = threading.Barrier(3, timeout=10)
    pool.spread(lambda _start, _stop: barrier.wait(), 3, 1)


def test_what_a_part_raises_is_raised_after_all_have_ended():
    set_threads(2)
    done = threading.Event()

    def work(start, _stop):
        if start == 0:
            raise ArithmeticError("first")
        done.set()

    with pytest.raises(ArithmeticError, match="first"):
        pool.spread(work, 2, 1)
    assert done.is_set()


def test_a_part_on_another_thread_raises_too():
    set_threads(2)

    def work(start, _stop):
        if start:
            raise ArithmeticError("second")

    with pytest.raises(ArithmeticError, match="second"):
        pool.spread(work, 2, 1)


def test_an_interrupt_waits_for_the_parts_that_still_write():
    set_threads(2)
    begun, ended = threading.Event(), threading.Event()

    def work(start, _stop):
        if start:
            begun.set()
            time.sleep(0.2)
            ended.set()
        else:
            begun.wait()
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        pool.spread(work, 2, 1)
    assert ended.is_set()


def test_an_interrupt_while_waiting_waits_on():
    set_threads(2)
    ended = threading.Event()

    def work(start, _stop):
        if start:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        pool.spread(work, 2, 1)
    assert ended.is_set()


def test_where_threads_may_not_be_placed_they_still_run(monkeypatch):
    def refused(_thread, _cores):
        raise PermissionError

    set_threads(2)
    monkeypatch.setattr(os, "sched_setaffinity", refused)
    pool._workers.cache_clear()
    seen = set()
    pool.spread(lambda start, _stop: seen.add(start), 2, 1)
    assert seen == {0, 1}


def test_a_part_may_spread_its_own_work():
    set_threads(2)
    seen = set()

    def outer(start, _stop):
        pool.spread(lambda first, last: seen.add((start, first, last)), 4, 2)

    pool.spread(outer, 2, 1)
    assert {start for start, _, _ in seen} == {0, 1}
    assert sum(last - first for _, first, last in seen) == 8


def test_what_a_part_held_is_let_go():
    set_threads(2)
    held = np.zeros(3)
    reference = weakref.ref(held)
    pool.spread(lambda _start, _stop, array=held: array.sum(), 2, 1)
    del held
    gc.collect()
    deadline = time.monotonic() + 5
    while reference() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reference() is None


def test_products_have_their_threads_back_after_parts_of_one_thread_each():
    set_threads(2)
    with pool.one_blas_thread(), pool.one_blas_thread():
        assert {pool["num_threads"] for pool in blas()} == {1}
    assert {pool["num_threads"] for pool in blas()} == {2}


def blas():
    return [pool for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_set_threads_bounds_the_matrix_products_too():
    set_threads(1)
    assert all(pool["num_threads"] == 1 for pool in threadpool_info())
    assert pool.threads() == 1
    with pytest.raises(InputError, match="expected an integer of at least 1, got 0"):
        set_threads(0)


@pytest.mark.parametrize(("variable", "expected"), [("3", 3), ("", None), ("many", None)])
def test_without_a_setting_the_environment_or_the_cores_decide(monkeypatch, variable, expected):
    monkeypatch.setattr(pool._Setting, "threads", None)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert pool.threads() == (expected or len(os.sched_getaffinity(0)))


def test_a_forked_process_has_threads_of_its_own():
    set_threads(2)
    pool.spread(lambda _start, _stop: None, 2, 1)
    child = os.fork()
    if child == 0:
        seen = set()
        pool.spread(lambda start, _stop: seen.add(start), 2, 1)
        os._exit(0 if seen == {0, 1} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
