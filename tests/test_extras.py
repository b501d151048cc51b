"""What the command line says of errors: which extra to install, what the system refuses."""

import logging
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from protofleet.cli._verbosity import add_options, start_logging, verbosity
from protofleet.cli.main import EXTRAS, main

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


_HIDE = """
import sys

class Hidden:
    def find_spec(name, path, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Hidden)
from protofleet.cli.main import main
main({arguments!r})
"""


def _run_without(module, *arguments):
    code = _HIDE.format(module=module, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("torch", ("export", "mlp", "--strategy", "fedavg", "--out", "{}/a.pfb"), "export"),
        ("rich", ("experiment", "list"), "coordinator"),
        (
            "ray",
            ("experiment", "run", "fedhp/mnist-small", "--engine", "ray", "--out", "{}/a"),
            "ray",
        ),
        ("jinja2", ("report", "{}"), "coordinator"),
        ("matplotlib", ("bench", "device", "--bundle", "{}", "--plot", "{}/a.png"), "coordinator"),
    ],
)
def test_a_missing_package_is_one_line_that_names_its_extra(module, command, extra, tmp_path):
    done = _run_without(module, *(part.format(tmp_path) for part in command))
    expected = f"protofleet: module '{module}' is not installed: pip install 'protofleet[{extra}]'"
    assert (done.returncode, done.stderr.strip()) == (1, expected)


def test_a_module_that_no_extra_brings_keeps_its_traceback():
    done = _run_without("protofleet.bundle", "bundle", "verify", str(_PROJECT))
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "protofleet.bundle" in done.stderr


@pytest.mark.parametrize(("module", "extra"), EXTRAS.items())
def test_the_extra_brings_the_module(module, extra):
    installed = packages_distributions().get(module)
    if installed is None:
        pytest.skip(f"{module} is not installed here")
    extras = tomllib.loads(_PROJECT.read_text())["project"]["optional-dependencies"]
    brought = {canonicalize_name(Requirement(one).name) for one in extras[extra]}
    assert brought & {canonicalize_name(name) for name in installed}


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_every_command_tells_where_an_error_came_from_if_asked(capsys, tmp_path, option):
    for arguments, shown in (([], False), ([option], True)):
        with pytest.raises(SystemExit) as ended:
            main(["report", str(tmp_path), *arguments])
        err = capsys.readouterr().err
        assert ended.value.code == 1
        assert ("Traceback" in err) is shown
        assert err.splitlines()[-1].startswith("protofleet: ")


def test_quiet_leaves_the_logs_warnings():
    found = []

    @click.command()
    def command():
        start_logging()
        found.append((verbosity(), logging.getLogger("protofleet").level))

    before = logging.getLogger("protofleet").level
    for arguments in ([], ["-q"], ["-v"]):
        CliRunner().invoke(add_options(command), arguments, catch_exceptions=False)
    logging.getLogger("protofleet").setLevel(before)
    assert found == [(0, logging.INFO), (-1, logging.WARNING), (1, logging.DEBUG)]


def test_what_the_system_refuses_is_a_line_too(capsys, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--out", str(tmp_path / "file" / "run")])
    assert ended.value.code == 1
    assert "Not a directory" in capsys.readouterr().err.splitlines()[-1]


def test_a_misspelt_command_is_answered_with_the_one_meant(capsys):
    with pytest.raises(SystemExit):
        main(["devcie"])
    assert "Did you mean 'device'?" in capsys.readouterr().err
