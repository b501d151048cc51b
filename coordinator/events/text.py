"""Parts of the sentences of events, with rich markup."""

from __future__ import annotations

from rich.markup import escape

from protofleet.federation.outcomes.outcome import Outcome
from protofleet.federation.records import PrivacyRecord, Scores
from protofleet.printable import printable
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.units import duration_text


def safe(text: str) -> str:
    """Text that is shown as it is, wherever it comes from."""
    return escape(printable(text))


def round_text(round_id: int, *, final: bool) -> str:
    """Which round; the final fit is none."""
    return "final fit" if final else f"round {round_id}"


def since_text(waited_s: float) -> str:
    """For how long; empty below a second."""
    return f", for {duration_text(waited_s)}" if waited_s >= 1 else ""


def privacy_text(spent: PrivacyRecord | None) -> str:
    """What was spent; empty without noise."""
    if spent is None:
        return ""
    if spent.repeatable:
        return "; [yellow]not private[/yellow]: its noise comes from privacy.noise_seed"
    return f"; ε = {spent.epsilon:.3g} at δ = {spent.delta:.3g}"


def outcome_text(outcome: Outcome | None) -> str:
    """Who gained and who lost; empty: nobody has told."""
    return "" if outcome is None else f"; {safe(outcome.line)}"


def scores_text(scores: Scores, which: str = "") -> str:
    """The first score of the task, of each section that has it; empty: none has."""
    headline = TASKS[scores.task].headline
    metric = METRICS[headline]
    parts = [
        f"{safe(name)} {metric.text(metrics[headline].mean)}"
        for name, metrics in scores.sections.items()
        if headline in metrics
    ]
    return f"; {which}{metric.label}: {', '.join(parts)}" if parts else ""
