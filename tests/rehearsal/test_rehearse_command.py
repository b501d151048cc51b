"""``protofleet rehearse`` and ``protofleet fleet init``."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from protofleet.cli.fleet import fleet as fleet_command
from protofleet.cli.rehearse import rehearse
from protofleet.cli.report import report
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.errors import InputError
from protofleet.federation.plan import make_plan
from protofleet.federation.records import RunRecord, load_record
from protofleet.federation.settings import load_config
from protofleet.hub.dashboard.reading import RunReader
from protofleet.rehearsal.fleet_file import load_rehearsal

pytestmark = pytest.mark.slow(seconds=8)


@pytest.fixture
def written(study, monkeypatch):
    """In the study's folder, with a fleet file as ``fleet init`` writes it."""
    monkeypatch.chdir(study)
    done = CliRunner().invoke(
        fleet_command, ["init", "--devices", "pi-4=3", "--devices", "phone-low=2", "--days", "2"]
    )
    assert done.exit_code == 0, done.output
    assert "next: protofleet rehearse fleet.toml" in done.output
    return study / "fleet.toml"


def test_a_fleet_is_rehearsed_and_two_settings_compared(written):
    done = CliRunner().invoke(
        rehearse,
        [
            str(written),
            *("--vary", "codec.up=raw,int8", "--seeds", "2", "--workers", "1"),
            *("--plot", "fleet.png", "--json", "fleet.json"),
        ],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert any(line.startswith("codec.up=int8: 3 rounds in ") for line in lines)
    assert any(line.startswith("phone-low (2)") for line in lines)
    assert any("Raspberry Pi 4" in line for line in lines)
    (raw,) = [line for line in lines if line.startswith("codec.up=raw  ")]
    (coded,) = [line for line in lines if line.startswith("codec.up=int8  ")]
    assert "±" in raw
    assert "±" in coded
    assert (written.parent / "fleet.png").read_bytes()[:4] == b"\x89PNG"
    told = json.loads((written.parent / "fleet.json").read_text())
    assert [(one["label"], one["seed"]) for one in told] == [
        ("codec.up=raw", 0),
        ("codec.up=raw", 1),
        ("codec.up=int8", 0),
        ("codec.up=int8", 1),
    ]
    assert told[0]["outcome"]["told"] >= 4


def test_a_rehearsal_is_kept_as_a_run_for_report_and_dashboard(written):
    asked = [str(written), "--workers", "1", "--run-dir", "rehearsed"]
    done = CliRunner().invoke(rehearse, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "next: protofleet report rehearsed" in done.output
    record = load_record(Path("rehearsed/result.json"), RunRecord)
    assert [one.round_id for one in record.rounds] == [1, 2, 3]
    assert record.rounds[0].bytes_up > 0
    assert record.outcome.told >= 4
    assert {one.id[:4] for one in record.devices} == {"pi-4", "phon"}
    assert all(one.bytes_up > 0 and one.peak_rss_bytes > 2**20 for one in record.devices)
    lines = [line for line in done.output.splitlines() if line.startswith("3 rounds in ")]
    assert len(lines) == 1

    told = CliRunner().invoke(report, ["rehearsed"], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    shown = RunReader("rehearsed", Path("rehearsed")).read()
    assert not shown.trouble
    assert [one.round_id for one in shown.committed] == [1, 2, 3]
    assert shown.name == "study (rehearsed)"
    assert shown.rounds == 3
    started = datetime.fromtimestamp(shown.events[0].time_s)  # noqa: DTZ006 - local, as in the file
    assert (started.hour, started.minute) == (8, 0)
    assert {one.event for one in shown.events} == {
        *("started", "round_opened", "update_received", "round_closed")
    }
    times = [one.time_s for one in shown.events]
    assert times == sorted(times)
    assert set(shown.update_times[1]) == {one.id for one in record.devices}
    assert shown.outcome == record.outcome.summary

    again = CliRunner().invoke(rehearse, asked)
    assert "rehearsed: it holds a run already; name another one" in str(again.exception)
    config = load_config(written.parent / "federation.toml")
    config = msgspec.structs.replace(config, run_dir=Path("rehearsed"))
    with pytest.raises(InputError, match=r"a run with federation study \(rehearsed\)"):
        Ledger(config.run_dir, make_plan(config).identity)


def test_of_a_rehearsal_without_a_round_there_is_nothing_to_report(written):
    asked = [str(written), "--workers", "1", "--run-dir", "rehearsed", "--days", "0.1"]
    done = CliRunner().invoke(rehearse, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "next: protofleet report" not in done.output


@pytest.mark.parametrize("with_it", [("--seeds", "2"), ("--no-training",), ("--vary", "seed=1,2")])
def test_a_run_folder_keeps_one_rehearsal_with_its_training(written, with_it):
    done = CliRunner().invoke(rehearse, [str(written), "--run-dir", "rehearsed", *with_it])
    assert done.exit_code == 2
    assert "--run-dir keeps one rehearsal" in done.output


def test_for_bytes_and_energy_alone_nothing_is_trained(written):
    done = CliRunner().invoke(rehearse, [str(written), "--no-training", "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert "score" not in done.output
    assert "pi-4 (3)" in done.output


def test_each_assumption_is_shown_at_the_ends_of_its_spread(written):
    done = CliRunner().invoke(
        rehearse, [str(written), "--no-training", "--sensitivity", "--workers", "1"]
    )
    assert done.exit_code == 0, done.output
    joules = {
        line.split("  ")[0]: float(line.split()[-3])
        for line in done.output.splitlines()
        if line.startswith(("as assumed", "a busy core", "networks", "training takes"))
    }
    assert len(joules) == 7
    least, most = joules["a busy core draws least"], joules["a busy core draws most"]
    assert least <= joules["as assumed"] <= most


@pytest.mark.parametrize("text", ["codec.up", "=raw", "codec.up="])
def test_what_is_to_vary_has_a_key_and_values(written, text):
    done = CliRunner().invoke(rehearse, [str(written), "--vary", text])
    assert done.exit_code == 2
    assert "expected KEY=A,B" in done.output


def test_a_file_that_is_there_is_not_written_over(written):
    before = written.read_text()
    done = CliRunner().invoke(fleet_command, ["init"])
    assert done.exit_code != 0
    assert "is there already" in str(done.exception)
    assert written.read_text() == before


def test_a_kind_has_a_number(written):  # noqa: ARG001 - in its folder
    done = CliRunner().invoke(fleet_command, ["init", "other.toml", "--devices", "pi-4"])
    assert done.exit_code == 2
    assert "expected KIND=N" in done.output


def test_a_device_is_measured_where_it_is(written):
    done = CliRunner().invoke(fleet_command, ["measure", "mine"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("\n[hardware.mine]\nspeed = {low = ")
    written.write_text(written.read_text().replace('hardware = "pi-4"', 'hardware = "mine"'))
    written.write_text(written.read_text() + done.output)
    assert load_rehearsal(written).hardware["mine"].memory_mb > 100
    refused = CliRunner().invoke(fleet_command, ["measure", "my board"])
    assert isinstance(refused.exception, InputError)


def test_at_a_terminal_fleet_init_asks_for_what_no_option_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("protofleet.cli.fleet._is_asked", lambda: True)
    said = "watch=3, pi-5=2\n7\n\ny\n"
    done = CliRunner().invoke(fleet_command, ["init", "--federation", "f.toml"], input=said)
    assert done.exit_code == 0, done.output
    text = (tmp_path / "fleet.toml").read_text()
    for part in ('federation = "f.toml"', 'data = "data"', "days = 7", "count = 3", "count = 2"):
        assert part in text
    assert "only_unmetered" not in text
