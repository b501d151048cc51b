"""Licences of the pinned packages, and that what was not checked is never called good."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "audit"


@pytest.fixture
def audit(monkeypatch):
    """The command's module."""
    monkeypatch.syspath_prepend(str(_SCRIPT))
    return _module("__main__")


def _module(name):
    spec = importlib.util.spec_from_file_location(f"audit_{name}", _SCRIPT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_installed_pinned_packages_have_allowed_licences():
    done = subprocess.run(
        [sys.executable, _SCRIPT, "--licences"], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 2), done.stdout + done.stderr
    assert (done.returncode == 2) == ("NOT CHECKED" in done.stdout)
    assert ", 0 have not" in done.stdout


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 WITH LLVM-exception AND BSD-2-Clause", True),
        ("GPL-3.0-only", False),
        ("EPL-2.0 OR BSD-3-Clause", True),
        ("MIT AND LGPL-2.1", False),
        ("MIT AND (Apache-2.0 OR GPL-3.0-only)", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_if_one_alternative_is(expression, allowed):
    assert _module("licences").is_allowed(expression) is allowed


_GOOD = {"name": "a", "vulns": []}
_UNKNOWN = {"name": "b", "skip_reason": "not found"}
_BAD = {"name": "b", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([_GOOD, _GOOD], (0, "2 of 2 packages checked")),
        ([_GOOD, _UNKNOWN], (2, "NOT CHECKED: 1 packages")),
        ([_GOOD, _BAD], (1, "CVE-1, fixed in 2")),
    ],
)
def test_what_was_not_checked_is_told(audit, monkeypatch, capsys, answers, expected):
    """pip-audit itself says "none found" of packages that its service does not know."""
    monkeypatch.setattr(audit, "_ask", lambda: answers)
    status, said = expected
    assert audit._vulnerabilities({"a": "1", "b": "1"}) == status
    assert said in capsys.readouterr().out


def test_without_a_service_nothing_is_called_good(audit, monkeypatch, capsys):
    def ask():
        raise OSError("no network")

    monkeypatch.setattr(audit, "_ask", ask)
    assert audit._vulnerabilities({"a": "1"}) == 2
    assert "NOT CHECKED: no network" in capsys.readouterr().out
