"""The dashboard's pages of a real run, in both halves: what is read, and what browsers get."""

from __future__ import annotations

import json
import re
import time

import pytest
from brokers import mosquitto, wait_until
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from watched_run import NAMES, watched_run

from protofleet.coordinator.status import read_status
from protofleet.hub.app import make_app
from protofleet.hub.dashboard.access import Access
from protofleet.hub.dashboard.app import Dashboard
from protofleet.hub.dashboard.pages.menu import PAGES
from protofleet.hub.dashboard.watch import Watch, WatchedRun
from protofleet.hub.metrics import MetricsPage
from protofleet.hub.names import Names

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=10)]
_ORIGIN = "http://localhost"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    with mosquitto(folder) as port:
        url, key = f"mqtt://127.0.0.1:{port}", Ed25519PrivateKey.generate()
        with watched_run(folder, url, key) as federation:
            yield federation


@pytest.fixture
def access(tmp_path):
    return Access(tmp_path / "keys" / "operator-token", to_look=False)


@pytest.fixture
def client(run, access):
    watch = Watch([WatchedRun("home", run.config.run_dir, run.config)])
    app = make_app(Names(["localhost"]), dashboard=Dashboard(watch, access))
    with TestClient(app, base_url=_ORIGIN) as found:
        yield found


def test_now_says_who_is_waited_for_and_why(client):
    def told():
        return client.get("/dashboard/home/now").text

    wait_until(lambda: "Round 4 waits for 1 of 3 updates" in told())
    wait_until(lambda: "has left: 1" in told())
    assert re.search(r'class="cell gone"[^>]*title="carla: has left"', told())
    assert "2 of 3 updates" in told()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_inline_script_or_style_and_a_part_is_less_than_the_page(client, name):
    whole = client.get(f"/dashboard/home/{name}")
    part = client.get(f"/dashboard/home/{name}", headers={"HX-Request": "true"})
    assert whole.status_code == part.status_code == 200
    assert "<script>" not in whole.text
    assert " style=" not in whole.text
    assert "script-src 'self';" in whole.headers["content-security-policy"]
    assert part.text.startswith('<div id="live"')
    assert len(part.text) < len(whole.text)


def test_the_fleet_is_searched_sorted_and_filtered_by_the_server(client):
    def names(query):
        text = client.get(f"/dashboard/home/fleet?{query}").text
        return re.findall(r'<tr id="d-([a-z]+)"', text)

    assert names("") == list(NAMES)
    assert re.search(
        r'data-label="Backend">(onnx|litert)<', client.get("/dashboard/home/fleet").text
    )
    assert names("sort=device&order=descending") == [*reversed(NAMES)]
    assert names("search=ER") == ["berta"]
    wait_until(lambda: names("state=left") == ["carla"])
    assert names("state=nonsense") == []


def test_owners_are_told_what_the_run_has_done_for_them(client):
    """On the first page and the model's in all, in the fleet and on a device's page of each."""
    told = r"3 owners: balanced accuracy [\d.]+ % at the start, [\d.]+ % now"
    wait_until(lambda: re.search(told, client.get("/dashboard/home/now").text))
    assert re.search(told, client.get("/dashboard/home/model").text)
    fleet = client.get("/dashboard/home/fleet?sort=since&order=descending").text
    gains = [float(one) for one in re.findall(r'data-label="Gain">([-+][\d.]+)<', fleet)]
    assert len(gains) == 3
    assert gains == sorted(gains, reverse=True)
    device = client.get("/dashboard/home/device?id=anna").text
    assert re.search(r"[\d.]+ % → [\d.]+ % <small>(helped|unchanged|harmed)<", device)


def test_the_token_makes_a_session_that_scripts_and_other_sites_cannot_use(client, access):
    def sign_in(token, origin=_ORIGIN):
        headers = {"Origin": origin}
        return client.post("/dashboard/sign-in", data={"token": token}, headers=headers)

    assert sign_in("wrong").status_code == 403
    assert sign_in(access.token, "http://evil.test").status_code == 403
    answer = sign_in(access.token)
    (cookie,) = [one.headers["set-cookie"] for one in answer.history if one.cookies]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert access.token not in cookie
    assert "Sign out" in client.get("/dashboard/home/now").text


