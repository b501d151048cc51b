"""What the browser's tests compare with is what this version of the package computes."""

import json
from pathlib import Path

import pytest

from web import (
    golden_gate,
    golden_intake,
    golden_optimisers,
    golden_random,
    golden_shared,
    golden_tasks,
)

_GOLDEN = Path(__file__).parent.parent.parent / "src" / "web" / "test" / "golden"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("gate", golden_gate.golden),
        ("intake", golden_intake.cases),
        ("random", golden_random.numbers),
        ("shared", golden_shared.facts),
        ("optimisers", golden_optimisers.hashes),
        ("tasks", golden_tasks.cases),
    ],
)
def test_golden_numbers_are_up_to_date(name, written):
    assert json.loads((_GOLDEN / f"{name}.json").read_text()) == written()
