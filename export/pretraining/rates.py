"""A learning rate for central training: a short training with each rate of a ladder.

As devices do it (``federation.outcomes.calibration``), here with many examples and many epochs to
come: of rates that do almost as well as the best the smallest is taken, because a long training
wants less than a short one.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

from protofleet.errors import InputError
from protofleet.export.objectives import Inputs
from protofleet.export.pretraining.training import TrainOptions, TrainTask, loss_after
from protofleet.strategies.optimisers import LADDERS

STEPS = 100
_ENOUGH_WORSE = 2
_HOPELESS = 10.0
_ALMOST = 0.97
"""Of the best rate's gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSearch:
    """What was found.

    Attributes:
        losses: by rate, after ``STEPS`` steps on examples that were held out, or without those on
            training ones; those of rates beyond one that is hopeless are absent.
        start: the loss before.
        lr: the rate that is taken.
    """

    losses: dict[float, float]
    start: float
    lr: float

    @property
    def text(self) -> str:
        """For people, in a line."""
        tried = ", ".join(f"{rate:g}: {loss:.3g}" for rate, loss in self.losses.items())
        return (
            f"learning rate {self.lr:g}, by the loss after {STEPS} steps with each of some "
            f"({self.start:.3g} before; {tried})"
        )


def find_rate(task: TrainTask, data: Inputs, options: TrainOptions) -> RateSearch:
    """Try Adam's ladder; model and PyTorch's generator are left as they were.

    Args:
        task: what is to be trained.
        data: the examples by key.
        options: how; their rate is not looked at.

    Raises:
        InputError: arrays of unequal length, none or too few examples, or no finite loss.
    """
    before = copy.deepcopy(task.module.state_dict())
    losses: dict[float, float] = {}
    try:
        start = loss_after(task, data, options, steps=0)
        for rate in LADDERS["adam"]:
            task.module.load_state_dict(before)
            losses[rate] = loss_after(task, data, replace(options, lr=rate), steps=STEPS)
            last = list(losses.values())[-_ENOUGH_WORSE:]
            done = len(losses) > _ENOUGH_WORSE and min(last) > min(losses.values())
            if done or not losses[rate] < _HOPELESS * max(start, 1e-3):
                break
    finally:
        task.module.load_state_dict(before)
    gains = {rate: start - loss for rate, loss in losses.items() if math.isfinite(start - loss)}
    if not gains:
        raise InputError(
            f"training: the loss is not finite with any learning rate from {min(losses):g}; look "
            "at the scale of x, or give --lr"
        )
    best = max(gains.values())
    # A model that is as good as it gets is harmed least by the rate that does not lower its loss.
    least = _ALMOST * best if best > 0 else best
    return RateSearch(losses=losses, start=start, lr=min(r for r, g in gains.items() if g >= least))
