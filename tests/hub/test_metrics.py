"""What Prometheus gets: conventions, every figure, and a Grafana dashboard that fits them."""

from __future__ import annotations

import json
import re

import pytest
from metrics_of_a_run import GRAFANA, expressions, registry, snapshot
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_strict
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_strictly
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from protofleet.hub.dashboard.access import Access
from protofleet.hub.dashboard.records import DeviceView
from protofleet.hub.dashboard.watch import Watch, WatchedRun
from protofleet.hub.metrics import MOST_DEVICES, PATH, MetricsPage, metrics_token


def _samples(*runs):
    """(name, further labels) → value."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry(*runs)).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("federation") == "home"
            assert labels.pop("run").startswith("home")
            found[sample.name, *sorted(labels.items())] = sample.value
    return found


def test_every_figure_of_a_run_is_there():
    found = _samples(snapshot())
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
    owners = {key[1][1]: value for key, value in found.items() if key[0] == "protofleet_owners"}
    assert owners == {"helped": 2, "unchanged": 0, "harmed": 1}
    assert found["protofleet_gain", ("metric", "balanced_accuracy")] == pytest.approx(0.1)
    assert found["protofleet_privacy_epsilon",] == 1.5
    assert found["protofleet_disk_free_bytes",] == 9


def test_what_is_not_known_is_absent_and_not_zero():
    found = _samples(
        snapshot(current=None, committed=(), disk_bytes=0, served=False, trouble="why")
    )
    names = {key[0] for key in found}
    assert not names & {"protofleet_score", "protofleet_disk_free_bytes"}
    assert "protofleet_round_opened_timestamp_seconds" not in names
    assert found["protofleet_round",] == found["protofleet_run_readable",] == 0


def test_a_large_fleet_has_no_series_of_single_devices():
    def devices(count):
        names = (f"d{i}" for i in range(count))
        return {name: DeviceView(device_id=name, heard_s=1.0) for name in names}

    few = _samples(snapshot(devices=devices(MOST_DEVICES - 1)))
    many = _samples(snapshot(devices=devices(MOST_DEVICES)))
    assert sum("last_seen" in key[0] for key in few) == MOST_DEVICES - 1
    assert sum("last_seen" in key[0] for key in many) == 0
    assert many["protofleet_devices", ("state", "unknown")] == MOST_DEVICES


def test_the_names_keep_prometheus_conventions():
    """Its strict parser takes them; counters end in _total, times and sizes in their base unit."""
    text = generate_strict(registry(snapshot(), snapshot(key="home-3"))).decode()
    families = list(parse_strictly(text))
    assert len(families) == 16
    for family in families:
        assert family.name.startswith("protofleet_")
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|kb|mb|minutes|percent)\b", family.name)
        if "timestamp" in family.name:
            assert family.name.endswith("_timestamp_seconds")


def test_the_grafana_dashboard_asks_only_for_what_there_is():
    dashboard = json.loads(GRAFANA.read_text())
    samples = {}
    for family in text_string_to_metric_families(generate_latest(registry(snapshot())).decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    asked = [text for text in expressions(dashboard) if "protofleet_" in str(text)]
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


def test_the_grafana_dashboard_has_the_form_of_its_schema():
    """What Grafana's published types (package ``@grafana/schema``, 13.2.3) ask for."""
    dashboard = json.loads(GRAFANA.read_text())
    assert isinstance(dashboard["schemaVersion"], int)
    assert 8 <= len(dashboard["uid"]) <= 40
    assert dashboard["timezone"] == "browser"
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert {name: one["type"] for name, one in variables.items()} == {
        "source": "datasource",
        "federation": "query",
    }
    assert all(
        {"text", "value"} <= one.get("current", {"text": "", "value": ""}).keys()
        for one in variables.values()
    )
    for panel in dashboard["panels"]:
        assert panel["type"] in {"stat", "timeseries", "table"}
        assert panel["gridPos"].keys() == {"h", "w", "x", "y"}
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${source}"}
            assert target["refId"]


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
