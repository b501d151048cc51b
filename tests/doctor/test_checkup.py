"""What holds for every check: exit status, text and JSON, names, and extras that are not there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from protofleet.cli.doctor import doctor
from protofleet.doctor.checkup import checks_of, examine
from protofleet.doctor.observations import Check, Level, ok, problem, warning
from protofleet.doctor.subjects import (
    BrokerSubject,
    BundleSubject,
    FederationSubject,
    Machine,
    RunSubject,
    StoreSubject,
)
from protofleet.errors import UnavailableError
from protofleet.wire.mqtt.broker_access import BrokerAccess

_DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "doctor.md"
_SUBJECTS = (
    Machine(),
    BrokerSubject(access=BrokerAccess(url="mqtt://127.0.0.1:1")),
    BundleSubject(Path("nothing")),
    FederationSubject(Path("nothing")),
    RunSubject(Path("nothing")),
    StoreSubject(Path("nothing")),
)


def test_the_documentation_names_every_check():
    names = [check.name for subject in _SUBJECTS for check in checks_of(subject)]
    assert sorted(re.findall(r"(?m)^\| `([a-z.]+)` \|", _DOCS.read_text())) == sorted(names)


def _raise(error):
    raise error


def test_a_problem_ends_a_subject_only_where_the_rest_would_repeat_it(monkeypatch):
    checks = (
        Check("one", lambda _: [warning("so", "do"), problem("bad", "do that")]),
        Check("two", lambda _: _raise(UnavailableError("away"))),
        Check("three", lambda _: [ok("well"), problem("end")], decisive=True),
        Check("four", lambda _: [ok("not asked")]),
    )
    monkeypatch.setattr("protofleet.doctor.checkup.checks_of", lambda _: checks)
    found = [(line.check, line.level, line.text) for line in examine([Machine()])]
    assert found == [
        ("one", Level.WARNING, "so"),
        ("one", Level.PROBLEM, "bad"),
        ("two", Level.PROBLEM, "away"),
        ("three", Level.OK, "well"),
        ("three", Level.PROBLEM, "end"),
    ]


@pytest.mark.parametrize(
    ("answers", "status"),
    [([ok("a")], 0), ([warning("a", "b"), ok("a")], 0), ([problem("a"), warning("a", "b")], 1)],
)
def test_the_exit_status_is_1_with_a_problem_alone(monkeypatch, answers, status, bundle):
    monkeypatch.setattr(
        "protofleet.doctor.checkup.checks_of", lambda _: (Check("a", lambda _: answers),)
    )
    assert CliRunner().invoke(doctor, [str(bundle)]).exit_code == status


def test_text_says_level_check_and_remedy_and_lets_nobody_write_to_the_terminal(monkeypatch):
    answers = [ok("well"), warning("red \x1b[31m", "do this")]
    monkeypatch.setattr(
        "protofleet.doctor.checkup.checks_of", lambda _: (Check("a.b", lambda _: answers),)
    )
    out = CliRunner().invoke(doctor, ["--bundle", "x.pfb"]).stdout.splitlines()
    assert out[:2] == ["this machine", "  ok       a.b               well"]
    assert out[2].startswith("  warning  a.b               red ")
    assert out[3].strip() == "remedy: do this"
    assert out[4] == "bundle 'x.pfb'"
    assert "\x1b[31m" not in "".join(out)


_HIDE = """
import sys

class Hidden:
    def find_spec(name, path, target=None):
        if name.split(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Hidden)
from protofleet.cli.main import main
main({arguments!r})
"""


def test_without_extras_it_says_what_to_install(bundle):
    """A machine that has what pip installs without any extra."""
    hidden = (
        "paho",
        "onnxruntime",
        "ai_edge_litert",
        "numba",
        "llvmlite",
        "torch",
        "onnx",
        "rich",
        "jinja2",
        "scipy",
        "sklearn",
        "starlette",
        "matplotlib",
    )
    arguments = ["doctor", "--json", str(bundle), "--broker", "mqtt://127.0.0.1:1"]
    code = _HIDE.format(modules=hidden, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1, done.stderr
    remedies = {row["check"]: row["remedy"] or row["text"] for row in rows if row["level"] != "ok"}
    assert "pip install 'protofleet[edge]'" in remedies["runtimes"]
    assert remedies["broker.extra"] == "pip install 'protofleet[edge]'"
    assert "protofleet[edge]" in remedies["bundle.programs"]
    assert {row["level"] for row in rows if row["check"] == "bundle.signature"} == {"ok"}
