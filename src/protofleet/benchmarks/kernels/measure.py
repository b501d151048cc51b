"""Kernels against what a user would pick instead: the same numbers, the same threads, in turns.

A case makes its arrays and checks that both sides compute the same before anything is timed.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from protofleet.benchmarks._timing import within
from protofleet.benchmarks.kernels.comparison import KernelCase, KernelRow, Sides, kernel_row
from protofleet.errors import InputError, UnavailableError
from protofleet.kernels import set_threads

_MODULES = (
    "alp",
    "sinkhorn",
    "kmeans",
    "steps",
    "codecs",
    "sphere",
    "clusters",
)
_OURS = ""


class _Effort(NamedTuple):
    """Seconds for a case at one number of threads, and for all; samples per side.

    ``each_s`` bounds samples beyond the least, ``patience_s`` the least.
    """

    each_s: float
    patience_s: float
    total_s: float
    least: int
    most: int

    def shared(self, left_s: float, units: int) -> _Effort:
        """For the next of ``units`` measurements; one sample each when no time is left."""
        patience = self.patience_s if left_s > 0 else 0
        return self._replace(each_s=min(self.each_s, left_s / units), patience_s=patience)


_QUICK = _Effort(each_s=2, patience_s=3, total_s=33, least=3, most=9)
_FULL = _Effort(each_s=4, patience_s=30, total_s=float("inf"), least=5, most=15)


class Planned(NamedTuple):
    """A case and the numbers of threads to measure it with."""

    case: KernelCase
    threads: tuple[int, ...]


def load_cases() -> tuple[KernelCase, ...]:
    """Every declared case."""
    modules = (
        importlib.import_module(f"protofleet.benchmarks.kernels.cases.{name}") for name in _MODULES
    )
    return tuple(case for module in modules for case in module.CASES)


def plan(
    cases: Sequence[KernelCase],
    *,
    quick: bool,
    only: Sequence[str] = (),
    threads: Sequence[int] = (),
) -> list[Planned]:
    """What to measure.

    Args:
        cases: all there are.
        quick: only cases marked so.
        only: parts of kernels' names, in any case; empty for all.
        threads: instead of what cases declare, but a case for one thread stays at one; empty for
            what cases declare as far as this machine has the cores.

    Raises:
        InputError: no kernel has a name of ``only``, or nothing is left to measure.
    """
    names = list(dict.fromkeys(case.kernel for case in cases))
    for part in only:
        if not any(part.casefold() in name.casefold() for name in names):
            raise InputError(f"kernel '{part}': expected part of one of: {'; '.join(names)}")
    planned = [
        Planned(case, _threads(case, threads))
        for case in cases
        if (case.quick or not quick)
        and (not only or any(part.casefold() in case.kernel.casefold() for part in only))
    ]
    planned = [one for one in planned if one.threads]
    if not planned:
        raise InputError("bench kernels: nothing to measure with these options")
    return planned


def measure(
    planned: Sequence[Planned], tell: Callable[[str], object], *, quick: bool
) -> Iterator[list[KernelRow]]:
    """Rows case by case; ``tell`` gets a line when a case begins.

    Raises:
        UnavailableError: a peer is not installed.
    """
    effort = _QUICK if quick else _FULL
    started = time.perf_counter()
    units = sum(len(one.threads) for one in planned)
    for number, (case, threads) in enumerate(planned, start=1):
        passed = time.perf_counter() - started
        tell(f"{passed:4.0f} s  {number}/{len(planned)}  {case.kernel}  {case.case}")
        sides = _prepared(case)
        rows = []
        for count in threads:
            left = started + effort.total_s - time.perf_counter()
            rows += _rows(case, sides, count, effort.shared(left, units))
            units -= 1
        yield rows
        del sides  # before the next case makes its arrays


def _prepared(case: KernelCase) -> Sides:
    try:
        return case.prepare()
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"bench kernels: {case.kernel} is compared with {error.name}, which is not installed: "
            "pip install 'protofleet[all,dev]'"
        ) from error


def _threads(case: KernelCase, wanted: Sequence[int]) -> tuple[int, ...]:
    if wanted and len(case.threads) > 1:
        return tuple(wanted)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return tuple(n for n in case.threads if (n in wanted if wanted else n <= (cores or 1)))


def _rows(case: KernelCase, sides: Sides, threads: int, effort: _Effort) -> list[KernelRow]:
    _use_threads(threads)
    runs = {_OURS: sides.ours} | {peer.name: peer.run for peer in sides.peers if peer.run}
    samples = within(
        runs,
        budget_s=effort.each_s,
        patience_s=effort.patience_s,
        least=effort.least,
        most=effort.most,
    )
    return [
        kernel_row(case, threads, samples[_OURS], peer, samples.get(peer.name, ()))
        for peer in sides.peers
    ]


def _use_threads(count: int) -> None:
    """The same for our kernels, every loaded BLAS and OpenMP, and PyTorch if a case loaded it."""
    set_threads(count)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
