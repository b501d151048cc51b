"""The local engine beside its peers: the smallest run of the real thing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from protofleet.benchmarks import experiments
from protofleet.benchmarks._process_times import cpu_s, descendants
from protofleet.benchmarks.experiments import EngineOptions, EngineRow
from protofleet.cli.bench import bench
from protofleet.errors import UnavailableError


@pytest.mark.slow(seconds=30)
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
    assert row.model in done.stdout


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
