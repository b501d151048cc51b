"""The local engine beside its peers: the smallest run of the real thing."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from ray_extra import needs_ray

from protofleet.benchmarks import experiments
from protofleet.benchmarks._process_times import cpu_s, descendants
from protofleet.benchmarks.experiments import EngineOptions, EngineRow, show, verdict
from protofleet.cli.bench import bench
from protofleet.errors import UnavailableError


@pytest.mark.full_size
@pytest.mark.timeout(180)
def test_the_engine_is_measured_beside_a_plain_loop(tmp_path, monkeypatch):
    """Of imitated data: there are none at the place that is named."""
    monkeypatch.setattr(experiments, "_PEOPLE", 3)
    rows = tmp_path / "rows.json"
    arguments = ["experiments", "--quick", "--only", "perceptron", "--cores", "1"]
    done = CliRunner().invoke(
        bench, [*arguments, "--data-root", str(tmp_path), "--json", str(rows)]
    )
    assert done.exit_code == 0, done.output
    assert "pair 3 of 3" in done.stderr
    (row,) = msgspec.convert(msgspec.json.decode(rows.read_bytes())["rows"], list[EngineRow])
    assert (row.engine, row.clients, row.cores, row.pairs) == ("local", 3, 1, 3)
    assert row.data == "random, of UCI-HAR's shape"
    assert row.against == "plain PyTorch"
    assert row.ratio_p25 <= row.ratio <= row.ratio_p75
    assert min(row.clients_per_second, row.plain_clients_per_second) > 0
    assert (row.target, row.model in done.stdout) == (2, True)
    assert min(row.cpu_ms, row.plain_cpu_ms) > 0
    assert re.search(r"^targets: [01] of 1 met", done.stdout, re.MULTILINE)


def test_the_table_says_which_targets_are_met():
    """A row without something beside it, or beside the local engine, has none."""
    slow, fast = a_row(ratio=1.5, target=2.0), a_row(ratio=6.9, target=5.0, against="Flower 1.41.0")
    rows = [slow, fast, a_row(engine="ray", ratio=0.7), a_row()]
    lines: list[str] = []
    show(rows, lines.append)
    assert [line.split()[-1] for line in lines[1:3]] == ["MISSED", "met"]
    assert [line.split()[-1] for line in lines[3:]] == ["2.00", "nothing"]
    assert verdict(rows) == "targets: 1 of 2 met; missed: HART, plain PyTorch (1.50 of 2)"
    assert verdict(rows[2:]) == "targets: none among these rows"


def a_row(*, ratio=None, against="plain PyTorch", **more):
    beside = ratio and {
        "plain_clients_per_second": 50.0,
        "ratio_p25": ratio,
        "ratio_p75": ratio,
        "cpu_ratio": 2.0,
    }
    row = EngineRow(
        **{"engine": "local", **more},
        model="HART",
        clients=30,
        cores=2,
        data="UCI-HAR",
        clients_per_second=100.0,
        against=against,
        pairs=15,
    )
    return msgspec.structs.replace(row, ratio=ratio, **(beside or {}))


@pytest.mark.full_size
@pytest.mark.timeout(180)
def test_ray_is_measured_beside_the_local_engine(monkeypatch):
    needs_ray()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    options = EngineOptions(engine="ray", quick=True, only=("4 kB",), cores=1)
    (row,) = experiments.run(options, lambda _: None)
    assert (row.engine, row.against, row.target) == ("ray", "local engine", None)
    assert (row.clients, row.pairs) == (50, 3)
    assert min(row.cpu_ms, row.plain_cpu_ms, row.ratio) > 0


@pytest.mark.slow(seconds=8)
def test_without_an_interpreter_that_has_flower_the_engine_stands_alone():
    (row,) = experiments.run(EngineOptions(quick=True, only=("4 kB",), cores=1), lambda _: None)
    assert (row.clients, row.against, row.ratio) == (50, None, None)
    with pytest.raises(UnavailableError, match=r"Flower in .*No module named 'flwr'"):
        list(
            experiments.run(
                EngineOptions(quick=True, only=("4 kB",), flower=Path(sys.executable), cores=1),
                lambda _: None,
            )
        )


def test_processor_time_of_other_processes_is_known():
    assert os.getpid() in descendants(os.getppid()) | {os.getpid()}
    assert os.getpid() not in descendants(os.getpid())
    assert cpu_s(os.getpid()) > 0
    assert cpu_s(2**22 + 1) == 0
