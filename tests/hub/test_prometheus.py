"""A real Prometheus takes the figures, and has an answer to all that the Grafana dashboard asks."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from brokers import free_port, wait_until
from metrics_of_a_run import GRAFANA, expressions, registry, snapshot
from msgspec.structs import replace
from prometheus_client import generate_latest

from protofleet.hub.dashboard.records import DeviceView
from protofleet.wire.mqtt.usage import NO_USAGE

pytestmark = [
    pytest.mark.slow(seconds=15),
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="needs Prometheus: apt install prometheus",
    ),
]
_DOCS = Path(__file__).resolve().parents[2] / "docs" / "monitoring.md"
_SETTINGS = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: protofleet
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def _growing(count):
    """A run in which more has been sent with every look at it."""
    devices = {
        "a": DeviceView(
            device_id="a",
            state="silent",
            heard_s=1.0,
            rounds=count,
            usage=replace(NO_USAGE, bytes_up=9 * count),
        )
    }
    rounds = snapshot().committed * count
    refused = {"update_rejected": count, "task_refused": count}
    return snapshot(devices=devices, committed=rounds, event_counts=refused)


@pytest.fixture(scope="module")
def endpoint():
    """The port of what Prometheus scrapes."""
    looks = itertools.count(1)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            body = generate_latest(registry(_growing(next(looks))))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory, endpoint):
    """Asks a running Prometheus under a path of its API."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    (folder / "prometheus.yml").write_text(_SETTINGS.format(port=endpoint))
    with _running(folder, port):

        def ask(path, **query):
            address = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)["data"]

        wait_until(lambda: _told(ask), 30)
        yield ask


@contextmanager
def _running(folder, port):
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def _told(ask):
    """Whether it has scraped often enough to say how fast a counter grows."""
    try:
        return bool(ask("query", query="rate(protofleet_bytes_total[5m]) > 0")["result"])
    except OSError:
        return False


def test_every_question_of_the_grafana_dashboard_has_an_answer(prometheus):
    asked = expressions(json.loads(GRAFANA.read_text()))
    questions = [text for text in asked if isinstance(text, str) and "protofleet_" in text]
    assert len(questions) >= 13
    for text in questions:
        if text.startswith("label_values"):
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", text).groups()
            assert prometheus(f"label/{label}/values", **{"match[]": name}) == ["home"]
            continue
        found = prometheus("query", query=text.replace("$federation", "home|away"))
        values = [float(one["value"][1]) for one in found["result"]]
        assert values, text
        assert all(value == value for value in values), text  # noqa: PLR0124 - not a number


def test_the_alerts_that_the_documentation_proposes_can_be_asked(prometheus, tmp_path):
    section = _DOCS.read_text().split("Worth an alert:")[1].split("##")[0]
    rules = re.findall(r"^- `(.+)`$", section, re.MULTILINE)
    assert len(rules) == 5
    lines = [f"  - {{alert: A{n}, expr: '{rule}'}}" for n, rule in enumerate(rules)]
    path = tmp_path / "rules.yml"
    path.write_text("groups:\n- name: all\n  rules:\n" + "\n".join(lines) + "\n")
    subprocess.run(["promtool", "check", "rules", path], check=True, capture_output=True)
    silent = prometheus("query", query=rules[1])["result"]
    assert [one["metric"]["state"] for one in silent] == ["silent"]


def test_promtool_finds_nothing_to_say_of_names_and_texts(endpoint):
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint}/metrics", timeout=10) as answer:
        text = answer.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, check=False, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_job_of_the_documentation_is_one(tmp_path):
    (shown,) = re.findall(r"```text\n# prometheus.yml\n(.*?)```", _DOCS.read_text(), re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(shown)
    command = ["promtool", "check", "config", tmp_path / "prometheus.yml"]
    subprocess.run(command, check=True, capture_output=True)
