"""The metrics of a run, and what the Grafana dashboard asks of them."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from protofleet.federation.outcomes.outcome import OwnerOutcome, outcome_of
from protofleet.federation.records import PrivacyRecord, RoundRecord, Scores, Spread
from protofleet.hub.dashboard.records import CurrentRound, DeviceView, RunSnapshot
from protofleet.hub.metrics import RunCollector
from protofleet.wire.mqtt.usage import DeviceUsage

GRAFANA = Path(__file__).resolve().parents[2] / "docs" / "grafana-dashboard.json"


def _used(bytes_up, bytes_down=0):
    return DeviceUsage(bytes_up=bytes_up, bytes_down=bytes_down, peak_rss_bytes=0)


def snapshot(**changes):
    """A run with an open round, two committed ones and two devices."""
    scores = Scores(
        personalisation={
            "accuracy": Spread(mean=0.75, std=0.1),
            "macro_f1": Spread(mean=float("nan"), std=0.0),
        },
        own_loss=Spread(mean=0.5, std=0.1),
    )
    rounds = [
        RoundRecord(
            round_id=number,
            final=False,
            seconds=seconds,
            participants=2,
            bytes_up=0,
            bytes_down=0,
            scores=scores if number == 1 else Scores(),
            privacy=PrivacyRecord(epsilon=1.5, delta=1e-5, participations=1, clip=1.0, noise=1.0),
        )
        for number, seconds in ((1, 0.5), (2, 7.0))
    ]
    devices = {
        "a": DeviceView(device_id="a", state="online", heard_s=100.5, rounds=2, usage=_used(10)),
        'b"\n': DeviceView(device_id='b"\n', state="left", rounds=1, usage=_used(5, 7)),
    }
    owners = [
        OwnerOutcome(id=name, examples=9, start=0.5, end=end, gain=end - 0.5)
        for name, end in (("a", 0.75), ("b", 0.45), ("c", 0.6))
    ]
    current = CurrentRound(
        round_id=3, phase="open", final=False, size=2, attempt=0, opened_s=50.0, cohort=("a", "b")
    )
    given = {
        "key": "home-2",
        "name": "home",
        "folder": "run",
        "read_s": 0.0,
        "served": True,
        "rounds": 5,
        "committed": tuple(rounds),
        "current": current,
        "devices": devices,
        "outcome": outcome_of("classification", owners).summary,
        "event_counts": {"update_rejected": 4, "task_refused": 1},
        "disk_free_bytes": 9,
        "disk_bytes": 10,
    }
    return RunSnapshot(**(given | changes))


def registry(*runs):
    """What the hub encodes."""
    registry = CollectorRegistry()
    registry.register(RunCollector(runs))
    return registry


def expressions(part):
    """Every query in a part of a dashboard."""
    if isinstance(part, dict):
        yield from (text for name, text in part.items() if name in ("expr", "query") and text)
        for inner in part.values():
            yield from expressions(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from expressions(inner)
