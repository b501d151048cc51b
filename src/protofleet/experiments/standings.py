"""Which methods are as good as the best, and how far behind it the others are.

Noise. From three seeds on, a method is as good as the best one unless the 95 % interval of their
differences, seed by seed, is above 0 (Student's t). With fewer seeds the clients are all there is:
unless the difference is beyond the root of the sum of squares of both 95 % intervals over clients.
The server's model is one: its interval is over the pooled test examples, that of its accuracy, for
other metrics too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from protofleet.experiments.comparisons import mean_of
from protofleet.federation.outcomes.intervals import half_interval
from protofleet.federation.records import Spread

_PAIRED = 3
"""Seeds from which on differences are tested seed by seed."""
_BySeed = Mapping[int, Spread]


def as_good(best: _BySeed, other: _BySeed) -> bool | None:
    """Whether the best score is not above the other's beyond the noise (this module's rule).

    Args:
        best: scores by seed, over the clients.
        other: of the same seeds.

    Returns:
        None: too few seeds, and no clients to differ.
    """
    ours, theirs = [one.mean for one in best.values()], [other[seed].mean for seed in best]
    if ours == theirs:
        return True
    if len(best) >= _PAIRED:
        return mean_of([a - b for a, b in zip(ours, theirs, strict=True)]).low <= 0
    spreads = [*best.values(), *(other[seed] for seed in best)]
    if any(one.n < 2 for one in spreads):
        return None
    # The clients' intervals of each seed; a mean over seeds narrows neither by assumption.
    halves = [
        statistics.fmean(half_interval(one.std, one.n) for one in scores.values())
        for scores in (best, other)
    ]
    return statistics.fmean(ours) - statistics.fmean(theirs) <= math.hypot(*halves)


def ranked(scores: Mapping[str, _BySeed]) -> dict[str, tuple[float, bool | None]]:
    """Points behind the best of these, and whether that is within the noise, best first."""
    if not scores:
        return {}
    means = {
        label: statistics.fmean(one.mean for one in by_seed.values())
        for label, by_seed in scores.items()
    }
    order = sorted(means, key=lambda label: (-means[label], label))
    best = order[0]
    return {
        label: (means[best] - means[label], as_good(scores[best], scores[label])) for label in order
    }
