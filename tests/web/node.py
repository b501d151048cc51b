"""Node, which runs the tests of the browser's device."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WEB = Path(__file__).resolve().parent.parent.parent / "src" / "web"
_PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
"""The environment's own Node comes first, as in the Makefile."""
_TIMEOUT_S = 600
_SKIPPED = re.compile(r"# SKIP ?(.*)$", re.MULTILINE)
_PASSED = re.compile(r"^# pass [1-9]", re.MULTILINE)


class Node:
    """Runs commands in ``src/web``."""

    def run(self, *command: str) -> str:
        """What a command says, which must succeed."""
        done = subprocess.run(
            command,
            cwd=WEB,
            env={**os.environ, "PATH": _PATH, "PYTHON": sys.executable, "NODE_NO_WARNINGS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
        return done.stdout

    def test(self, file: Path) -> None:
        """Run a file of tests, in one process; skips where one of them was."""
        told = self.run("node", "--import", "tsx", "--test-reporter=tap", str(file))
        lacks = "; ".join(sorted(set(_SKIPPED.findall(told))))
        assert lacks or _PASSED.search(told), f"{file}: has no tests"
        if lacks:
            skip(lacks)


def needed() -> str:
    """Why Node's tests cannot run here; '' if they can."""
    node = shutil.which("node", path=_PATH)
    if node is None:
        return "needs Node 20 or newer: make web"
    found = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(found.lstrip("v").partition(".")[0]) < 20:
        return f"needs Node 20 or newer, got {found.strip()}: make web"
    if not (WEB / "node_modules" / ".package-lock.json").is_file():
        return "needs the page's packages: make web"
    return ""


def skip(lack: str) -> None:
    """Skip, but fail where nothing may be skipped."""
    assert "PROTOFLEET_CI" not in os.environ, lack
    pytest.skip(lack)
