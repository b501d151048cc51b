"""The documentation: every page has a place in the site, and every block of code is tried.

A block that cannot run here says so in a comment before it, ``<!-- not run: needs a phone -->``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from doc_blocks import ROOT, Block, Command, blocks, commands, mentions
from doc_folder import environment, make_folder
from doc_settings import refusals

from protofleet.cli.main import _root

_BLOCKS = blocks()
_LANGUAGES = {"sh", "console", "python", "toml", "json", "text", "erlang", "xml"}
"""Of ``text``, ``erlang`` and ``xml`` nothing is tried: outputs, drawings, others' files."""
_SHELL = {"cat", "cd", "export", "for", "do", "done", "make", "mosquitto", "python", "wait"}
_ELSEWHERE = {
    "bench": "measures for minutes: tests/benchmarks",
    "broker check": "asks a running broker: tests/broker/test_check.py",
    "broker run": "serves until it is stopped: tests/test_readme.py",
    "bundle publish": "asks a running federation: tests/e2e/test_rollout.py",
    "bundle rollback": "asks a running federation: tests/e2e/test_rollout.py",
    "bundle status": "asks a running federation: tests/e2e/test_rollout.py",
    "chaos": "a quarter of an hour: tests/e2e/test_chaos.py",
    "coordinator run": "serves until its rounds are over: tests/test_readme.py",
    "coordinator stop": "asks a running federation: tests/e2e/test_operation.py",
    "demo": "a minute: tests/e2e/test_demo.py",
    "device enroll": "needs an invitation of a running broker: tests/test_readme.py",
    "device invite": "waits at a running broker: tests/test_readme.py",
    "device join": "serves until the federation is over: tests/test_readme.py",
    "device reset": "asks at a terminal: tests/edge/test_predict.py",
    "device rotate": "waits at a running broker: tests/e2e/test_enrolment.py",
    "device record": "needs sensors: tests/edge/test_termux.py, tests/edge/test_mqtt_readings.py",
    "doctor": "asks running brokers: tests/doctor",
    "experiment claims": "hours, or their stored results: tests/experiments",
    "experiment run": "minutes to hours: tests/experiments",
    "experiment table": "reads results of hours: tests/experiments",
    "export": "seconds of PyTorch; the folder's bundle is made by it",
    "fleet run": "serves until the federation is over: tests/firmware_sim",
    "hub": "serves until it is stopped: tests/hub/test_run.py",
    "kernels warm": "minutes: tests/kernels/test_warm.py",
    "new": "asks at a terminal: tests/starter/test_new.py",
    "load": "minutes: tests/benchmarks/test_load.py",
    "pretrain": "seconds of PyTorch: tests/test_readme.py",
}
"""Commands that are parsed here and run elsewhere."""


def _of(language: str, *, marked: bool = True) -> list[Any]:
    chosen = [one for one in _BLOCKS if one.language == language and (marked or not one.reason)]
    return [pytest.param(one, id=one.place) for one in chosen]


def _pages(*languages: str) -> list[str]:
    """Pages with such blocks that can run."""
    found = [one.page for one in _BLOCKS if one.language in languages and not one.reason]
    return list(dict.fromkeys(found))


def _leaves(nav: list[dict[str, Any]]) -> Iterator[str]:
    for entry in nav:
        for inner in entry.values():
            yield from [inner] if isinstance(inner, str) else _leaves(inner)


def test_the_site_has_a_place_for_every_page():
    """A page of ``docs/`` stands in the navigation of ``zensical.toml`` once."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    placed = list(_leaves(nav))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages - set(placed)) == [], "add these to `nav` in zensical.toml"
    assert len(placed) == len(set(placed))


def test_every_block_says_what_it_is():
    """The language decides how a block is tried; one without would be tried by nobody."""
    assert [
        f"{one.place} '{one.language}'" for one in _BLOCKS if one.language not in _LANGUAGES
    ] == []
    assert [one.place for one in _BLOCKS if one.language == "text" and one.reason] == []


@pytest.mark.parametrize("block", _of("json", marked=False))
def test_json_is_json(block):
    """One value, or one a line."""
    try:
        json.loads(block.text)
    except json.JSONDecodeError:
        for line in block.text.splitlines():
            json.loads(line)


@pytest.mark.parametrize("block", _of("toml"))
def test_settings_are_what_the_program_reads(block, tmp_path):
    """Some reader takes the block as its file, or as a part of it."""
    assert refusals(block.text, tmp_path) == []


def _parsed(command: Command) -> tuple[str, list[str]]:
    """The subcommand's name and what is wrong with its arguments, by click's own parser."""
    words = re.sub(r"\$\{?\w+\}?", "1", "\0".join(command.arguments() or ())).split("\0")
    at: click.Command = _root
    context = click.Context(_root, info_name="protofleet")
    names: list[str] = []
    while isinstance(at, click.Group):
        found = at.get_command(context, words[0]) if words else None
        if found is None:
            return " ".join(names), [f"no command '{words[0] if words else ''}'"]
        names.append(words.pop(0))
        context = click.Context(found, info_name=names[-1], parent=context)
        at = found
    return " ".join(names), _wrong(at, context, words, complete=command.complete)


def _wrong(
    at: click.Command, context: click.Context, words: list[str], *, complete: bool
) -> list[str]:
    try:
        given, left, _ = at.make_parser(context).parse_args(list(words))
        wrong = [f"unexpected '{word}'" for word in left]
        for parameter in at.get_params(context):
            value = given.get(parameter.name)
            told = isinstance(value, (str, tuple, list, bool)) and value != ()
            if told and not isinstance(parameter.type, (click.Path, click.File)):
                parameter.type_cast_value(context, value)
            elif not told and parameter.required and complete:
                wrong.append(f"missing {parameter.human_readable_name}")
    except click.UsageError as error:
        return [error.format_message()]
    return wrong


@pytest.mark.parametrize("block", _of("sh"))
def test_command_lines_are_understood(block):
    """Bash reads the block; every command and option of ours exists, with values of its kind."""
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    wrong = {}
    for command in commands(block.text):
        if command.arguments() is not None:
            _, found = _parsed(command)
            wrong |= {" ".join(command.words): found} if found else {}
        elif command.program == "make":
            known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(command.words[1:2]) <= set(known)
        else:
            assert block.reason or command.program in _SHELL, f"{command.words}: mark the block"
    assert wrong == {}


def test_commands_in_sentences_exist():
    """So do their options; what they need may be left out, also a last option's value."""
    wrong = []
    for page, command in mentions():
        name, found = _parsed(command)
        left_out = ("missing ", "no command ''") if name else ("missing ",)
        told = [one for one in found if not one.startswith(left_out)]
        told = [one for one in told if not one.endswith("requires an argument.")]
        wrong += [f"{page}: {' '.join(command.words)}: {one}" for one in told]
    assert wrong == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the user's folder, which is the working folder."""
    copy = tmp_path / "user"
    shutil.copytree(made, copy)
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    for name, value in environment(copy).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(copy)
    return copy


