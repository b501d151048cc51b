"""Times alternatives in turns, so that a machine's moods hit all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

# Idle OpenMP workers of the alternative before spin for some milliseconds; let them go to sleep.
_SETTLE_S = 0.03


def in_turns(
    cases: Mapping[str, Callable[[], object]], *, repeats: int, calls: int = 1, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds per call of every case, ``repeats`` times, the order rotating.

    Args:
        cases: what to time, by name.
        repeats: samples per case.
        calls: calls in one sample; the sample is their mean.
        warmup: calls before the first sample.
    """
    for run in cases.values():
        for _ in range(warmup):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for repeat in range(repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            time.sleep(_SETTLE_S)
            cases[name]()  # brings the caches and threads back
            seconds[name].append(_sample(cases[name], calls))
    return seconds


def _sample(run: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
