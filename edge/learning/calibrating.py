"""A device's part in a calibration: it tries learning rates, and tells what came of each.

A round goes before: a task that comes meanwhile ends the trial, which then begins again. Nothing of
it is stored; a process that takes another's place does it again, with the same bits.
"""

from __future__ import annotations

import logging
import math
from itertools import pairwise

from protofleet.edge.parts import DeviceParts
from protofleet.errors import ProtofleetError, RefusedError
from protofleet.federation.client import MOST_SEED, RoundConfig
from protofleet.federation.outcomes.calibration import RATIOS
from protofleet.wire.messages import Announcement, CalibrationAnswer, CalibrationOrder, Task

_log = logging.getLogger(__name__)


class CalibrationClient:
    """Tries the rates that an announcement names.

    Args:
        device: its parts.

    Attributes:
        answer: for the presence.
    """

    def __init__(self, device: DeviceParts) -> None:
        self._learner, self._training = device.learner, device.training
        self._who, self._report = device.who, device.report
        self._order: CalibrationOrder | None = None
        self._strategy = ""
        self._trying: CalibrationOrder | None = None
        self.answer = CalibrationAnswer(key="")
        self._waiting: Task | None = None

    def announced(self, announcement: Announcement) -> None:
        """Take an announcement that fits the device."""
        order = announcement.calibration
        asked = isinstance(order, CalibrationOrder) and self._who.device_id in order.devices
        self._order = order if asked and isinstance(order, CalibrationOrder) else None
        self._strategy = announcement.strategy
        if self._trying is not None and self._trying != self._order:
            self._training.cancel()  # nobody waits for it

    def ends_for(self, task: Task) -> bool:
        """Whether a task has to wait, for a moment, for the end of a trial."""
        if self._trying is None:
            return False
        self._training.cancel()
        self._waiting = task
        return True

    def take_waiting(self) -> Task | None:
        """The task that has waited, once the trial has ended; None: there is none."""
        if self._trying is not None:
            return None
        task, self._waiting = self._waiting, None
        return task

    def advance(self, *, idle: bool) -> bool:
        """Begin if it is time, and take what has come; whether there is an answer to publish.

        Args:
            idle: whether the device is in no round, and its owner lets it train.
        """
        if self._trying is not None:
            return self._training.tried() and self._take(self._trying)
        order = self._order
        if order is None or not idle or self._answers(order):
            return False
        return self._begin(order)

    def _answers(self, order: CalibrationOrder) -> bool:
        """Whether there is nothing to begin: it is answered, or a task goes before."""
        return order.key == self.answer.key or self._waiting is not None

    def _begin(self, order: CalibrationOrder) -> bool:
        """Start, or answer at once that this device cannot."""
        if not self._who.sends.scores:
            return self._tell(order, ())  # a ratio of losses tells how well a model does
        try:
            check_order(order)
            strategy = self._learner.strategy(self._strategy, order.settings)
        except ProtofleetError as error:
            _log.warning("no learning rates can be tried: %s", error)
            return self._tell(order, ())
        rates = RoundConfig(round_id=1, seed=order.seed, rates=order.rates)
        self._training.try_rates(strategy, rates)
        self._trying = order
        self._report("calibrating", {"rates": order.rates})
        return False

    def _take(self, order: CalibrationOrder) -> bool:
        self._trying = None
        try:
            trained = self._training.take_trial()
        except Exception as error:  # noqa: BLE001 - whatever an order led to, the device stays
            _log.debug("trying rates failed", exc_info=True)
            _log.warning("no learning rates can be tried: %s", error)
            return self._tell(order, ())
        if trained is None:
            return False
        found = trained.update.tensors.get(RATIOS)
        seconds = trained.costs.phases_s.get("train", 0.0)
        return self._tell(order, () if found is None else tuple(found.tolist()), seconds)

    def _tell(
        self, order: CalibrationOrder, ratios: tuple[float, ...], seconds: float = 0.0
    ) -> bool:
        self.answer = CalibrationAnswer(key=order.key, ratios=ratios)
        told = {"rates": order.rates if ratios else (), "ratios": ratios, "train_s": seconds}
        self._report("calibrated", told)
        return True


def check_order(order: CalibrationOrder) -> None:
    """Raise RefusedError, rule ``calibration``, unless a device can try such rates."""
    rates = order.rates
    good = all(0 < rate < math.inf for rate in rates)
    if not (good and all(one < other for one, other in pairwise(rates))):
        raise RefusedError(
            "calibration", f"calibration: expected rates above 0, ascending, got {rates}"
        )
    if not 0 <= order.seed <= MOST_SEED:
        raise RefusedError("seed", f"calibration: expected a seed from 0 to {MOST_SEED}")
