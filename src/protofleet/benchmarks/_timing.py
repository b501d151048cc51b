"""Times alternatives in turns, so that a machine's moods hit all of them equally."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

# Idle workers of the alternative before spin: OpenMP's for some milliseconds, OpenBLAS's for a
# hundred. They sleep when this process has used next to no processor time in a while.
_WHILE_S = 0.01
_NEXT_TO_NO_S = 0.001
_PATIENCE_S = 0.3

# A sample of a fast call is the mean of as many as fit in this.
_SAMPLE_S = 0.03


class Sample(NamedTuple):
    """Mean seconds of a call: on the wall's clock, and of processor time on all threads."""

    wall_s: float
    cpu_s: float


def in_turns(
    cases: Mapping[str, Callable[[], object]], *, repeats: int, calls: int = 1, warmup: int = 2
) -> dict[str, list[Sample]]:
    """Time every case ``repeats`` times, the order rotating.

    Args:
        cases: what to time, by name.
        repeats: samples per case.
        calls: calls in one sample.
        warmup: calls before the first sample.
    """
    for run in cases.values():
        for _ in range(warmup):
            run()
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name in _rotated(list(cases), repeat):
            _settle()
            cases[name]()  # brings the caches and threads back
            samples[name].append(_sample(cases[name], calls))
    return samples


def within(
    cases: Mapping[str, Callable[[], object]],
    *,
    budget_s: float,
    patience_s: float,
    least: int,
    most: int,
) -> dict[str, list[Sample]]:
    """Time every case in turns, as often as a budget allows; every case at least once.

    Args:
        cases: what to time, by name; each has been called before.
        budget_s: no further turn starts that would probably end after it,
        patience_s: except for the least, which are given up only beyond this.
        least: samples per case.
        most: samples per case at most.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    calls: dict[str, int] = {}
    began = time.perf_counter()
    for turn in range(most):
        started = time.perf_counter()
        for name in _rotated(list(cases), turn):
            _settle()
            first = _sample(cases[name], 1)  # brings the caches and threads back
            if name not in calls:
                calls[name] = _calls(cases[name], first.wall_s)
            samples[name].append(_sample(cases[name], calls[name]) if calls[name] > 1 else first)
        now = time.perf_counter()
        next_s = (now - began) + (now - started)
        if next_s > (budget_s if turn + 1 >= least else max(budget_s, patience_s)):
            break
    return samples


def _settle() -> None:
    deadline = time.perf_counter() + _PATIENCE_S
    while time.perf_counter() < deadline:
        used = time.process_time()
        time.sleep(_WHILE_S)
        if time.process_time() - used < _NEXT_TO_NO_S:
            return


def _rotated(names: list[str], turn: int) -> list[str]:
    first = turn % len(names)
    return names[first:] + names[:first]


def _calls(run: Callable[[], object], once_s: float) -> int:
    """How many calls make a sample; a slow one is a sample by itself."""
    if once_s < _SAMPLE_S:
        once_s = min(once_s, _sample(run, 3).wall_s)
    return math.ceil(_SAMPLE_S / max(once_s, 1e-7))


def _sample(run: Callable[[], object], calls: int) -> Sample:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    return Sample((time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls)
