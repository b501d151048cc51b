"""What the tests stand on: programs, fakes, and an environment without the export's packages."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import make_tiny_programs
import pytest
from fake_endpoint import FakeCoordinatorEndpoint, FakeDeviceEndpoint
from oracle_errors import OracleRounds, oracle_table
from tiny_bundle import PROGRAMS

from protofleet.coordinator import announcer, rollout, rounds, service
from protofleet.edge import agent, outbox, presence, upgrade
from protofleet.wire.coordinator_endpoint import CoordinatorEndpoint
from protofleet.wire.device_endpoint import DeviceEndpoint

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


_FAKES = [(FakeCoordinatorEndpoint, CoordinatorEndpoint), (FakeDeviceEndpoint, DeviceEndpoint)]


@pytest.mark.parametrize(("fake", "real"), _FAKES)
def test_a_fake_endpoint_is_called_as_the_real_one(fake, real):
    for name in (name for name in dir(fake) if not name.startswith("_")):
        ours, theirs = getattr(fake, name), getattr(real, name)
        if isinstance(ours, property):
            ours, theirs = ours.fget, theirs.fget
        assert inspect.signature(ours) == inspect.signature(theirs), name


@pytest.mark.parametrize(
    ("fake", "users"),
    [
        (FakeCoordinatorEndpoint, (announcer, rollout, rounds, service)),
        (FakeDeviceEndpoint, (agent, outbox, presence, upgrade)),
    ],
)
def test_a_fake_endpoint_has_all_that_its_users_call(fake, users):
    called = {
        node.attr
        for user in users
        for node in ast.walk(ast.parse(inspect.getsource(user)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "_endpoint"
    }
    assert {"poll", "publish"} < called <= set(dir(fake))


def test_rounds_that_differ_from_their_oracle_fail_and_are_in_the_table(monkeypatch):
    """2 of 400, and of nothing the difference itself."""
    monkeypatch.setattr("oracle_errors._LARGEST", {})
    rounds = OracleRounds("Method", ["ab", "bcd"], 0.01)
    rounds.agree([1, 402], [1, 400])
    rounds.agree([0, 0.001], [0, 0])
    assert list(oracle_table())[2:] == ["| Method | 1 | 2 | 4, 2 to 3 | 5.0e-03 | 1e-02 |"]
    nearer_to_its_tolerance = OracleRounds("Method", ["ab"], 0.001)
    nearer_to_its_tolerance.agree([1, 400.3], [1, 400])
    assert list(oracle_table())[2:] == ["| Method | 2 | 2 | 4, 2 to 3 | 5.0e-03 | 1e-02 |"]
    with pytest.raises(AssertionError, match=r"relative error 0\.02, at most 0\.01"):
        rounds.agree([1, 408], [1, 400])
