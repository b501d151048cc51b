"""What ``pip install 'protofleet[edge]'`` asks for on boards whose packages are few."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def _edge(machine, python="3.11"):
    extras = tomllib.loads(_PROJECT.read_text())["project"]["optional-dependencies"]
    required = map(Requirement, extras["edge"])
    return {
        one.name
        for one in required
        if one.marker is None
        or one.marker.evaluate({"platform_machine": machine, "python_version": python})
    }


@pytest.mark.parametrize("machine", ["armv6l", "armv7l", "armv8l"])
def test_edge_asks_32_bit_arm_for_nothing_without_a_wheel(machine):
    assert _edge(machine) == {"paho-mqtt"}


@pytest.mark.parametrize("machine", ["aarch64", "arm64", "x86_64"])
def test_edge_asks_64_bits_for_a_runtime_and_a_compiler(machine):
    assert _edge(machine) >= {"onnxruntime", "onnxruntime-extensions", "numba"}


def test_edge_asks_for_nothing_that_a_new_python_has_no_wheel_of():
    assert _edge("x86_64") - _edge("x86_64", "3.14") == {"onnxruntime-extensions"}
