"""*Operate*: pause, resume and stop the run, let devices in or out, publish a bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from protofleet.coordinator.invitations import Standing
from protofleet.coordinator.rollout_rows import STAGES, Rollout
from protofleet.hub.dashboard.actions import read_standings
from protofleet.hub.dashboard.pages import PageRequest
from protofleet.hub.dashboard.records import RunSnapshot
from protofleet.hub.dashboard.watch import WatchedRun

_LISTED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """What the federation's folder tells.

    Attributes:
        has_file: whether the hub knows the federation file; ``has_keys``: whether that names keys.
    """

    has_file: bool
    has_keys: bool
    standings: tuple[Standing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperateView:
    """Attributes as the page shows them; ``device``: whom a form is about at first."""

    members: Members
    listed: tuple[Standing, ...]
    more: int
    device: str
    rollout: Rollout | None
    stage: str
    counts: tuple[tuple[str, int], ...]


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
    )
