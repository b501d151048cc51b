"""The small faults of ``scripts/mutants``: each changes one place, and the file is still Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

_SCRIPTS = Path(__file__).resolve().parent.parent / "scripts" / "mutants"
_SOURCE = '''
"""A docstring with 1 < 2."""

LIMIT: int = 3


def kept(values: list[int], most: int = 4) -> list[int]:
    """Those below 5."""
    found = []
    for value in values:
        if value < most and not value == 7:
            found.append(value + 1)
            log.info("kept %d", 8)
    if found:
        return found
    raise ValueError(f"none of {len(values)}")
'''


@pytest.fixture
def alter(monkeypatch):
    monkeypatch.syspath_prepend(_SCRIPTS)
    import alter as module  # noqa: PLC0415 - found from here on

    return module


def test_every_operator_has_its_fault(alter):
    source = _SOURCE.encode()
    changed = {
        after.strip()
        for mutant in alter.mutants(source)
        for before, after in zip(
            _SOURCE.splitlines(), mutant.of(source).decode().splitlines(), strict=True
        )
        if before != after
    }
    assert changed == {
        "if value < most or not value == 7:",
        "if value <= most and not value == 7:",
        "if value < most and (value == 7):",
        "if value < most and not value != 7:",
        "if value < most and not value == 8:",
        "pass",
        "found.append(value - 1)",
        "found.append(value + 2)",
        'log.info("kept %d", 9)',
        "if not (found):",
        "return None",
    }


@pytest.mark.parametrize("name", ["federation/server.py", "wire/mqtt/link.py", "kernels/alp.py"])
def test_a_file_with_a_fault_is_still_python_and_differs_in_its_line(alter, name):
    source = (_SCRIPTS.parent.parent / "src" / "protofleet" / name).read_bytes()
    found = alter.mutants(source)
    assert len(found) > 20
    for mutant in found:
        altered = mutant.of(source)
        ast.parse(altered)
        assert altered != source
        pairs = enumerate(zip(source.splitlines(), altered.splitlines(), strict=False), 1)
        assert next(number for number, (one, other) in pairs if one != other) >= mutant.line
