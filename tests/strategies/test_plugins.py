"""Strategies of installed packages are found, and what is wrong with one is said by its name."""

import os
import re
import subprocess
import sys

import pytest

from protofleet.errors import InputError
from protofleet.strategies import check_known
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.plugins import Plugins, StrategyTable

_MODULE = """
from protofleet.strategies.methods.fedavg import FedAvg
from dataclasses import replace


class Gentle(FedAvg):
    description = replace(FedAvg.description, name="{name}")
"""


_WITHOUT_RECORD = (
    _MODULE.format(name="gentle")
    + """    settings: "Nothing"
"""
)
_HALF = """
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.strategy import Strategy
from dataclasses import replace


class Gentle(Strategy):
    description = replace(FedAvg.description, name="gentle")
    settings: dict
"""


def _install(folder, package, points, code):
    """What pip leaves of a package of one module."""
    (folder / f"{package}.py").write_text(code)
    about = folder / f"{package}-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (about / "entry_points.txt").write_text("[protofleet.strategies]\n" + "\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def _table(*own):
    plugins = Plugins(own)
    table = StrategyTable(dict.fromkeys(own, FedAvg), plugins, lambda one: one)
    return plugins, table


def test_a_package_brings_a_strategy(folder):
    _install(folder, "gentle_one", {"gentle": "gentle_one:Gentle"}, _MODULE.format(name="gentle"))
    _, table = _table("fedavg")
    assert "gentle_one" not in sys.modules
    assert table["fedavg"] is FedAvg
    assert "gentle_one" not in sys.modules, "Protofleet's own are found without it"
    assert sorted(table) == ["fedavg", "gentle"]
    assert table["gentle"] is sys.modules["gentle_one"].Gentle
    assert "other" not in table
    with pytest.raises(KeyError):
        table["other"]


@pytest.mark.parametrize(
    ("package", "code", "reason"),
    [
        ("broken_a", "import no_such_module", "broken_a 1.2 .*does not import: ModuleNotFound"),
        ("broken_b", "raise SystemError('no')", "does not import: SystemError: no"),
        ("broken_c", "Gentle = 'gentle'", "expected the class of a strategy"),
        ("broken_e", _HALF, "expected the methods aggregate, client_update, server_init, too"),
        (
            "broken_f",
            _WITHOUT_RECORD,
            "expected that 'settings' is annotated",
        ),
        ("broken_d", _MODULE.format(name="rough"), "one name .* got 'gentle' and 'rough'"),
    ],
)
def test_a_broken_package_costs_only_its_own_strategy(folder, caplog, package, code, reason):
    _install(folder, package, {"gentle": f"{package}:Gentle"}, code)
    plugins, table = _table("fedavg")
    assert list(table) == ["fedavg"]
    assert list(plugins.installed.refused) == ["gentle"]
    assert "gentle" in caplog.text
    assert re.search(reason, plugins.installed.refused["gentle"])


def test_a_name_that_two_bring_is_nobodys(folder):
    _install(folder, "first_one", {"gentle": "first_one:Gentle"}, _MODULE.format(name="gentle"))
    _install(folder, "second_one", {"gentle": "second_one:Gentle"}, _MODULE.format(name="gentle"))
    _install(folder, "third_one", {"fedavg": "third_one:Gentle"}, _MODULE.format(name="fedavg"))
    plugins, table = _table("fedavg")
    assert list(table) == ["fedavg"]
    assert table["fedavg"] is FedAvg
    first, second = (f"package {one}_one 1.2 ({one}_one:Gentle)" for one in ("first", "second"))
    assert f"{first} and {second} both bring" in plugins.clash("gentle")
    assert "Protofleet itself and package third_one" in plugins.clash("fedavg")
    assert plugins.clash("local") == ""


def test_an_unknown_name_says_that_a_package_may_bring_it():
    with pytest.raises(InputError, match=r"entry point group protofleet.strategies.*on this mach"):
        check_known("gentle")


def test_commands_know_a_package_s_strategy_and_refuse_a_name_that_is_not_its_own(tmp_path):
    _install(
        tmp_path,
        "gentle_one",
        {"gentle": "gentle_one:Gentle", "fedper": "gentle_one:Gentle"},
        _MODULE.format(name="gentle"),
    )
    code = (
        "import gentle_one\n"  # first, so that it is what imports protofleet.strategies
        "from protofleet.strategies import DESCRIPTIONS, build, check_known\n"
        "assert DESCRIPTIONS['gentle'] is gentle_one.Gentle.description\n"
        "check_known('gentle')\n"
        "try: build('fedper', {}, None)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("InputError strategy 'fedper': Protofleet itself and package")
