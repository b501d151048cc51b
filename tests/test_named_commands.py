"""Commands that messages, remedies and pages name are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

import protofleet
from protofleet.cli.main import _root as main

_PACKAGE = Path(protofleet.__file__).parent
_PLACES = sorted(path for path in _PACKAGE.iterdir() if path.name != "docs")
_NO_COMMANDS = {"noise"}
"""A word of a seed."""
_NAMED = re.compile(r"(?<!import )\bprotofleet((?: [a-z]+(?:-[a-z]+)*)+)")


def _texts(path):
    if path.suffix == ".jinja2":
        yield path.read_text(encoding="utf-8")
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _wrong(words):
    """The words up to the one that is no command; empty: all are."""
    group, context = main, click.Context(main)
    for count, word in enumerate(words, 1):
        found = group.get_command(context, word)
        if found is None:
            return " ".join(words[:count])
        if not isinstance(found, click.Group):
            return ""
        group = found
    return ""


@pytest.mark.parametrize("place", _PLACES, ids=lambda path: path.name)
def test_every_command_that_a_text_names_is_there(place):
    wrong = [
        f"{path.relative_to(_PACKAGE)}: protofleet {found}"
        for path in [place, *sorted(place.rglob("*"))]
        if path.suffix in (".py", ".jinja2") and "node_modules" not in path.parts
        for text in _texts(path)
        for named in _NAMED.findall(text)
        if named.split()[0] not in _NO_COMMANDS and (found := _wrong(named.split()))
    ]
    assert wrong == []
