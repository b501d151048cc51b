"""What the tests stand on: committed programs, and an environment without the export's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import make_tiny_programs
import pytest
from tiny_bundle import PROGRAMS

_WITHOUT_EXPORT = Path(__file__).parent / "support" / "without_export"


def test_the_tiny_bundles_programs_are_those_that_its_script_makes():
    """Else run: python tests/support/make_tiny_programs.py."""
    files = [path for path in PROGRAMS.rglob("*") if path.is_file()]
    committed = {path.relative_to(PROGRAMS).as_posix(): path.read_bytes() for path in files}
    assert committed == make_tiny_programs.programs()


@pytest.mark.parametrize("package", ["torch", "onnx", "onnxscript"])
def test_a_package_of_the_export_can_be_hidden(package):
    """The tests of edge and coordinator run so (``make test``)."""
    code = (
        "import importlib.util, onnxruntime\n"
        f"assert importlib.util.find_spec({package!r}) is None\n"
        f"import {package}"
    )
    environment = {**os.environ, "PYTHONPATH": str(_WITHOUT_EXPORT)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert f"No module named '{package}'" in ended.stderr
