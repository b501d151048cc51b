"""A run's figures for Prometheus, at ``/metrics``: docs/monitoring.md.

They are made of the dashboard's snapshots, which are read from the run folder, so no coordinator
notices who asks. Names follow https://prometheus.io/docs/practices/naming.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from protofleet.hub.dashboard.access import Access
from protofleet.hub.dashboard.records import RunSnapshot
from protofleet.hub.dashboard.watch import Watch

PATH = "/metrics"
MOST_DEVICES = 1000
"""From so many on there are no figures of single devices: each label is a series of its own."""
_SECONDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
"""Upper bounds of the histogram: from a rehearsal to a night."""
_STATES = (
    "online",
    "held",
    "refused",
    "offline",
    "left",
    "silent",
    "revoked",
    "unregistered",
    "unknown",
)
_LABELS = ("federation", "run")


class MetricsPage:
    """Answers Prometheus.

    Args:
        watch: the runs.
        access: says whether a token is needed.
    """

    def __init__(self, watch: Watch, access: Access) -> None:
        self._watch, self._access = watch, access

    async def endpoint(self, request: Request) -> Response:
        """All runs' figures, in the format that is asked for."""
        if self._access.to_look and not self._has_token(request):
            headers = {"WWW-Authenticate": "Bearer"}
            return PlainTextResponse("expected the token of the metrics\n", 401, headers)
        runs = await self._watch.snapshots()
        try:
            encode, kind = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # of versions that are no numbers
            return PlainTextResponse("expected a version in Accept\n", 400)
        registry = CollectorRegistry()
        registry.register(RunCollector(runs.values()))
        body: bytes = await asyncio.to_thread(encode, registry)
        return Response(body, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        expected = metrics_token(self._access.token)
        right = secrets_equal(given.strip(), expected)
        return right and scheme.lower() == "bearer"


def metrics_token(operator: str) -> str:
    """What Prometheus has to send: follows from the operator's token, and gives it not away."""
    return hmac.new(operator.encode(), b"protofleet metrics", hashlib.sha256).hexdigest()


def secrets_equal(given: str, expected: str) -> bool:
    """Whether two tokens are the same, in a time that says nothing of them."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


class RunCollector(Collector):
    """The figures of runs as they stand.

    Args:
        runs: each with a ``key`` of its own.
    """

    def __init__(self, runs: Iterable[RunSnapshot]) -> None:
        self._runs = tuple(runs)

    def collect(self) -> Iterator[Metric]:
        """Every metric, with the series of every run."""
        yield from _progress(self._runs)
        yield _round_seconds(self._runs)
        yield from _devices(self._runs)
        yield from _traffic(self._runs)
        yield from _quality(self._runs)


def _of(run: RunSnapshot, *more: str) -> list[str]:
    return [run.name, run.key, *more]


def _progress(runs: Iterable[RunSnapshot]) -> Iterator[Metric]:
    up = _gauge("protofleet_coordinator_up", "Whether a coordinator serves the run.")
    latest = _gauge("protofleet_round", "The latest round that was opened; 0: none.")
    planned = _gauge("protofleet_rounds_planned", "Rounds that the run is to have; 0: not told.")
    opened = _gauge(
        "protofleet_round_opened_timestamp_seconds", "When the open round was opened; absent: none."
    )
    missing = _gauge("protofleet_round_missing_updates", "Updates that the open round waits for.")
    disk = _gauge("protofleet_disk_free_bytes", "Free on the disk of the run folder.")
    readable = _gauge("protofleet_run_readable", "Whether the run folder could be read just now.")
    for run in runs:
        labels = _of(run)
        up.add_metric(labels, int(run.served))
        latest.add_metric(labels, run.round_id)
        planned.add_metric(labels, run.rounds)
        readable.add_metric(labels, int(not run.trouble))
        current = run.current
        if current is not None and current.phase != "committed":
            opened.add_metric(labels, current.opened_s)
        missing.add_metric(labels, 0 if current is None else len(current.missing))
        if run.disk_bytes:
            disk.add_metric(labels, run.disk_free_bytes)
    yield from (up, latest, planned, opened, missing, disk, readable)


def _round_seconds(runs: Iterable[RunSnapshot]) -> Metric:
    found = HistogramMetricFamily(
        "protofleet_round_seconds", "From opening to commit of each round.", labels=_LABELS
    )
    for run in runs:
        seconds = [one.seconds for one in run.committed]
        counts = Counter(bisect_left(_SECONDS, one) for one in seconds)
        below = accumulate(counts[place] for place in range(len(_SECONDS) + 1))
        bounds = (*map(str, _SECONDS), "+Inf")
        found.add_metric(_of(run), list(zip(bounds, below, strict=True)), math.fsum(seconds))
    return found


def _devices(runs: Iterable[RunSnapshot]) -> Iterator[Metric]:
    states = _gauge("protofleet_devices", "Devices by state.", "state")
    seen = _gauge(
        "protofleet_device_last_seen_timestamp_seconds",
        f"When anything came of a device; absent from {MOST_DEVICES} devices on.",
        "device",
    )
    for run in runs:
        counts = Counter(one.state for one in run.devices.values())
        for state in dict.fromkeys((*_STATES, *counts)):
            states.add_metric(_of(run, state), counts[state])
        if len(run.devices) < MOST_DEVICES:
            for name, one in run.devices.items():
                if one.heard_s:
                    seen.add_metric(_of(run, name), one.heard_s)
    yield from (states, seen)


def _traffic(runs: Iterable[RunSnapshot]) -> Iterator[Metric]:
    sent = CounterMetricFamily(
        "protofleet_bytes",
        "Bytes at the devices' sockets, as they report them.",
        labels=(*_LABELS, "direction"),
    )
    updates = CounterMetricFamily(
        "protofleet_updates",
        "Updates that counted (accepted), updates discarded (rejected), tasks refused (refused).",
        labels=(*_LABELS, "result"),
    )
    for run in runs:
        devices = run.devices.values()
        sent.add_metric(_of(run, "up"), sum(one.usage.bytes_up for one in devices))
        sent.add_metric(_of(run, "down"), sum(one.usage.bytes_down for one in devices))
        updates.add_metric(_of(run, "accepted"), sum(one.rounds for one in devices))
        for result, event in (("rejected", "update_rejected"), ("refused", "task_refused")):
            updates.add_metric(_of(run, result), run.event_counts.get(event, 0))
    yield from (sent, updates)


def _quality(runs: Iterable[RunSnapshot]) -> Iterator[Metric]:
    """Of the last round that was scored, and what it has cost in privacy."""
    scores = _gauge(
        "protofleet_score", "Mean scores of the last scored round.", "section", "metric"
    )
    epsilon = _gauge("protofleet_privacy_epsilon", "Spent so far; absent without noise.")
    owners = _gauge(
        "protofleet_owners", "Owners by what the run has done for their model.", "outcome"
    )
    gained = _gauge(
        "protofleet_gain",
        "Mean gain of owners over the bundle's own model.",
        "metric",
    )
    for run in runs:
        scored = next((one.scores for one in reversed(run.committed) if one.scores.sections), None)
        for section, metrics in ({} if scored is None else scored.sections).items():
            for metric, spread in metrics.items():
                if math.isfinite(spread.mean):
                    scores.add_metric(_of(run, section, metric), spread.mean)
        spent = run.committed[-1].privacy if run.committed else None
        if spent is not None and not spent.repeatable:
            epsilon.add_metric(_of(run), spent.epsilon)
        if run.outcome is not None:
            change = run.outcome.since_start
            for verdict in ("helped", "unchanged", "harmed"):
                owners.add_metric(_of(run, verdict), getattr(change, verdict))
            gained.add_metric(_of(run, run.outcome.metric), change.gain)
    yield from (scores, epsilon, owners, gained)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=(*_LABELS, *labels))
