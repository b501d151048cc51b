"""No library reports to its maker what a device does."""

from __future__ import annotations

import os
import subprocess
import sys

_SWITCHES = ("CI", "GITHUB_ACTIONS", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "TF_BUILD")


def _leaves(tmp_path, *program):
    """Files that a program leaves in its user's folders, where reports wait to be sent."""
    home = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
    env = {name: value for name, value in os.environ.items() if name not in _SWITCHES} | home
    subprocess.run([sys.executable, *program], check=True, env=env)
    return [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]


def test_onnx_runtime_does_not_report_what_it_opens(tmp_path):
    assert _leaves(tmp_path, "-m", "protofleet.doctor.tiny_program", "onnx") == []
