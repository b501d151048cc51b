"""What is wrong with a run that works: results that nobody wants, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from protofleet.federation.outcome import MARGIN, Outcome
from protofleet.federation.records import RoundRecord
from protofleet.strategies.tasks import METRICS

_SOME_ROUNDS = 3
"""After fewer it is too early to say."""
_FALLS = 0.99
"""Times the first mean loss: a loss that never goes below has not fallen."""
_RISE = 1.1
"""Times the best mean loss: above it, and twice risen in a row, the loss is said to rise."""


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: ``what`` in a line, and the ``remedy``."""

    what: str
    remedy: str

    def __str__(self) -> str:
        """Both in a line."""
        return f"{self.what}; {self.remedy}"


def troubles(rounds: Sequence[RoundRecord], outcome: Outcome | None) -> tuple[Trouble, ...]:
    """What is wrong as far as scores tell.

    Args:
        rounds: those that are done.
        outcome: what they have done for owners; None: nobody has told.
    """
    return (*_of_losses(rounds), *(() if outcome is None else _of_owners(rounds, outcome)))


def _of_losses(rounds: Sequence[RoundRecord]) -> Iterator[Trouble]:
    losses = [one.scores.own_loss.mean for one in rounds if one.scores.own_loss is not None]
    last = losses[-_SOME_ROUNDS:]
    if len(last) < _SOME_ROUNDS:
        return
    if last[0] < last[1] < last[2] and last[2] > _RISE * min(losses):
        yield Trouble(
            what=f"the mean loss on own test parts rises: {last[0]:.4g}, {last[1]:.4g}, "
            f"{last[2]:.4g}; it was {min(losses):.4g} at best",
            remedy="lower the learning rate, or see whose losses rise on the dashboard's page "
            "Fleet",
        )
    elif min(losses) > _FALLS * losses[0] and losses[0] > 0:
        yield Trouble(
            what=f"the mean loss on own test parts does not fall: {losses[0]:.4g} after the first "
            f"round, {losses[-1]:.4g} after the last",
            remedy="if the bundle's model is as good as it gets, end the run; else raise the "
            "learning rate if the loss hardly moves, lower it if it jumps (protofleet device try "
            "finds one), and look at the labels",
        )


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
