"""Early stopping: when the rounds of a run bring nothing more, or enough.

Source of patience and of a least improvement: Prechelt, "Early Stopping - But When?" (Neural
Networks: Tricks of the Trade, LNCS 1524, 1998), the criterion UP, here on the owners' own test
parts.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from protofleet.federation.section import Section, check
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.tensors import TaskName
from protofleet.units import duration_text

_SCORE_STEP = 0.005
"""Half a point of a share, or half a per cent of an error: by less a score has not improved."""
_DRIFT = 1.1
"""Times the loss at which a run came to rest: above it the data have changed."""
_LOSS_STEP = 0.01
"""Of the first round's mean loss: by less a loss has not fallen."""


class StopSettings(Section, frozen=True, kw_only=True):
    """``[stop]``: when a run ends before its last round.

    Attributes:
        patience: so many rounds in a row in which neither score nor loss improves; 0: any number.
        target: mean score on own test parts (accuracy, RMSE, macro-F1: what selects a run's best
            round) that is enough; absent: none is.
        rest_s: a run does not end but rests: after so many seconds a round looks whether the loss
            has come back, and then rounds follow each other again; 0: it ends.
    """

    patience: int = 50
    target: float | None = None
    rest_s: float = 0.0

    def __post_init__(self) -> None:
        check("patience", self.patience >= 0, "rounds, or 0 for no end", self.patience)
        target = self.target
        good = target is None or 0 < target < math.inf
        check("target", good, "a score above 0, a share and not per cent", target)
        check("rest_s", 0 <= self.rest_s < math.inf, "seconds, not negative", self.rest_s)


NEVER = StopSettings(patience=0)
"""A run has the rounds that it was given."""


class EarlyEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A run ended before its last round, or came to rest.

    Attributes:
        after: the round after which it did; of one that is ``lifted`` that after which it goes on.
        planned: how many rounds it was to have.
        why: its patience was exhausted, or its target was reached.
        since: the last round that brought something.
        metric: of ``score``.
        score, loss: means on own test parts in the last round; None: nobody has told.
        stop: the settings by which it ended.
        lifted: it goes on: more rounds were ordered, the settings or the data have changed.
    """

    after: int
    planned: int
    why: Literal["patience", "target"]
    since: int
    metric: MetricName
    score: float | None = None
    loss: float | None = None
    stop: StopSettings = StopSettings()
    lifted: bool = False

    def limit(self, planned: int, stop: StopSettings) -> int:
        """How many rounds a run with these settings has."""
        ends = self.holds(planned, stop) and not stop.rest_s
        return min(planned, self.after) if ends else planned

    def holds(self, planned: int, stop: StopSettings) -> bool:
        """Whether a run with these settings has ended there, or rests since."""
        return not self.lifted and planned <= self.planned and stop == self.stop

    def drifted(self, score: float | None, loss: float | None) -> bool:
        """Whether a round tells that the data have changed since then.

        Args:
            score: its mean of ``metric``; None: nobody has told.
            loss: its mean loss; None: nobody has told.
        """
        if loss is not None and self.loss is not None:
            return loss > _DRIFT * self.loss
        if score is None or self.score is None:
            return False
        lower = METRICS[self.metric].lower_is_better
        worse = score - self.score if lower else self.score - score
        return worse > 10 * _SCORE_STEP * (abs(self.score) if lower else 1.0)

    def change_text(self, score: float | None, loss: float | None) -> str:
        """What ``drifted`` has found, for people."""
        if loss is not None and self.loss is not None:
            return f"the mean loss on own test parts has gone from {self.loss:.4g} to {loss:.4g}"
        before, now = (self._told(one or 0.0) for one in (self.score, score))
        return f"{METRICS[self.metric].label} on own test parts has gone from {before} to {now}"

    @property
    def text(self) -> str:
        """Why, and how to go on, in a line."""
        if self.why == "target":
            why = f"the target of {self._told(self.stop.target or 0.0)} is reached"
        else:
            idle = self.after - self.since
            rounds = "1 round has" if idle == 1 else f"{idle} rounds have"
            why = f"{rounds} brought nothing since round {self.since}"
        now = (
            ""
            if self.score is None
            else f" ({METRICS[self.metric].label} {self._told(self.score)})"
        )
        if self.stop.rest_s:
            then = f"looks again every {duration_text(self.stop.rest_s)}"
            return f"rests after round {self.after} of {self.planned}: {why}{now}; {then}"
        remedy = "another target" if self.why == "target" else "patience = 0"
        return (
            f"ended after round {self.after} of {self.planned}: {why}{now}; "
            f"{remedy} in [stop] goes on"
        )

    def _told(self, score: float) -> str:
        metric = METRICS[self.metric]
        return metric.page_text(score) + (" %" if metric.is_share else "")


class EarlyStopping:
    """Follows the scores of a run round by round.

    Rounds in which nobody has told a score or a loss count neither for nor against it. Devices'
    scores and losses are means over who took part, so a wide patience is due where those change.

    Args:
        settings: of the federation.
        task: what form the scores have.
    """

    def __init__(self, settings: StopSettings, task: TaskName) -> None:
        self._settings, self._metric = settings, TASKS[task].selects
        self._score, self._loss, self._loss_step = math.inf, math.inf, 0.0
        self._since = self._idle = 0

    def add(
        self, round_id: int, score: float | None, loss: float | None, *, planned: int
    ) -> EarlyEnd | None:
        """Take the next round's.

        Args:
            round_id: that was aggregated.
            score: mean of the selecting score; None: nobody has told.
            loss: mean loss on own test parts; None: nobody has told.
            planned: how many rounds the run has otherwise, for what is told.

        Returns:
            The run's end, if this was the last round.
        """
        if score is None and loss is None:
            return None
        better = self._improved(score, loss)
        self._idle = 0 if better else self._idle + 1
        self._since = round_id if better else self._since
        why = self._why(score)
        if why is None:
            return None
        return EarlyEnd(
            after=round_id,
            planned=planned,
            why=why,
            since=self._since,
            metric=self._metric,
            score=score,
            loss=loss,
            stop=self._settings,
        )

    def _improved(self, score: float | None, loss: float | None) -> bool:
        """Whether either is better than in every round before, by more than a step."""
        better = False
        if loss is not None and math.isfinite(loss):
            self._loss_step = self._loss_step or _LOSS_STEP * loss
            if loss < self._loss - self._loss_step or math.isinf(self._loss):
                self._loss, better = loss, True
        if score is not None:
            lower = METRICS[self._metric].lower_is_better
            error, step = (score, _SCORE_STEP * score) if lower else (-score, _SCORE_STEP)
            if error < self._score - step:
                self._score, better = error, True
        return better

    def _why(self, score: float | None) -> Literal["patience", "target"] | None:
        target, patience = self._settings.target, self._settings.patience
        if target is not None and score is not None:
            lower = METRICS[self._metric].lower_is_better
            if score <= target if lower else score >= target:
                return "target"
        return "patience" if 0 < patience <= self._idle else None
