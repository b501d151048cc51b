"""What is wrong with a run that works: results that nobody wants, each with what to do about it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from protofleet.federation.outcomes.calibration import Calibration
from protofleet.federation.outcomes.outcome import MARGIN, Outcome
from protofleet.federation.records import RoundRecord
from protofleet.strategies.tasks import METRICS

_SOME_ROUNDS = 3
"""After fewer it is too early to say."""
_FALLS = 0.99
"""Times the first mean loss: a loss that never goes below has not fallen."""
_RISE = 1.1
"""Times the best mean loss: above it, and twice risen in a row, the loss is said to rise."""
_SHOWN = 5
"""Devices by name."""
_OF_DEVICES = {
    "diverged": (
        "training ended in NaN or infinity in the last round",
        "lower the learning rate (protofleet device try finds one), and look for extreme values",
    ),
    "scale": (
        "the training examples are far from the bundle's scale",
        "look at their units; protofleet device prepare normalises readings as the bundle says",
    ),
}
"""What is wrong on devices, by the word of a presence or the rule of a refusal."""
DEVICE_TROUBLES = frozenset(_OF_DEVICES)


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: ``what`` in a line, and the ``remedy``."""

    what: str
    remedy: str

    def __str__(self) -> str:
        """Both in a line."""
        return f"{self.what}; {self.remedy}"


def troubles(
    rounds: Sequence[RoundRecord],
    outcome: Outcome | None,
    devices: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Trouble, ...]:
    """What is wrong, as far as devices and scores tell.

    Args:
        rounds: those that are done.
        outcome: what they have done for owners; None: nobody has told.
        devices: words of ``DEVICE_TROUBLES`` → the devices that have that; others are left out.
    """
    losses = (one.scores.own_loss for one in rounds if not one.final)
    of_losses = LossWatch(one.mean for one in losses if one is not None).trouble
    return (
        *(of_devices(what, names) for what, names in (devices or {}).items() if names),
        *(() if of_losses is None else (of_losses,)),
        *(() if outcome is None else _of_owners(rounds, outcome)),
    )


def of_devices(what: str, names: Sequence[str]) -> Trouble:
    """What is wrong on the devices of these names; ``what`` is of ``DEVICE_TROUBLES``."""
    said, remedy = _OF_DEVICES[what]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    counted = "1 device" if len(names) == 1 else f"{len(names)} devices"
    return Trouble(what=f"{said}, on {counted}: {', '.join(names[:_SHOWN])}{more}", remedy=remedy)


def of_calibration(chosen: Calibration) -> Trouble | None:
    """What to tell of a learning rate that was chosen; None: nothing."""
    if not chosen.ratios:
        return Trouble(
            what="no device could try learning rates, so the strategy's own is used, "
            f"{chosen.lr:g}",
            remedy="devices need four labelled training examples of a class: give optimiser.lr "
            "the number that a device finds with protofleet device try",
        )
    if not chosen.at_edge:
        return None
    largest = chosen.lr == chosen.rates[-1]
    return Trouble(
        what=f"the learning rate that was chosen, {chosen.lr:g}, is the "
        f"{'largest' if largest else 'smallest'} that was tried",
        remedy=f"a {'larger' if largest else 'smaller'} number for optimiser.lr may do better; "
        "where none helps, look at the labels and at the scale of the inputs",
    )


class LossWatch:
    """Follows the mean loss of a run round by round.

    Args:
        losses: of the rounds that are done, in order; those where nobody measured it left out.
    """

    def __init__(self, losses: Iterable[float] = ()) -> None:
        self._first, self._best = math.nan, math.inf
        self._last: deque[float] = deque(maxlen=_SOME_ROUNDS)
        self._told = ""
        for loss in losses:
            self.add(loss)

    def add(self, loss: float) -> Trouble | None:
        """Take the next round's; what is wrong now, if that was not so after the round before."""
        if not self._last:
            self._first = loss
        self._best = min(self._best, loss)
        self._last.append(loss)
        found = self.trouble
        before, self._told = self._told, "" if found is None else found.remedy
        return None if self._told == before else found

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong now; None: nothing, or it is too early to say."""
        if len(self._last) < _SOME_ROUNDS:
            return None
        early, middle, late = self._last
        if early < middle < late and late > _RISE * self._best:
            return Trouble(
                what=f"the mean loss on own test parts rises: {early:.4g}, {middle:.4g}, "
                f"{late:.4g}; it was {self._best:.4g} at best",
                remedy="lower the learning rate, or see whose losses rise on the dashboard's page "
                "Fleet",
            )
        if self._best > _FALLS * self._first > 0:
            return Trouble(
                what=f"the mean loss on own test parts does not fall: {self._first:.4g} after the "
                f"first round, {late:.4g} after the last",
                remedy="if the bundle's model is as good as it gets, end the run; else raise the "
                "learning rate if the loss hardly moves, lower it if it jumps (protofleet device "
                "try finds one), and look at the labels",
            )
        return None


def _of_owners(rounds: Sequence[RoundRecord], outcome: Outcome) -> Iterator[Trouble]:
    change, end = outcome.since_start, outcome.text(outcome.end)
    label = METRICS[outcome.metric].label
    enough = len(rounds) >= _SOME_ROUNDS
    if enough and outcome.chance is not None and outcome.end <= outcome.chance + MARGIN:
        yield Trouble(
            what=f"the owners' models are no better than always naming one class: {label} {end}, "
            f"which that has {outcome.text(outcome.chance)}",
            remedy="look at what devices feed the model (units, normalisation: it should be as in "
            "pretraining) and at the labels, then at the learning rate",
        )
    if change.high is not None and change.high < 0:
        start = outcome.text(outcome.start)
        yield Trouble(
            what=f"owners are worse off than with the bundle's own model: {label} {start} before, "
            f"{end} now; {change.harmed} of {outcome.told} have lost",
            remedy="lower the learning rate or the local epochs, take a strategy that stays near "
            "the shared model (fedprox, ditto), or gather more examples before training",
        )
    elif change.harmed > change.helped:
        yield Trouble(
            what=f"{change.harmed} of {outcome.told} owners have a worse model than the bundle's "
            f"own, {change.helped} a better one",
            remedy="lower the learning rate or the local epochs, or gather more examples before "
            "training; results list each owner (outcome.owners)",
        )
