"""The folder has one file per rule of the specification."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def test_every_rule_of_the_specification_has_its_file_and_occurs_in_the_code():
    text = (_ROOT / "docs" / "bundle.md").read_text()
    table = text[text.index("## Order of checks") : text.index("## Trust")]
    rows = [line.rsplit("|", 2)[1] for line in table.splitlines() if re.match(r"\| \d+ \|", line)]
    rules = {rule for row in rows for rule in re.findall(r"`([a-z0-9-]+)`", row)}
    assert len(rules) == 26
    homes = [_ROOT / "src/protofleet/bundle", _ROOT / "src/protofleet/tensors"]
    code = "".join(path.read_text() for home in homes for path in home.rglob("*.py"))
    for rule in rules:
        assert (_ROOT / "tests/attacks" / f"test_{rule.replace('-', '_')}.py").is_file(), rule
        assert f'"{rule}"' in code, rule
