"""``protofleet load``: light devices on a real coordinator and a real Mosquitto."""

from __future__ import annotations

import os
import resource

import msgspec
import pytest
from brokers import aedes
from click.testing import CliRunner

from protofleet.benchmarks.load.device import shift
from protofleet.benchmarks.load.measure import Load, federate, measure, plain_loop
from protofleet.cli.load import load as command
from protofleet.errors import InputError


@pytest.mark.slow(seconds=8)
def test_a_small_load_is_measured_and_every_update_counted_once(tmp_path):
    """``measure`` compares the model with the mean of what all devices have added."""
    rows = tmp_path / "rows.json"
    arguments = ["--devices", "30", "--update-bytes", "70000", "--rounds", "1", "--json", str(rows)]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    (row,) = msgspec.json.decode(rows.read_bytes())["rows"]
    assert (row["devices"], row["update_bytes"], row["rounds"]) == (30, 70_000, 1)
    assert row["bytes_up"] > 2 * 30 * 70_000
    assert row["bytes_down"] > 2 * 30 * 70_000
    for name in (
        "seconds_per_round",
        "closing_seconds",
        "bound_seconds",
        "bound_cpu_seconds",
        "coordinator_peak_mb",
        "broker_peak_mb",
    ):
        assert row[name] > 0, name
    assert "30 devices x 70,000 bytes" in done.output


@pytest.mark.slow(seconds=6)
def test_a_federation_runs_on_a_broker_of_another_make(tmp_path):
    """aedes: presences, wills, retained announcements and transfers of a real coordinator."""
    with aedes() as port:
        load = Load(devices=5, update_bytes=70_000, rounds=2)
        row = federate(tmp_path, f"mqtt://127.0.0.1:{port}", os.getpid(), load)
    assert (row.devices, row.rounds) == (5, 1)


def test_more_devices_than_the_machine_has_files_for_are_refused(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 4096))
    with pytest.raises(InputError, match=r"5000 devices: .* at most 1280 devices"):
        measure(5000, 65_536, 1)


def test_the_devices_differ_little_enough_for_nothing_to_be_clipped():
    shifts = [shift(number) for number in range(100)]
    assert len(set(shifts)) > 1
    assert max(shifts) < 2 * min(shifts)


def test_the_plain_loop_reads_every_file(tmp_path):
    seconds, cpu_seconds = plain_loop(tmp_path / "files", 3, 4096)
    assert seconds > 0
    assert cpu_seconds > 0
    assert len(list((tmp_path / "files").iterdir())) == 3
