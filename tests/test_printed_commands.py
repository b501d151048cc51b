"""Commands that a message tells a person to type can be typed: words from outside are quoted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import protofleet
from protofleet.bundle import keys
from protofleet.errors import UnavailableError
from protofleet.printable import shell_word
from protofleet.settings import read_toml

_PACKAGE = Path(protofleet.__file__).parent
_COMMAND = re.compile(r"protofleet (?:[a-z][a-z-]* )+(?:[A-Z]+ |--[a-z-]+ )*$")
_QUOTING = ("shell_word(", "safe(shell_word(", "shlex.quote(", "' '.join(map(shell_word,")
# Quoted where they are made, or by rules without blanks; one is no command.
_SAFE = {
    "federation/noise.py": {"noise_seed", "round_id"},
    "benchmarks/device/plan.py": {"what.precision"},
    "cli/_cells.py": {"cell_name(cell)"},
    "cli/_overview.py": {"first"},
    "cli/broker.py": {"place"},
    "cli/enrolment.py": {"word"},
    "cli/hub.py": {"made.origins[0]"},
}


def _unquoted(tree: ast.Module) -> Iterator[str]:
    """What stands behind a command in a formatted string, and is no quoted word."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            value = ast.unparse(part.value)
            if _COMMAND.search(text) and not value.startswith(_QUOTING):
                yield value
            text += "WORD"


def test_every_word_of_a_printed_command_is_quoted():
    places = [place for place in _PACKAGE.iterdir() if place.name != "docs"]
    paths = [path for place in places for path in [place, *place.rglob("*.py")]]
    found = {
        (str(path.relative_to(_PACKAGE)), word)
        for path in paths
        if path.suffix == ".py" and "node_modules" not in path.parts
        for word in _unquoted(ast.parse(path.read_text()))
    }
    found -= {(path, word) for path, words in _SAFE.items() for word in words}
    assert found == set()


def test_the_rule_sees_a_word_that_is_not_quoted():
    code = 'f"go on: protofleet demo --out {folder}"\nf"protofleet fleet run {shell_word(file)}"'
    assert list(_unquoted(ast.parse(code))) == ["folder"]


def test_a_word_with_a_blank_is_one_word():
    assert shell_word(Path("/my runs/run")) == "'/my runs/run'"
    assert shell_word("run") == "run"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_of_settings_may_begin_with_a_byte_order_mark(tmp_path, encoding):
    (tmp_path / "f.toml").write_text('name = "Küche"\n', encoding=encoding)
    assert read_toml(tmp_path / "f.toml") == {"name": "Küche"}


def test_what_is_no_text_is_still_refused(tmp_path):
    (tmp_path / "f.toml").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match="codec can't decode"):
        read_toml(tmp_path / "f.toml")
    (tmp_path / "g.toml").write_text("= 1")
    with pytest.raises(msgspec.DecodeError):
        read_toml(tmp_path / "g.toml")


def test_a_trust_store_that_cannot_be_written_says_what_moves_it(tmp_path, monkeypatch):
    """A file stands where the user's folder would be."""
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path / "taken" / "config"))
    with pytest.raises(UnavailableError, match=r"set PROTOFLEET_CONFIG .*--trust FILE"):
        keys.trust(bytes(32))
