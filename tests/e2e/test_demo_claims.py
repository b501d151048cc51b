"""What the README says of ``make demo``, read against the demonstration as it runs there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from protofleet.federation.records import load_record
from protofleet.report import ComparedRecord

pytestmark = [pytest.mark.full_size, pytest.mark.mosquitto, pytest.mark.timeout(900)]

_README = (Path(__file__).parents[2] / "README.md").read_text()
_MOVES = 4.0
"""Points by which another machine's scores may differ: its arithmetic takes other paths."""
_NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ComparedRecord:
    out = tmp_path_factory.mktemp("demo") / "run"
    command = [sys.executable, "-m", "protofleet", "demo", "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return load_record(out / "result.json", ComparedRecord)


def _table() -> dict[str, list[float | None]]:
    """Mean scores by row, in the order of the columns."""
    rows = re.findall(r"^\| (start|Local|FedAvg|Ditto) \|(.*)\|$", _README, re.MULTILINE)
    return {
        name: [None if cell.strip() == "-" else float(cell.split()[0]) for cell in cells.split("|")]
        for name, cells in rows
    }


def test_the_table_is_that_of_the_run(result):
    found = {one.label: one.last for one in result.comparison}
    found["start"] = result.comparison[0].start
    assert found.keys() == _table().keys()
    for name, told in _table().items():
        for kind, said in zip(("personalisation", "generalisation", "global"), told, strict=True):
            one = found[name].sections.get(kind, {}).get("accuracy")
            assert (one is None) == (said is None), (name, kind)
            if one is not None:
                assert 100 * one.mean == pytest.approx(said, abs=_MOVES), (name, kind)


def test_the_owners_are_as_well_off_as_it_says(result):
    told = " ".join(_README.split())
    start, end, alone = map(
        float,
        re.search(
            r"\(balanced accuracy ([\d.]+) %, then ([\d.]+) %\).*? than alone \(([\d.]+) %\)", told
        ).groups(),
    )
    outcome = result.outcome
    assert [100 * one for one in (outcome.start, outcome.end, outcome.alone)] == pytest.approx(
        [start, end, alone], abs=_MOVES
    )
    assert "Of the eight owners all are better off than before" in told
    assert outcome.told == 8
    assert outcome.since_start.helped >= 7  # the verdict on one may hang on a single digit
    better = re.search(r"by more than two points (\w+) are better off than alone", told)[1]
    assert outcome.beside_alone.helped == pytest.approx(_NUMBERS.index(better), abs=2)
    assert "none worse" in told
    assert outcome.beside_alone.harmed == 0
