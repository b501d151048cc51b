"""The dashboard in the system's Chromium: every page in both themes and widths, every action."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import contextmanager

import pytest
from brokers import answers, mosquitto, wait_until
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle
from watched_run import watched_run
from web.node import skip

from protofleet.coordinator import events
from protofleet.hub.dashboard.pages.menu import PAGES
from protofleet.hub.dashboard.watch import WatchedRun
from protofleet.hub.run import Hub, HubOptions

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=25), pytest.mark.timeout(300)]
_DONE = [
    *("sign-in", "pause", "resume", "invite", "revoke", "publish", "next-stage", "roll-back"),
    *("stop", "sign-out"),
]


@pytest.mark.usefixtures("built_page")
def test_an_operator_sees_every_page(node, tmp_path):
    with _watched(tmp_path, gone=1) as run, _hub(run, tmp_path) as hub:
        told = _browse(node, hub, tmp_path / "pictures")
    assert told.count("seen: ") == len(PAGES)
    assert len(list((tmp_path / "pictures").iterdir())) == 4 * len(PAGES)


@pytest.mark.usefixtures("built_page")
def test_an_operator_does_everything_that_the_pages_offer(node, tmp_path):
    with _watched(tmp_path, gone=0) as run, _hub(run, tmp_path) as hub:
        told = _browse(node, hub, tmp_path, tmp_path / "next.pfb")
        run.coordinator.finish(30)
    assert any(isinstance(report, events.Stopped) for report in run.reports), told
    moved = [one for one in run.reports if isinstance(one, events.BundleRollout)]
    assert [(one.state, one.stage) for one in moved][-4:] == [
        ("waiting", "share"),
        ("running", "share"),
        ("waiting", "rest"),
        ("taken_back", "rest"),
    ]
    _check_audit(tmp_path / "audit.jsonl", hub.access.token)


@contextmanager
def _watched(folder, *, gone):
    if shutil.which("chromium") is None:
        skip("needs Chromium: apt install chromium")
    key = Ed25519PrivateKey.generate()
    tiny_bundle(folder / "next.pfb", key, sequence=1)
    with (
        mosquitto(folder) as port,
        watched_run(folder, f"mqtt://127.0.0.1:{port}", key, gone=gone) as run,
    ):
        yield run


@contextmanager
def _hub(run, folder):
    options = HubOptions(port=0, token_file=folder / "token")
    hub = Hub(run.config, options, [WatchedRun("home", run.config.run_dir, run.config)])
    thread = threading.Thread(target=hub.run)
    thread.start()
    try:
        wait_until(lambda: answers(hub.port))
        yield hub
    finally:
        hub.stop()
        thread.join()


def _browse(node, hub, *arguments):
    url = f"http://localhost:{hub.port}/dashboard/home"
    script = ["node", "--import", "tsx", "e2e/dashboard.ts"]
    return node.run(*script, url, hub.access.token, *map(str, arguments))


def _check_audit(path, token):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["action"] for line in lines] == _DONE
    assert all(line["outcome"].startswith("done") for line in lines)
    assert len({line["session"] for line in lines[1:]}) == 1
    assert token not in path.read_text()
    assert "protofleet:" not in path.read_text()