def test_a_session_ends_by_the_clock(client, access, monkeypatch):
    headers = {"Origin": _ORIGIN}
    client.post("/dashboard/sign-in", data={"token": access.token}, headers=headers)
    real = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: real() + 11.9 * 3600)
    assert "Sign out" in client.get("/dashboard/home/now").text
    monkeypatch.setattr("time.monotonic", lambda: real() + 12.1 * 3600)
    assert "Sign out" not in client.get("/dashboard/home/now").text


def test_metrics_of_the_run_are_those_of_its_pages(run):
    watch = Watch([WatchedRun("home", run.config.run_dir)])
    access = Access(run.config.run_dir.parent / "operator-token", to_look=False)
    app = make_app(Names(["localhost"]), metrics=MetricsPage(watch, access))
    with TestClient(app, base_url=_ORIGIN) as client:

        def told(name, **labels):
            text = client.get("/metrics").text
            samples = [one for kind in text_string_to_metric_families(text) for one in kind.samples]
            wanted = {"federation": "home", "run": "home", **labels}
            (found,) = [one.value for one in samples if (one.name, one.labels) == (name, wanted)]
            return found

        assert told("protofleet_round_seconds_count") >= 3
        assert told("protofleet_updates_total", result="accepted") >= 8
        wait_until(lambda: told("protofleet_devices", state="left") == 1)
        assert told("protofleet_coordinator_up") == 1
        assert told("protofleet_bytes_total", direction="up") > 1000
        seen = told("protofleet_device_last_seen_timestamp_seconds", device="anna")
        assert abs(seen - time.time()) < 600


def test_an_act_needs_session_form_token_and_a_page_of_the_hub(client, access, run, tmp_path):
    def act(form_token=None, origin=_ORIGIN):
        path, fields = "/dashboard/home/do/pause", {"form_token": form_token} if form_token else {}
        return client.post(path, data=fields, headers={"Origin": origin}).status_code

    assert act() == act("x") == 403
    client.post("/dashboard/sign-in", data={"token": access.token}, headers={"Origin": _ORIGIN})
    page = client.get("/dashboard/home/operate").text
    token = re.search(r'name="form_token" value="([^"]+)"', page)[1]
    assert act() == act("x" + token[1:]) == 403
    assert act(token, "http://evil.test") == act(token, "null") == 403
    assert read_status(run.config).operation == "running"
    assert act(token) == 200
    assert read_status(run.config).operation in ("pausing", "paused")
    assert client.get("/dashboard/home/do/pause").status_code == 405
    access.trail.tell(everything=True)

    def told(name, key):
        lines = (tmp_path / "keys" / name).read_text().splitlines()
        return [(line["action"], line[key]) for line in map(json.loads, lines)]

    assert [name for name, _ in told("audit.jsonl", "outcome")] == ["sign-in", "pause"]
    assert told("refused.jsonl", "refused") == [("pause", 1)] * 6
    shown = client.get("/dashboard/home/operate").text
    shown = shown[shown.index("What was done") :]
    assert re.findall(r"<td[^>]*>(pause|sign-in)</td>", shown).count("pause") == 7
    assert shown.count('class="state failed"') == 6
    assert access.token not in shown
    client.post("/dashboard/sign-out", data={"form_token": token}, headers={"Origin": _ORIGIN})
    assert "What was done" not in client.get("/dashboard/home/operate").text
    last = json.loads((tmp_path / "keys" / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["action"], last["session"] != "") == ("sign-out", True)


def test_from_elsewhere_nothing_is_shown_without_the_token(run, tmp_path):
    access = Access(tmp_path / "token", to_look=True)
    watch = Watch([WatchedRun("home", run.config.run_dir)])
    client = TestClient(Dashboard(watch, access).app, base_url=_ORIGIN, follow_redirects=False)
    assert client.get("/home/now").headers["location"] == "/dashboard/sign-in"
    assert client.get("/events").status_code == 403
