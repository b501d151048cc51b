"""*Federations*: all runs that this hub shows, in a line each."""

from __future__ import annotations

from dataclasses import dataclass

from protofleet.federation.records import RoundRecord
from protofleet.hub.dashboard.pages import PageRequest
from protofleet.hub.dashboard.pages.alerts import alerts_of
from protofleet.hub.dashboard.records import RunSnapshot
from protofleet.strategies.tasks import METRICS, TASKS
from protofleet.units import NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationRow:
    """One run; ``score``: of its last scored round, with the section's name."""

    run: RunSnapshot
    online: int
    score: str
    alerts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationsView:
    """Attributes: in the order in which they were given."""

    rows: tuple[FederationRow, ...]


def view(asked: PageRequest) -> FederationsView:
    """The page's content."""
    rows = [
        FederationRow(
            run=run,
            online=sum(one.state == "online" for one in run.devices.values()),
            score=next(filter(None, map(_score, reversed(run.committed))), NOTHING),
            alerts=len(alerts_of(run, asked.now_s)),
        )
        for run in asked.runs.values()
    ]
    return FederationsView(rows=tuple(rows))


def _score(record: RoundRecord) -> str:
    headline = TASKS[record.scores.task].headline
    for name, metrics in record.scores.sections.items():
        if headline in metrics:
            metric = METRICS[headline]
            return f"{name} {metric.page_text(metrics[headline].mean)} {metric.title}"
    return ""
