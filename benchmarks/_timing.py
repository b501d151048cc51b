"""Times alternatives in turns, so that a machine's moods hit all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

# Idle OpenMP workers of the alternative before spin for some milliseconds; let them go to sleep.
_SETTLE_S = 0.03


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
    names = list(cases)
    for repeat in range(repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            time.sleep(_SETTLE_S)
            cases[name]()  # brings the caches and threads back
            samples[name].append(_sample(cases[name], calls))
    return samples


def _sample(run: Callable[[], object], calls: int) -> Sample:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    return Sample((time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls)
