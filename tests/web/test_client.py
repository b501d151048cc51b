"""The browser's device: its types, each file of its tests, and whole federations with a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_WEB = Path(__file__).resolve().parent.parent.parent / "edge" / "web"
_FILES = sorted(path.relative_to(_WEB) for path in (_WEB / "test").rglob("*.test.ts"))
_FEDERATION = ("enrols with its invitation", "lets no other phone in")
"""Of ``e2e/federation.test.ts``; its faults and the other files take minutes: ``npm run e2e``."""
_PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
"""The environment's own Node comes first, as in the Makefile."""
_TIMEOUT_S = 300


def _needed() -> str:
    """Why Node's tests cannot run here; '' if they can."""
    node = shutil.which("node", path=_PATH)
    if node is None:
        return "needs Node 20 or newer: make web"
    found = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(found.lstrip("v").partition(".")[0]) < 20:
        return f"needs Node 20 or newer, got {found.strip()}: make web"
    if not (_WEB / "node_modules" / ".package-lock.json").is_file():
        return "needs the page's packages: make web"
    return ""


@pytest.fixture(scope="module")
def node():
    """Runs a command in ``edge/web``, which must succeed."""
    lack = _needed()
    if lack:
        assert "PROTOFLEET_CI" not in os.environ, lack
        pytest.skip(lack)

    def run(*command):
        done = subprocess.run(
            command,
            cwd=_WEB,
            env={**os.environ, "PATH": _PATH, "PYTHON": sys.executable, "NODE_NO_WARNINGS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
        return done.stdout

    return run


@pytest.mark.slow
def test_the_types_hold(node):
    node("npm", "run", "--silent", "check")


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S + 30)
@pytest.mark.parametrize("file", _FILES, ids=str)
def test_file(node, file):
    told = node("node", "--import", "tsx", "--test", "--test-reporter=tap", str(file))
    assert "# pass 0\n" not in told, "a file without tests"


@pytest.mark.slow(seconds=30)
@pytest.mark.mosquitto
@pytest.mark.timeout(_TIMEOUT_S + 30)
def test_a_phone_trains_beside_python_devices(node):
    if not (_WEB / "static" / "index.html").is_file():
        assert "PROTOFLEET_CI" not in os.environ, "make web"
        pytest.skip("needs the built page: make web")
    names = [f"--test-name-pattern={name}" for name in _FEDERATION]
    file = "e2e/federation.test.ts"
    told = node("node", "--import", "tsx", "--test", "--test-reporter=tap", *names, file)
    if "no Chromium is installed" in told:
        assert "PROTOFLEET_CI" not in os.environ, told
        pytest.skip("needs Chromium: apt install chromium")
    assert told.count("ok 1 - enrols") == told.count("ok 2 - the invitation lets") == 1, told
