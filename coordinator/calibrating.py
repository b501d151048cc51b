"""The calibration of a run: before its first round some devices try learning rates.

What devices tell travels in their presences and stands in the ledger before anything follows from
it; which rate is chosen of that is ``federation.outcomes.calibration``'s to say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from protofleet.coordinator import events
from protofleet.coordinator.devices.registry import Device
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.errors import RefusedError
from protofleet.federation.outcomes.calibration import (
    Calibration,
    CalibrationProgress,
    check_ratios,
    choose,
    drawn,
    ladder_of,
    with_rate,
)
from protofleet.federation.outcomes.trouble import of_calibration
from protofleet.federation.plan import Plan
from protofleet.federation.schedules.schedule import RoundPhase
from protofleet.wire.messages import MOST_CALIBRATING, CalibrationAnswer, CalibrationOrder


class CalibrationServer:
    """Asks devices, and chooses by what they tell.

    Args:
        plan: of the run.
        ledger: of the run folder.
        devices: all that are known, by id.
        sink: told what happens.
    """

    def __init__(
        self, plan: Plan, ledger: Ledger, devices: Mapping[str, Device], sink: events.Sink
    ) -> None:
        self._plan, self._ledger, self._devices, self._sink = plan, ledger, devices, sink
        self._progress = ledger.calibration() or CalibrationProgress()
        self._key = _key_of(plan, ledger.run.run_id)
        self._deadline: float | None = None
        self._gone_since: dict[str, float] = {}

    @property
    def open(self) -> bool:
        """Whether rounds wait for a rate."""
        return bool(self._plan.rates) and self._progress.chosen is None

    @property
    def chosen(self) -> Calibration | None:
        """The rate, and how it was chosen."""
        return self._progress.chosen

    @property
    def order(self) -> CalibrationOrder | None:
        """What is asked of devices now; None: nothing."""
        told = self._progress.told
        awaited = tuple(one for one in self._progress.asked if one not in told)
        if not self.open or not awaited:
            return None
        return CalibrationOrder(
            key=self._key,
            settings=with_rate(self._plan.settings, self._plan.rates[0]),
            seed=self._plan.config.seed,
            rates=self._plan.rates,
            devices=awaited[-MOST_CALIBRATING:],
        )

    def note(self, device_id: str, answer: CalibrationAnswer | msgspec.UnsetType) -> None:
        """Take what a device says of the rates, once.

        Raises:
            RefusedError: rule ``calibration``: no device measures that; nobody waits for it.
        """
        progress = self._progress
        awaited = device_id in progress.asked and device_id not in progress.told
        if not self.open or not awaited or not isinstance(answer, CalibrationAnswer):
            return
        if answer.key != self._key:
            return
        ratios = answer.ratios
        try:
            if ratios:
                check_ratios(np.array(ratios), len(self._plan.rates))
        except RefusedError:
            ratios = ()
            raise
        finally:
            self._keep(told={**progress.told, device_id: ratios})

    def watch(self, live: Collection[str], *, ready: bool, now: float) -> bool:
        """Ask, or choose, if it is time; whether that has changed what is to be announced.

        Args:
            live: devices that are there.
            ready: whether they are enough for the first round.
            now: monotonic seconds.
        """
        if self._deadline is None:
            self._deadline = now + self._plan.config.round.deadline_s
        if now < self._deadline and self._awaited(live, now):
            return False
        if not self._progress.ratios:
            if not ready:
                return False
            asked = self._progress.asked
            able = [one for one in live if one not in asked and self._devices[one].calibrates]
            more = drawn(able, self._plan.config.seed)
            if more and len(asked) + len(more) <= MOST_CALIBRATING:
                self._ask(more, now)
                return True
        self._choose()
        return True

    def _awaited(self, live: Collection[str], now: float) -> bool:
        """Whether a device that was asked may answer yet."""
        for name in self._progress.asked:
            if name in live:
                self._gone_since.pop(name, None)
            else:
                self._gone_since.setdefault(name, now)
        lost = now - self._plan.config.liveness.grace_s
        return any(
            name not in self._progress.told and self._gone_since.get(name, now) >= lost
            for name in self._progress.asked
        )

    def _ask(self, names: tuple[str, ...], now: float) -> None:
        self._keep(asked=(*self._progress.asked, *names))
        self._deadline = now + self._plan.config.round.deadline_s
        rates = self._plan.rates
        self._sink(
            events.Calibrating(
                devices=len(names), tries=len(rates), smallest=rates[0], largest=rates[-1]
            )
        )

    def _choose(self) -> None:
        kind, rates = ladder_of(self._plan.settings)
        chosen = choose(kind, rates, self._progress.ratios, otherwise=self._plan.own_lr)
        self._keep(chosen=chosen)
        self._sink(
            events.Calibrated(
                lr=chosen.lr,
                kind=chosen.kind,
                devices=chosen.devices,
                rates=chosen.rates,
                ratios=chosen.ratios,
                text=chosen.text,
            )
        )
        trouble = of_calibration(chosen)
        if trouble is not None:
            self._sink(events.ResultsTrouble(what=trouble.what, remedy=trouble.remedy))

    def _keep(self, **changes: object) -> None:
        self._progress = msgspec.structs.replace(self._progress, **changes)
        self._ledger.run.note_calibration(self._progress)


def known_rate(plan: Plan, ledger: Ledger) -> float | None:
    """The learning rate that devices have found; None: they are to, or the settings have one.

    A run that an earlier version has begun goes on with the strategy's own.
    """
    if not plan.rates:
        return None
    progress, state = ledger.calibration(), ledger.state()
    if progress is not None and progress.chosen is not None:
        return progress.chosen.lr
    begun = state.round_id > 1 or state.phase is not RoundPhase.WAITING
    return plan.own_lr if begun else None


def _key_of(plan: Plan, run_id: str) -> str:
    """Names a run's order, over restarts of its coordinator."""
    text = json.dumps({"run_id": run_id, **plan.identity}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
