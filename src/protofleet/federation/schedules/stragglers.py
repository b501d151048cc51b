"""How much of its local training a slow device is asked for.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks" (arXiv:1812.06127), section 3.2: devices do different amounts of work in a round, each as
much as it can, instead of being dropped. What they send counts by their examples, as always.

A share of work follows from the device's own past rounds alone, which stand in the ledger: asked
again after a crash, it is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from protofleet.federation.records import UpdateRecord
from protofleet.federation.settings import StragglerSettings

_STEPS = 64
"""Shares are so many parts of the whole: noise of the clock does not change every round's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRound:
    """One round to which a device was invited.

    Attributes:
        delivered: whether its update was accepted.
        train_s: how long its local training took; 0: it did not say.
        work: the share of it that it did.
    """

    delivered: bool
    train_s: float = 0.0
    work: float = 1.0

    @classmethod
    def of(cls, record: UpdateRecord | None) -> Self:
        """From the update's record; None: there was no update."""
        if record is None:
            return cls(delivered=False)
        train_s = record.costs.phases_s.get("train", 0.0)
        return cls(delivered=True, train_s=train_s, work=record.share_of_work)


def share_of_work(settings: StragglerSettings, past: Iterable[PastRound]) -> float:
    """The share of its local training that a device is asked for, above 0 up to 1.

    What fits into the budget by the speed of its last round that told one; half of that for each
    round since in which no update of it came in time. One that never delivered starts at 1, so a
    device that is too slow for its first round is found by halving.

    Args:
        settings: of the federation.
        past: the rounds to which it was invited, the last first.
    """
    if settings.budget_s is None:
        return 1.0
    missed, share = 0, 1.0
    for one in past:
        if not one.delivered:
            missed += 1
        elif one.train_s > 0:
            share = min(settings.budget_s * one.work / one.train_s, 1.0)
            break
    share *= 0.5**missed
    if share >= 1:
        return 1.0
    return min(max(math.floor(share * _STEPS) / _STEPS, settings.least_work), 1.0)
