from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import asdict

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.reading import RunAbout
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.coordinator.results import Results, refresh
from protofleet.federation.records import (
    Costs,
    EvaluationRecord,
    Metrics,
    RunRecord,
    Scores,
    Spread,
    UpdateRecord,
    load_record,
)
from protofleet.report.details import details_of_run
from protofleet.strategies.types import ServerState
from protofleet.wire.mqtt.usage import DeviceUsage


def _scored(value):
    spread = Spread(mean=value, std=0.0)
    return Scores(personalisation=Metrics(macro_f1=spread, accuracy=spread))


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "run", {}) as made:
        yield made


def _play_round(ledger, folder, round_id, *, final=False, train_step_ms=(1.0, 3.0), examples=4):
    ledger.open_round(round_id, ("a", "b"), 10.0, final=final)
    for client_id in ("a", "b"):
        record = UpdateRecord(
            client_id=client_id,
            round_id=round_id,
            num_examples=examples,
            evaluation=EvaluationRecord(
                own=((round_id, 0), (0, 1)), start=((0, 1), (0, 1)) if round_id == 1 else None
            ),
            costs=Costs(
                train_step_ms=train_step_ms, infer_ms=(0.5,), peak_rss_bytes=7, backend="litert"
            ),
        )
        path = folder / client_id
        path.write_bytes(b"an update")
        accepted = Accepted(device_id=client_id, transfer_id="t", record=record)
        ledger.accept(ArrivedUpdate(path, accepted))
        totals = DeviceUsage(bytes_up=100 * round_id, bytes_down=70 * round_id, peak_rss_bytes=9)
        ledger.usage.note(client_id, round_id, totals)
    ledger.close_round(round_id)
    state = ServerState(round_id=round_id, tensors={"w": np.zeros(1)})
    ledger.commit_round(state, _scored(1 / round_id), 12.5, keep_states=1)


_ABOUT = RunAbout(strategy="fedavg", seed=5, task="classification", outputs=("x", "y"))
_FILES = ("result.json", "devices.json")


def _results(ledger):
    return Results(ledger, _ABOUT)


def test_the_file_has_rounds_devices_and_differences_of_counters(ledger, tmp_path):
    ledger.usage.note("a", 0, DeviceUsage(bytes_up=30, bytes_down=20, peak_rss_bytes=1))
    results = _results(ledger)
    for round_id in (1, 2):
        _play_round(ledger, tmp_path, round_id)
        results.write()
    found = json.loads(results.path.read_text())
    assert [r["round_id"] for r in found["rounds"]] == [1, 2]
    assert [r["seconds"] for r in found["rounds"]] == [2.5, 2.5]
    assert [(r["bytes_up"], r["bytes_down"]) for r in found["rounds"]] == [(170, 120), (200, 140)]
    used = DeviceUsage(bytes_up=200, bytes_down=140, peak_rss_bytes=9)
    assert found["devices"][0] == {
        "id": "a",
        **asdict(used),
        "train_step_ms": {"p50": 2.0, "p95": 3.0},
        "infer_ms": {"p50": 0.5, "p95": 0.5, "p99": 0.5},
    }
    details = json.loads((ledger.folder / "devices.json").read_text())["devices"][0]
    assert details["evaluation"]["own"] == [[2, 0], [0, 1]]
    assert [r["round_id"] for r in details["bytes_by_round"]] == [0, 1, 2]
    backends = details_of_run(ledger.folder, title="", data="").backends
    assert backends == {"a": "litert", "b": "litert"}


def test_a_final_fit_is_a_row_of_its_own_kind_and_what_the_summary_quotes(ledger, tmp_path):
    for round_id in (3, 4):
        _play_round(ledger, tmp_path, round_id)
    _play_round(ledger, tmp_path, 5, final=True)
    record = _results(ledger).write()
    assert [row.final for row in record.rounds] == [False, False, True]
    assert record.scores.personalisation["accuracy"].mean == 1 / 5


def test_without_a_final_fit_the_summary_quotes_the_best_round_and_the_last(ledger, tmp_path):
    for round_id in (1, 2, 3):
        _play_round(ledger, tmp_path, round_id)
    record = _results(ledger).write()
    assert record.scores.personalisation["accuracy"].mean == 1
    assert record.last.personalisation["accuracy"].mean == 1 / 3


