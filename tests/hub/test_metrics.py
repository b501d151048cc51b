"""What Prometheus gets: conventions, every figure, and a Grafana dashboard that fits them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_strict
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_strictly
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from protofleet.federation.records import PrivacyRecord, RoundRecord, Scores, Spread
from protofleet.hub.dashboard.access import Access
from protofleet.hub.dashboard.records import CurrentRound, DeviceView, RunSnapshot
from protofleet.hub.dashboard.watch import Watch, WatchedRun
from protofleet.hub.metrics import MOST_DEVICES, PATH, MetricsPage, RunCollector, metrics_token

_GRAFANA = Path(__file__).resolve().parents[2] / "docs" / "grafana-dashboard.json"


def _run(**changes):
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
        "a": DeviceView(device_id="a", state="online", heard_s=100.5, rounds=2, bytes_up=10),
        'b"\n': DeviceView(device_id='b"\n', state="left", rounds=1, bytes_up=5, bytes_down=7),
    }
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
        "event_counts": {"update_rejected": 4, "task_refused": 1},
        "disk_free_bytes": 9,
        "disk_bytes": 10,
    }
    return RunSnapshot(**(given | changes))


def _registry(*runs):
    registry = CollectorRegistry()
    registry.register(RunCollector(runs))
    return registry


def _samples(*runs):
    """(name, further labels) → value."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(_registry(*runs)).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("federation") == "home"
            assert labels.pop("run").startswith("home")
            found[sample.name, *sorted(labels.items())] = sample.value
    return found


def test_every_figure_of_a_run_is_there():
    found = _samples(_run())
    assert found["protofleet_coordinator_up",] == 1
    assert found["protofleet_round",] == 3
    assert found["protofleet_rounds_planned",] == 5
    assert found["protofleet_round_missing_updates",] == 2
    assert found["protofleet_round_opened_timestamp_seconds",] == 50
    assert found["protofleet_round_seconds_count",] == 2
    assert found["protofleet_round_seconds_sum",] == 7.5
    buckets = {key[1][1]: value for key, value in found.items() if key[0].endswith("_bucket")}
    assert (buckets["0.5"], buckets["5.0"], buckets["10.0"], buckets["+Inf"]) == (1, 1, 2, 2)
    assert found["protofleet_devices", ("state", "online")] == 1
    assert found["protofleet_devices", ("state", "silent")] == 0
    assert found["protofleet_bytes_total", ("direction", "up")] == 15
    assert found["protofleet_bytes_total", ("direction", "down")] == 7
    results = {"accepted": 3, "rejected": 4, "refused": 1}
    for result, count in results.items():
        assert found["protofleet_updates_total", ("result", result)] == count
    seen = {key: value for key, value in found.items() if "last_seen" in key[0]}
    assert seen == {("protofleet_device_last_seen_timestamp_seconds", ("device", "a")): 100.5}
    scores = {key[1:]: value for key, value in found.items() if key[0] == "protofleet_score"}
    assert scores == {(("metric", "accuracy"), ("section", "personalisation")): 0.75}
    assert found["protofleet_privacy_epsilon",] == 1.5
    assert found["protofleet_disk_free_bytes",] == 9


def test_what_is_not_known_is_absent_and_not_zero():
    found = _samples(_run(current=None, committed=(), disk_bytes=0, served=False, trouble="why"))
    names = {key[0] for key in found}
    assert not names & {"protofleet_score", "protofleet_disk_free_bytes"}
    assert "protofleet_round_opened_timestamp_seconds" not in names
    assert found["protofleet_round",] == found["protofleet_run_readable",] == 0


def test_a_large_fleet_has_no_series_of_single_devices():
    def devices(count):
        names = (f"d{i}" for i in range(count))
        return {name: DeviceView(device_id=name, heard_s=1.0) for name in names}

    few = _samples(_run(devices=devices(MOST_DEVICES - 1)))
    many = _samples(_run(devices=devices(MOST_DEVICES)))
    assert sum("last_seen" in key[0] for key in few) == MOST_DEVICES - 1
    assert sum("last_seen" in key[0] for key in many) == 0
    assert many["protofleet_devices", ("state", "unknown")] == MOST_DEVICES


def test_the_names_keep_prometheus_conventions():
    """Its strict parser takes them; counters end in _total, times and sizes in their base unit."""
    text = generate_strict(_registry(_run(), _run(key="home-3"))).decode()
    families = list(parse_strictly(text))
    assert len(families) == 14
    for family in families:
        assert family.name.startswith("protofleet_")
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|kb|mb|minutes|percent)\b", family.name)
        if "timestamp" in family.name:
            assert family.name.endswith("_timestamp_seconds")


def _expressions(part):
    if isinstance(part, dict):
        yield from (text for name, text in part.items() if name in ("expr", "query") and text)
        for inner in part.values():
            yield from _expressions(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _expressions(inner)


def test_the_grafana_dashboard_asks_only_for_what_there_is():
    dashboard = json.loads(_GRAFANA.read_text())
    samples = {}
    for family in text_string_to_metric_families(generate_latest(_registry(_run())).decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    asked = [text for text in _expressions(dashboard) if "protofleet_" in str(text)]
    queries = [text for text in asked if isinstance(text, str)]
    names = {name for text in queries for name in re.findall(r"protofleet_\w+", text)}
    assert names <= samples.keys()
    assert {name for name in samples if not name.endswith(("_count", "_sum"))} - names == {
        "protofleet_rounds_planned",
        "protofleet_run_readable",
    }
    for text in queries:
        (name,) = set(re.findall(r"protofleet_\w+", text))
        labels = re.findall(r"(\w+)=~?\"", text)
        for group in re.findall(r"by \(([^)]*)\)", text):
            labels += [label.strip() for label in group.split(",")]
        assert set(labels) <= samples[name], text
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert all(x + w <= 24 for _, w, x, _ in places)


@pytest.fixture
def asked(tmp_path):
    """Makes a client of the metrics of a folder in which no run was started."""

    def make(*, to_look):
        access = Access(tmp_path / "token", to_look=to_look)
        watch = Watch([WatchedRun("home", tmp_path / "run")])
        app = Starlette(routes=[Route(PATH, MetricsPage(watch, access).endpoint)])
        return TestClient(app), access

    return make


def test_from_elsewhere_a_token_is_needed_that_is_not_the_operator_s(asked):
    client, access = asked(to_look=True)
    assert client.get(PATH).status_code == 401
    for wrong in (access.token, "", "\xe9"):
        headers = {"Authorization": f"Bearer {wrong}".encode("latin-1")}
        assert client.get(PATH, headers=headers).status_code == 401
    headers = {"Authorization": f"Bearer {metrics_token(access.token)}"}
    assert client.get(PATH, headers=headers).status_code == 200
    assert access.token not in metrics_token(access.token)


def test_the_format_is_the_one_that_is_asked_for(asked):
    client, _ = asked(to_look=False)
    plain = client.get(PATH)
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert 'protofleet_round{federation="run",run="home"} 0.0' in plain.text
    wanted = "application/openmetrics-text; version=1.0.0"
    strict = client.get(PATH, headers={"Accept": wanted})
    assert strict.headers["content-type"].startswith(wanted)
    assert strict.text.endswith("# EOF\n")
    assert client.get(PATH, headers={"Accept": f"{wanted}x"}).status_code == 400
    assert client.post(PATH).status_code == 405
