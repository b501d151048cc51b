"""What benchmarks report."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from protofleet.benchmarks import rounds
from protofleet.benchmarks._rows import Result, Row, aligned, machine_facts, paired_row, show
from protofleet.benchmarks._timing import Sample, in_turns
from protofleet.cli._width import rows
from protofleet.cli.bench import bench
from protofleet.cli.experiment import experiment
from protofleet.errors import InputError


def test_a_ratio_is_the_median_over_pairs_not_the_quotient_of_medians():
    """A slow moment of the machine hits a pair, and leaves the ratio as it is."""
    ours = [Sample(0.001, 0.001), Sample(0.010, 0.003), Sample(0.002, 0.002)]
    theirs = [Sample(0.002, 0.004), Sample(0.020, 0.006), Sample(0.008, 0.004)]
    row = paired_row(("bench", "case"), 2, ours, baseline="them", theirs=theirs)
    assert (row.ours_ms, row.baseline_ms, row.ratio) == (2.0, 8.0, 0.5)
    assert row.details["cpu_ratio"] == 0.5
    assert row.details["pairs"] == 3


def test_alternatives_take_turns_in_rotating_order():
    order: list[str] = []
    cases = {name: lambda name=name: order.append(name) for name in "ab"}
    samples = in_turns(cases, repeats=2, calls=3, warmup=1)
    assert "".join(order) == "ab" + "aaaa" + "bbbb" + "bbbb" + "aaaa"
    assert [len(found) for found in samples.values()] == [2, 2]


def test_the_file_has_the_machine_and_the_rows(tmp_path):
    row = Row(bench="programs", case="x", threads=1, ours_ms=1.5, baseline="y", baseline_ms=3.0)
    Result(machine=machine_facts(), rows=[row]).write(tmp_path / "bench.json")
    read = json.loads((tmp_path / "bench.json").read_text())
    assert read["rows"][0]["ours_ms"] == 1.5
    assert int(read["machine"]["cores"]) >= 1
    assert read["machine"]["onnxruntime"]


def test_the_table_has_a_line_for_each_row():
    lines: list[str] = []
    show([Row(bench="rounds", case="four devices", details={"device_rss_mb": 80.5})], lines.append)
    assert len(lines) == 2
    assert lines[0].split() == ["bench", "case", "details"]
    assert "four devices" in lines[1]
    assert "device_rss_mb 80.5" in lines[1]


@pytest.mark.slow
@pytest.mark.mosquitto
def test_a_federation_of_untrained_devices_gives_times_bytes_and_memory(mosquitto_url):  # noqa: ARG001 - skips without a broker
    row = rounds._row(1_000, 3, keyed=True)
    assert row.ours_ms > 0
    assert row.details["rounds"] == 2
    assert 1 < row.details["socket_up_to_raw"] < 3
    assert row.details["coordinator_rss_mb"] > 10


def test_tables_and_lists_fit_the_terminal(monkeypatch):
    table = [("name", "first", "second"), ("a", "1" * 30, "2" * 30)]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert len(aligned(table)) == 2
    monkeypatch.setenv("COLUMNS", "50")
    folded = aligned(table)
    assert [line.split()[1] for line in folded] == ["first", "1" * 30, "second", "2" * 30]
    listed = list(rows({"long name": "word " * 20, "b": "x" * 60}, indent=2))
    assert [line[:13] for line in listed[:2]] == ["  long name  ", " " * 13]
    assert all(len(line) <= 50 for line in listed if "x" not in line)
    assert listed[-1].endswith("x" * 60)  # a hash stays in one piece


@pytest.mark.parametrize(
    "command", ["bench programs", "bench device --bundle .", "experiment run x"]
)
def test_a_file_that_cannot_be_written_is_named_before_the_work(command, tmp_path):
    """Root may write everywhere but below a file."""
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "x.json"
    group, *rest = command.split()
    command = {"bench": bench, "experiment": experiment}[group]
    with pytest.raises(InputError, match=r"cannot write in .*: Not a directory"):
        CliRunner().invoke(command, [*rest, "--json", str(path)], catch_exceptions=False)
    with pytest.raises(InputError, match="no such folder"):
        CliRunner().invoke(
            command, [*rest, "--json", str(tmp_path / "no" / "x.json")], catch_exceptions=False
        )
