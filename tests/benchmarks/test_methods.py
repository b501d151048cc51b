"""Methods on an architecture: real federations, and what cannot run says what to do."""

from __future__ import annotations

import pytest

from protofleet.benchmarks.methods import Cell, architectures, page, run
from protofleet.errors import InputError


@pytest.mark.mosquitto
@pytest.mark.slow(seconds=15)
def test_a_method_runs_with_both_runtimes_or_says_what_to_do():
    """One for each way in which a bundle is made, and one that wants images."""
    found = {
        cell.strategy: cell
        for cell in run(architectures(["1-D CNN"]), ("cdfl", "fedali", "fedhp", "fedper"))
    }
    assert {name: cell.outcome for name, cell in found.items()} == {
        "cdfl": "refused",
        "fedali": "runs",
        "fedhp": "runs",
        "fedper": "runs",
    }
    assert "take fedproto, moon or protohar for other data" in found["cdfl"].note


def test_the_page_numbers_what_is_said_once():
    """Three refusals for two reasons."""
    cells = [
        Cell(architecture="A", strategy="one", outcome="runs"),
        Cell(architecture="A", strategy="two", outcome="refused", note="too small"),
        Cell(architecture="B", strategy="one", outcome="refused", note="too small"),
        Cell(architecture="B", strategy="two", outcome="failed", note="it fell"),
    ]
    text = page(cells)
    assert "1 runs, 2 refused, 1 failed." in text
    assert "| A | runs | refused (1) |\n| B | refused (1) | failed (2) |" in text
    assert text.endswith("1. too small\n2. it fell\n")


def test_an_operator_is_no_architecture():
    with pytest.raises(InputError, match=r"F\.pad, constant.: that is no architecture"):
        architectures(["F.pad, constant"])
