"""The dashboard in the system's Chromium: every page, every action, in both themes and widths."""

from __future__ import annotations

import json
import shutil
import threading

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
_DONE = ["sign-in", "pause", "resume", "invite", "revoke", "publish", "roll-back", "stop"]


@pytest.mark.usefixtures("built_page")
def test_an_operator_sees_every_page_and_does_everything(node, tmp_path):
    if shutil.which("chromium") is None:
        skip("needs Chromium: apt install chromium")
    key, folder = Ed25519PrivateKey.generate(), tmp_path
    coming = tiny_bundle(folder / "next.pfb", key, sequence=1)
    with mosquitto(folder) as port, watched_run(folder, f"mqtt://127.0.0.1:{port}", key) as run:
        options = HubOptions(port=0, token_file=folder / "token")
        hub = Hub(run.config, options, [WatchedRun("home", run.config.run_dir, run.config)])
        thread = threading.Thread(target=hub.run)
        thread.start()
        try:
            wait_until(lambda: answers(hub.port))
            url = f"http://localhost:{hub.port}/dashboard/home"
            script = ["node", "--import", "tsx", "e2e/dashboard.ts"]
            told = node.run(*script, url, hub.access.token, str(folder), str(coming))
        finally:
            hub.stop()
            thread.join()
        run.coordinator.finish(30)
    assert any(isinstance(report, events.Stopped) for report in run.reports), told
    _check_audit(folder / "audit.jsonl", hub.access.token)
    assert told.count("seen: ") == len(PAGES)


def _check_audit(path, token):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["action"] for line in lines] == _DONE
    assert all(line["outcome"].startswith("done") for line in lines)
    assert len({line["session"] for line in lines[1:]}) == 1
    assert token not in path.read_text()
    assert "protofleet:" not in path.read_text()
