"""*Alerts*: what an operator should look at, each with what to do about it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from protofleet.coordinator import events
from protofleet.coordinator.process.expiry import expirations
from protofleet.errors import ProtofleetError
from protofleet.federation.outcomes.trouble import troubles
from protofleet.hub.dashboard.pages import PageRequest
from protofleet.hub.dashboard.records import RunSnapshot
from protofleet.hub.dashboard.watch import WatchedRun
from protofleet.printable import printable
from protofleet.units import byte_text, clock_text

_SHOWN = 20
_HOUR_S, _DAY_S = 3600.0, 86_400.0
_DISK_SHARE, _DISK_BYTES = 0.05, 1e9
_OWNERS_RULE = "policy"
"""A device that its owner holds back refuses its task by it: nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing to look at.

    Attributes:
        level: ``problem`` or ``warning``.
        what: in a line; ``remedy``: what to do.
        devices: whom it is about, the first of them; ``more``: how many others.
    """

    level: str
    what: str
    remedy: str
    devices: tuple[str, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsView:
    """Attributes: problems first."""

    alerts: tuple[Alert, ...]


def details(watched: WatchedRun, _run: RunSnapshot, _query: Mapping[str, str]) -> tuple[Alert, ...]:
    """What expires: certificates of the broker, and grants of devices."""
    return tuple(_expiring(watched, time.time()))


def view(asked: PageRequest) -> AlertsView:
    """The page's content."""
    found = [*alerts_of(asked.run, asked.now_s), *asked.details]
    return AlertsView(alerts=tuple(sorted(found, key=lambda one: one.level)))


def alerts_of(run: RunSnapshot, now_s: float) -> tuple[Alert, ...]:
    """What the snapshot alone tells."""
    return (*_of_run(run), *_of_devices(run), *_of_events(run, now_s), *_of_results(run))


def _of_run(run: RunSnapshot) -> Iterator[Alert]:
    if run.operation == "down" and run.identity:
        yield Alert(
            level="problem",
            what="no coordinator serves this run on this machine",
            remedy="start it again: protofleet coordinator run FILE",
        )
    low = max(_DISK_SHARE * run.disk_bytes, _DISK_BYTES)
    if run.disk_bytes and run.disk_free_bytes < low:
        yield Alert(
            level="problem",
            what=f"the run folder's disk has {byte_text(run.disk_free_bytes)} left",
            remedy="make room: nothing is admitted once it is full",
        )
    if run.current is not None and run.current.phase == "open" and run.current.attempt >= 2:
        yield Alert(
            level="warning",
            what=f"round {run.round_id} was extended {run.current.attempt} times",
            remedy="lower the quorum or raise the deadline, or see who is missing on the page Now",
        )
    rollout = run.rollout
    if rollout is not None and rollout.state in ("paused", "taken_back") and rollout.reason:
        yield Alert(
            level="problem",
            what=f"the roll-out of a bundle is {rollout.state.replace('_', ' ')}: {rollout.reason}",
            remedy="see who failed: protofleet bundle status FILE",
        )


def _of_devices(run: RunSnapshot) -> Iterator[Alert]:
    remedies = {
        "silent": (
            "warning",
            "is not heard of",
            "are not heard of",
            "look after its power and its network",
        ),
        "offline": (
            "warning",
            "has lost its connection",
            "have lost their connection",
            "look after its power and its network",
        ),
        "refused": (
            "problem",
            "cannot take part",
            "cannot take part",
            "the device's own page says why; what to do: protofleet docs operating",
        ),
    }
    for state, (level, one_does, many_do, remedy) in remedies.items():
        names = [one.device_id for one in run.devices.values() if one.state == state]
        if names:
            counted = (
                f"1 device {one_does}" if len(names) == 1 else f"{len(names)} devices {many_do}"
            )
            shown, more = tuple(names[:_SHOWN]), max(0, len(names) - _SHOWN)
            yield Alert(level=level, what=counted, remedy=remedy, devices=shown, more=more)


def _of_events(run: RunSnapshot, now_s: float) -> Iterator[Alert]:
    recent = [one.said for one in run.events if one.time_s > now_s - _HOUR_S]
    refusals = [one for one in recent if isinstance(one, events.RefusalEvent)]
    counts = Counter(one.rule for one in refusals)
    counts.pop(_OWNERS_RULE, None)
    for rule, count in counts.most_common(8):
        names = list(dict.fromkeys(one.device_id for one in refusals if one.rule == rule))
        yield Alert(
            level="warning",
            what=f"refused in the last hour by the rule '{rule}': {count}",
            remedy="the devices' own pages have the reasons; what to do: protofleet docs operating",
            devices=tuple(names[:_SHOWN]),
            more=max(0, len(names) - _SHOWN),
        )
    if any(isinstance(one, events.AnotherCoordinator) for one in recent):
        yield Alert(
            level="problem",
            what="another coordinator announces this federation on the broker",
            remedy="end one of the two",
        )
    yield from _of_broker(run)


def _of_broker(run: RunSnapshot) -> Iterator[Alert]:
    kinds = (events.BrokerConnected, events.BrokerDisconnected)
    last = next((one for one in reversed(run.events) if isinstance(one.said, kinds)), None)
    if run.served and last is not None and isinstance(last.said, events.BrokerDisconnected):
        yield Alert(
            level="problem",
            what=f"no connection to the broker since {clock_text(last.time_s)}: "
            f"{printable(last.said.reason)}",
            remedy="the coordinator tries again by itself; look after the broker",
        )


def _of_results(run: RunSnapshot) -> Iterator[Alert]:
    for one in troubles(run.committed, run.outcome, run.device_troubles):
        yield Alert(level="warning", what=one.what, remedy=one.remedy)


def _expiring(watched: WatchedRun, now_s: float) -> Iterator[Alert]:
    if watched.config is None:
        return
    try:
        found = expirations(watched.config, now_s)
    except ProtofleetError as error:
        yield Alert(level="problem", what=str(error), remedy="restore the federation's folder")
        return
    for one in found:
        yield Alert(
            level="problem" if one.until_s < now_s + _DAY_S else "warning",
            what=one.text(now_s),
            remedy=one.remedy,
            devices=one.devices[:_SHOWN],
            more=max(0, len(one.devices) - _SHOWN),
        )
