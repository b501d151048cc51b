"""*Operate*: pause, resume and stop the run, let devices in or out, publish a bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from protofleet.coordinator.ledger.rollout_rows import STAGES, Rollout
from protofleet.coordinator.membership.invitations import EnrolmentStatus
from protofleet.hub.dashboard.actions import read_standings
from protofleet.hub.dashboard.pages import PageRequest
from protofleet.hub.dashboard.records import RunSnapshot
from protofleet.hub.dashboard.trail import AuditRecord
from protofleet.hub.dashboard.watch import WatchedRun
from protofleet.printable import printable

_LISTED = 200
_DONE, _REFUSED = 40, 10
_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """What the federation's folder tells.

    Attributes:
        has_file: whether the hub knows the federation file; ``has_keys``: whether that names keys.
    """

    has_file: bool
    has_keys: bool
    standings: tuple[EnrolmentStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneRow:
    """A line of the audit trail; ``device``: whom it was about; ``failed``: whether it was not."""

    record: AuditRecord
    device: str
    failed: bool
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperateView:
    """Attributes as the page shows them.

    Attributes:
        device: whom a form is about at first.
        done: what was done with this run, and who signed in, the latest first; None: not to be
            shown.
    """

    members: Members
    listed: tuple[EnrolmentStatus, ...]
    more: int
    device: str
    rollout: Rollout | None
    stage: str
    counts: tuple[tuple[str, int], ...]
    done: tuple[DoneRow, ...] | None


def details(watched: WatchedRun, _run: RunSnapshot, _query: Mapping[str, str]) -> Members:
    """Who is a member."""
    config = watched.config
    return Members(
        has_file=config is not None,
        has_keys=config is not None and config.keys is not None,
        standings=read_standings(watched),
    )


def view(asked: PageRequest) -> OperateView:
    """The page's content."""
    members: Members = asked.details
    run = asked.run
    return OperateView(
        members=members,
        listed=members.standings[:_LISTED],
        more=max(0, len(members.standings) - _LISTED),
        device=asked.query.get("id", "")[:64],
        rollout=run.rollout,
        stage="" if run.rollout is None else STAGES[run.rollout.stage],
        counts=tuple(sorted(Counter(one.state for one in run.rollout_devices).items())),
        done=None if asked.trail is None else _done(asked.trail, run.folder),
    )


def _done(trail: tuple[AuditRecord, ...], folder: str) -> tuple[DoneRow, ...]:
    own = [
        one for one in trail if one.target in ("", folder) or one.target.startswith(f"{folder}/")
    ]
    # Strangers' refusals push no act out of sight.
    refused = [one for one in own if one.refused][:_REFUSED]
    acts = [one for one in own if not one.refused][:_DONE]
    return tuple(
        DoneRow(
            record=one,
            device=one.target.removeprefix(folder).removeprefix("/"),
            failed=one.outcome.startswith("failed"),
            outcome=printable(one.outcome)[:_TEXT] + _times(one.refused),
        )
        for one in sorted((*acts, *refused), key=lambda one: one.time_s, reverse=True)
    )


def _times(refused: int) -> str:
    return f" ({refused} times)" if refused > 1 else ""