def test_whoever_reads_a_run_that_goes_on_has_the_same_results_made(ledger, tmp_path):
    refresh(tmp_path)
    ledger.run.note_about(_ABOUT)
    refresh(ledger.folder)
    assert not (ledger.folder / "result.json").exists(), "no round is committed"
    for round_id in (1, 2):
        _play_round(ledger, tmp_path, round_id)
    _results(ledger).write()
    written = [(ledger.folder / name).read_bytes() for name in _FILES]
    for name in _FILES:
        (ledger.folder / name).unlink()
    ledger.run.note_about(_ABOUT)
    refresh(ledger.folder)
    assert [(ledger.folder / name).read_bytes() for name in _FILES] == written


def test_latencies_are_the_last_of_each_device_and_in_a_large_fleet_fewer(
    ledger, tmp_path, monkeypatch
):
    monkeypatch.setattr("protofleet.coordinator.results._SAMPLES_IN_ALL", 6)
    for round_id in (1, 2, 3):
        _play_round(ledger, tmp_path, round_id, train_step_ms=(float(round_id), 9.0))
    _results(ledger).write()
    devices = json.loads((ledger.folder / "devices.json").read_bytes())["devices"]
    assert [one["train_step_ms"] for one in devices] == [[9.0, 3.0, 9.0]] * 2
    assert [one["infer_ms"] for one in devices] == [[0.5] * 3] * 2
    assert [one["rounds"] for one in devices] == [3, 3]


def test_the_rounds_bytes_are_of_all_devices_and_the_files_devices_those_that_counted(
    ledger, tmp_path
):
    for name in ("0", "aa", "c"):  # before, between and behind those whose updates count
        ledger.usage.note(name, 1, DeviceUsage(bytes_up=1, bytes_down=2, peak_rss_bytes=3))
    results = _results(ledger)
    _play_round(ledger, tmp_path, 1)
    (done,) = results.write().rounds
    assert (done.bytes_up, done.bytes_down) == (203, 146)
    found = json.loads(results.path.read_text())["devices"]
    assert [(one["id"], one["bytes_up"]) for one in found] == [("a", 100), ("b", 100)]


def test_of_rounds_long_ago_the_ledger_keeps_who_took_part_and_the_results_the_rest(
    ledger, tmp_path, monkeypatch
):
    monkeypatch.setattr("protofleet.coordinator.ledger.ledger.DETAILED_ROUNDS", 2)
    for round_id in (1, 2, 3, 4):
        _play_round(ledger, tmp_path, round_id)
    first, thin, whole = (next(ledger.accepted(round_id)) for round_id in (1, 2, 3))
    assert first.record.evaluation == EvaluationRecord(start=((0, 1), (0, 1)))
    assert thin.record.costs == Costs(peak_rss_bytes=7, backend="litert")
    assert thin.record.evaluation == EvaluationRecord()
    assert (thin.record.num_examples, thin.transfer_id) == (4, "t")
    assert whole.record.costs.train_step_ms == (1.0, 3.0)
    record = _results(ledger).write()
    assert [one.scores.personalisation["accuracy"].mean for one in record.rounds] == [
        1,
        1 / 2,
        1 / 3,
        1 / 4,
    ]
    assert [(one.id, one.start, one.end) for one in record.outcome.owners] == [
        ("a", 0.5, 1.0),
        ("b", 0.5, 1.0),
    ]
    assert load_record(ledger.folder / "result.json", RunRecord).outcome == record.outcome
    devices = json.loads((ledger.folder / "devices.json").read_text())["devices"]
    assert [(one["rounds"], one["train_step_ms"]) for one in devices] == [(4, [1.0, 3.0] * 2)] * 2


def test_a_round_tells_how_many_of_its_devices_had_examples(ledger, tmp_path):
    _play_round(ledger, tmp_path, 1)
    _play_round(ledger, tmp_path, 2, examples=0)
    assert [one.trained for one in _results(ledger).write().rounds] == [2, 0]
    assert ledger.committed_round(2).trained == 0