def _run(command: Command) -> Result:
    readings = Path("new.csv").read_text() if command.fed else None
    return CliRunner().invoke(_root, command.arguments(), input=readings, prog_name="protofleet")


def _runs_elsewhere(name: str) -> bool:
    return any(name == known or name.startswith(f"{known} ") for known in _ELSEWHERE)


def _run_shell(block: Block) -> None:
    for command in commands(block.text):
        if command.arguments() is None or not command.complete:
            continue
        name, _ = _parsed(command)
        if not _runs_elsewhere(name):
            result = _run(command)
            told = f"{block.place}: {' '.join(command.words)}\n{result.output}\n{result.exception}"
            assert result.exit_code == 0, told


@pytest.mark.slow(seconds=30)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", _pages("sh", "python"))
def test_a_page_s_blocks_run(page, request):
    """In their order: commands, but those that other tests run whole, and Python as one program."""
    names: dict[str, Any] = {"__name__": "documentation"}
    for block in (one for one in _BLOCKS if one.page == page and not one.reason):
        if block.language == "sh":
            _run_shell(block)
        elif block.language == "python":
            if 'Path("data")' in block.text:
                Path("data").symlink_to(request.getfixturevalue("data_root"))
            with redirect_stdout(StringIO()) as printed:
                exec(compile(block.text, block.place, "exec"), names)  # noqa: S102 - our own pages
            if told := _OUTPUTS.get(block.place):
                _check_printed(printed.getvalue(), told)


def _outputs() -> dict[str, Block]:
    """What stands right below a block of Python as its output, by that block's place."""
    after = {(one.page, one.line): one for one in _BLOCKS if one.language == "text"}
    python = [one for one in _BLOCKS if one.language == "python"]
    ends = [(one, (one.page, one.line + one.text.count("\n") + 3)) for one in python]
    return {one.place: after[end] for one, end in ends if end in after}


_OUTPUTS = _outputs()
_SEED_MOVES = 0.05
"""Largest accuracy by which two runs of a page's example differ: networks start at random."""


def _check_printed(printed: str, told: Block) -> None:
    """The same lines begin in the same way, and accuracies are those of the page.

    Whether a run of a few rounds warns, too, depends on its random start.
    """
    ours, theirs = (
        [
            re.sub(r"[-+]?\d[\d.]*", "#", line.split(":")[0].split(" in ")[0])
            for line in text.splitlines()
            if line[0] != "[" and not line.startswith("warning:")
        ]
        for text in (printed, told.text)
    )
    assert ours == theirs, told.place
    for pattern, moves in (
        (r"(?<!balanced )accuracy (?:over all samples )?([\d.]+)", _SEED_MOVES),
        (r"([\d.]+) % now", 200 * _SEED_MOVES),
        (r"(\d+) better than at the start", 2),
    ):
        said, found = (
            [float(one) for one in re.findall(pattern, text)] for text in (told.text, printed)
        )
        assert found == pytest.approx(said, abs=moves), f"{told.place}\n{printed}"


def test_the_front_page_s_example_learns():
    """Ten digits by chance are 0.1."""
    readme = next(text for place, text in _OUTPUTS.items() if place.startswith("README.md"))
    scores = re.findall(
        r"^(?:personalisation|global).* accuracy ([\d.]+)", readme.text, re.MULTILINE
    )
    assert len(scores) == 2
    assert all(float(one) >= 0.85 for one in scores)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("block", _of("console", marked=False))
def test_what_a_console_shows_is_what_is_printed(block):
    for shown in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, expected = shown.partition("\n")
        (command,) = commands(line)
        assert _run(command).stdout == expected


def test_what_is_run_elsewhere_is_there():
    """Every reason names a test that exists and a command that exists."""
    context = click.Context(_root, info_name="protofleet")
    for name, reason in _ELSEWHERE.items():
        first, _, second = name.partition(" ")
        group = _root.get_command(context, first)
        assert group is not None
        assert not second or group.get_command(context, second) is not None
        for path in re.findall(r"tests/[\w/.]+", reason):
            assert (ROOT / path).exists(), path
