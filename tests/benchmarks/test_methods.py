"""Methods on an architecture: real federations, and what cannot run says what to do."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from protofleet import __version__
from protofleet.benchmarks.methods import Cell, CellStore, architectures, in_order, page, run
from protofleet.cli.bench import bench
from protofleet.errors import InputError


def a_cell(*, architecture="A", strategy="one", version="0.2.0", day="2026-11-26", **more):
    return Cell(architecture=architecture, strategy=strategy, version=version, day=day, **more)


@pytest.mark.mosquitto
@pytest.mark.full_size
def test_a_method_runs_with_both_runtimes_or_says_what_to_do():
    """One for each way in which a bundle is made, and one that wants images."""
    found = {
        cell.strategy: cell
        for cell in run(architectures(["1-D CNN"]), ("cdfl", "fedali", "fedper"))
    }
    assert {name: cell.outcome for name, cell in found.items()} == {
        "cdfl": "refused",
        "fedali": "runs",
        "fedper": "runs",
    }
    assert "take fedproto, moon or protohar for other data" in found["cdfl"].note
    assert {cell.version for cell in found.values()} == {__version__}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", cell.day) for cell in found.values())


def test_the_page_numbers_what_is_said_once():
    """Three refusals for two reasons."""
    cells = [
        a_cell(architecture="A", strategy="one", outcome="runs"),
        a_cell(architecture="A", strategy="two", outcome="refused", note="too small"),
        a_cell(architecture="B", strategy="one", outcome="refused", note="too small"),
        a_cell(architecture="B", strategy="two", outcome="failed", note="it fell"),
    ]
    text = page(cells)
    assert "1 runs, 2 refused, 1 failed." in text
    assert "| A | runs | refused (1) |\n| B | refused (1) | failed (2) |" in text
    assert text.endswith("1. too small\n2. it fell\n")


def test_the_page_says_with_which_versions_and_when_its_cells_were_measured():
    cells = [
        a_cell(architecture="A", strategy=name, outcome="runs", version=version, day=day)
        for name, version, day in (
            ("one", "0.2.0", "2026-11-26"),
            ("two", "0.1.0", "2026-11-23"),
            ("three", "0.2.0", "2026-11-24"),
        )
    ]
    told = "Measured with version 0.1.0, 0.2.0, 2026-11-23 to 2026-11-26; an empty cell"
    assert told in page(cells)
    assert "with version 0.1.0, 2026-11-23; an" in page(cells[1:2])


def _cells(*outcomes):
    return [a_cell(architecture="A", strategy=f"s{n}", outcome=o) for n, o in enumerate(outcomes)]


def test_cells_are_kept_as_they_come_and_failed_ones_alone_are_taken_again(tmp_path):
    path = tmp_path / "cells.jsonl"
    first, second, third = _cells("runs", "refused", "failed")
    store = CellStore(path)
    for cell in (first, second, third):
        store.add(cell)
    assert list(CellStore(path).cells.values()) == [first, second, third]
    assert CellStore(path).settled() == {("A", "s0"), ("A", "s1")}
    again = a_cell(architecture="A", strategy="s2", outcome="runs")
    CellStore(path).add(again)
    assert CellStore(path).cells["A", "s2"] == again


def test_a_line_that_an_interruption_cut_off_is_measured_again(tmp_path):
    path = tmp_path / "cells.jsonl"
    first, second = _cells("runs", "runs")
    CellStore(path).add(first)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"architecture":"A","stra')
    store = CellStore(path)
    assert path.read_bytes() == whole
    store.add(second)
    assert list(CellStore(path).cells.values()) == [first, second]


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text("[1, 2]\n")
    with pytest.raises(InputError, match="expected a cell on every line"):
        CellStore(path)


@pytest.mark.parametrize("field", ["version", "day"])
def test_a_line_without_its_version_or_day_is_not_taken_for_one_of_now(tmp_path, field):
    path = tmp_path / "cells.jsonl"
    CellStore(path).add(a_cell(outcome="runs"))
    path.write_text(re.sub(f',"{field}":"[^"]*"', "", path.read_text()))
    with pytest.raises(InputError, match=f"missing required field `{field}`"):
        CellStore(path)


def test_rows_stand_in_the_sweeps_order_and_others_are_left_out():
    cells = [
        a_cell(architecture=name, strategy="fedavg", outcome="runs")
        for name in ("BERT", "gone", "LSTM classifier")
    ]
    assert [one.architecture for one in in_order(cells)] == ["LSTM classifier", "BERT"]


@pytest.mark.mosquitto
def test_what_is_settled_is_not_run_again_and_stands_on_the_page(tmp_path):
    cells, out = tmp_path / "cells.jsonl", tmp_path / "page.md"
    CellStore(cells).add(a_cell(architecture="1-D CNN", strategy="fedper", outcome="runs"))
    options = ["--only", "1-D CNN", "--strategy", "fedper", "--json", str(cells), "--out", str(out)]
    result = CliRunner().invoke(bench, ["methods", *options], catch_exceptions=False)
    assert (result.exit_code, result.output) == (0, "")
    assert "| 1-D CNN | runs |" in out.read_text()


def test_an_operator_is_no_architecture():
    with pytest.raises(InputError, match=r"F\.pad, constant.: that is no architecture"):
        architectures(["F.pad, constant"])
