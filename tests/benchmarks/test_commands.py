"""Benchmarks that have no test of their own, as they are called, on the smallest model."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from protofleet.cli.bench import bench

pytestmark = pytest.mark.slow(seconds=8)


@pytest.mark.parametrize(
    ("arguments", "case"),
    [
        (["parity", "--only", "mlp"], "mlp: train"),
        (
            ["programs", "--only", "fasttext"],
            "fastText, 64 of 20000 words, batch 32: train, LiteRT",
        ),
    ],
)
def test_a_quick_benchmark_measures_what_it_names(tmp_path, arguments, case):
    rows = tmp_path / "rows.json"
    done = CliRunner().invoke(bench, [*arguments, "--quick", "--json", str(rows)])
    assert done.exit_code == 0, done.output
    found = msgspec.json.decode(rows.read_bytes())["rows"]
    assert {row["bench"] for row in found} == {arguments[0]}
    assert case in {row["case"] for row in found}


@pytest.mark.mosquitto
def test_a_soak_looks_twice_at_both_sides(tmp_path):
    rows = tmp_path / "rows.json"
    done = CliRunner().invoke(bench, ["soak", "--quick", "--json", str(rows)])
    assert done.exit_code == 0, done.output
    found = msgspec.json.decode(rows.read_bytes())["rows"]
    assert [row["case"].partition(",")[0] for row in found] == ["coordinator", "device"]
    for row in found:
        details = row["details"]
        assert details["files_at_10"] > 0
        # 20 rounds more: what is kept of each round is small, and no file stays behind.
        assert details["files_at_30"] <= details["files_at_10"] + 3
        assert 0 < details["memory_mb_at_10"] < 2 * details["memory_mb_at_30"]
