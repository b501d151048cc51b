"""How far strategies' rounds are from their oracles' in float64; ``make oracles`` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

_LARGEST: dict[str, list[OracleRounds]] = {}


class OracleRounds:
    """Rounds of one method whose tensors are compared with an oracle's.

    Args:
        method: its name in tables.
        cohorts: names of the clients of each round, a letter each.
        tolerance: largest relative error.

    Attributes:
        error: the largest so far.
    """

    def __init__(self, method: str, cohorts: Sequence[str], tolerance: float) -> None:
        self.cohorts, self.tolerance, self.error = cohorts, tolerance, 0.0
        _LARGEST.setdefault(method, []).append(self)

    def agree(self, found, expected) -> None:
        """Fail unless a tensor is the oracle's: largest difference by the largest number there."""
        expected = np.asarray(expected, np.float64)
        largest = np.abs(expected).max(initial=0)
        difference = np.abs(np.asarray(found, np.float64) - expected).max(initial=0)
        error = float(difference / largest if largest else difference)
        self.error = max(self.error, error)
        assert error <= self.tolerance, f"relative error {error:.2g}, at most {self.tolerance:.2g}"


def oracle_table() -> Iterator[str]:
    """Lines of Markdown: each method's largest error over all tests of this process."""
    yield "| method | cases | rounds | clients, in a round | largest relative error | tolerance |"
    yield "|---|---:|---:|---:|---:|---:|"
    for method, cases in sorted(_LARGEST.items(), key=lambda item: item[0].lower()):
        worst = max(cases, key=lambda one: one.error)
        cohorts = [cohort for one in cases for cohort in one.cohorts]
        sizes = sorted(map(len, cohorts))
        yield (
            f"| {method} | {len(cases)} | {max(len(one.cohorts) for one in cases)} "
            f"| {len(set(''.join(cohorts)))}, {sizes[0]} to {sizes[-1]} "
            f"| {worst.error:.1e} | {worst.tolerance:.0e} |"
        )
