"""What ``import protofleet`` gives is listed, documented and typed, and loaded when it is used."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import protofleet

_ROOT = Path(__file__).resolve().parent.parent
_HEAVY = ("torch", "numba", "numpy", "onnxruntime", "onnx", "rich", "sklearn", "scipy", "click")
_NAMES = sorted(set(protofleet.__all__) - {"__version__"})
_FUNCTIONS = [name for name in _NAMES if inspect.isfunction(getattr(protofleet, name))]
_CLASSES = [name for name in _NAMES if inspect.isclass(getattr(protofleet, name))]


def _assert_typed(function):
    signature = inspect.signature(function)
    for parameter in list(signature.parameters.values()):
        assert parameter.name == "self" or parameter.annotation is not inspect.Parameter.empty
    assert signature.return_annotation is not inspect.Signature.empty


def test_every_name_is_a_function_or_a_class_and_listed_once():
    assert sorted([*_FUNCTIONS, *_CLASSES]) == _NAMES
    assert list(protofleet.__all__) == sorted(set(protofleet.__all__))
    assert set(dir(protofleet)) == set(protofleet.__all__)
    with pytest.raises(AttributeError, match="no attribute 'federate'"):
        _ = protofleet.federate


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_a_function_says_what_it_takes_gives_and_raises(name):
    function = getattr(protofleet, name)
    _assert_typed(function)
    text = inspect.getdoc(function)
    for part in ("Args:", "Returns:", "Raises:"):
        assert f"\n{part}\n" in text, part
    for parameter in inspect.signature(function).parameters:
        assert f" {parameter}: " in text, parameter


@pytest.mark.parametrize("name", _CLASSES)
def test_a_class_says_what_it_holds_and_does(name):
    kind = getattr(protofleet, name)
    text = inspect.getdoc(kind)
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        assert field.name == "_" or field.name in text, field.name
    for member, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else value
        if not member.startswith("_") and inspect.isfunction(function):
            assert inspect.getdoc(function), member
            _assert_typed(function)


def test_the_page_of_the_api_has_every_name():
    text = (_ROOT / "docs" / "api.md").read_text()
    missing = [name for name in _NAMES if f"`{name}" not in text]
    assert not missing


@pytest.mark.parametrize("name", [None, "open_bundle", "Federation", "read_results"])
def test_a_name_loads_what_it_needs_and_no_more(name):
    use = "" if name is None else f"protofleet.{name}; "
    heavy = _HEAVY if name is None else ("torch", "onnx", "numba", "sklearn")
    code = f"import sys, protofleet; {use}print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
