from __future__ import annotations

import json

import numpy as np
import pytest

from protofleet.coordinator.ledger import Ledger
from protofleet.coordinator.ledger_rows import Accepted, ArrivedUpdate, Totals
from protofleet.coordinator.results import Results
from protofleet.federation.records import (
    Costs,
    EvaluationRecord,
    Metrics,
    Scores,
    Spread,
    UpdateRecord,
)
from protofleet.report.details import details_of_run
from protofleet.strategies.types import ServerState


def _scored(value):
    spread = Spread(mean=value, std=0.0)
    return Scores(personalisation=Metrics(macro_f1=spread, accuracy=spread))


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "run", {}) as made:
        yield made


def _play_round(ledger, folder, round_id, *, final=False):
    ledger.open_round(round_id, ("a", "b"), 10.0, final=final)
    for client_id in ("a", "b"):
        record = UpdateRecord(
            client_id=client_id,
            round_id=round_id,
            num_examples=4,
            evaluation=EvaluationRecord(own=((round_id, 0), (0, 1))),
            costs=Costs(
                train_step_ms=(1.0, 3.0), infer_ms=(0.5,), peak_rss_bytes=7, backend="litert"
            ),
        )
        path = folder / client_id
        path.write_bytes(b"an update")
        accepted = Accepted(device_id=client_id, transfer_id="t", record=record)
        ledger.accept(ArrivedUpdate(path, accepted))
        totals = Totals(bytes_up=100 * round_id, bytes_down=70 * round_id, peak_rss_bytes=9)
        ledger.traffic.note(client_id, round_id, totals)
    ledger.close_round(round_id)
    state = ServerState(round_id=round_id, tensors={"w": np.zeros(1)})
    ledger.commit_round(state, _scored(1 / round_id), 12.5, keep_states=1)


_FILES = ("result.json", "devices.json")


def _results(ledger):
    return Results(ledger, strategy="fedavg", seed=5, task="classification", outputs=("x", "y"))


def test_the_file_has_rounds_devices_and_differences_of_counters(ledger, tmp_path):
    ledger.traffic.note("a", 0, Totals(bytes_up=30, bytes_down=20, peak_rss_bytes=1))
    results = _results(ledger)
    for round_id in (1, 2):
        _play_round(ledger, tmp_path, round_id)
        for one in ledger.accepted(round_id):
            results.add(one)
        results.write()
    found = json.loads(results.path.read_text())
    assert [r["round_id"] for r in found["rounds"]] == [1, 2]
    assert [r["seconds"] for r in found["rounds"]] == [2.5, 2.5]
    assert [(r["bytes_up"], r["bytes_down"]) for r in found["rounds"]] == [(170, 120), (200, 140)]
    assert found["devices"][0] == {
        "id": "a",
        "bytes_up": 200,
        "bytes_down": 140,
        "train_step_ms": {"p50": 2.0, "p95": 3.0},
        "infer_ms": {"p50": 0.5, "p95": 0.5, "p99": 0.5},
        "peak_rss_bytes": 9,
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


def test_a_restarted_coordinator_writes_the_same_results(ledger, tmp_path):
    results = _results(ledger)
    for round_id in (1, 2):
        _play_round(ledger, tmp_path, round_id)
        for one in ledger.accepted(round_id):
            results.add(one)
    results.write()
    written = [(ledger.folder / name).read_bytes() for name in _FILES]
    _results(ledger).write()
    assert [(ledger.folder / name).read_bytes() for name in _FILES] == written


def test_samples_of_a_large_fleet_take_no_more_memory_than_those_of_a_small_one(
    ledger, monkeypatch
):
    """Each device has an equal share of what is kept in all, and its latest."""
    monkeypatch.setattr("protofleet.coordinator.results._SAMPLES_IN_ALL", 6)
    results = _results(ledger)
    for name in ("a", "b", "c"):
        for round_id in (1, 2):
            costs = Costs(train_step_ms=(float(round_id),) * 3, phases_s={"train": 1.0})
            record = UpdateRecord(client_id=name, round_id=round_id, num_examples=4, costs=costs)
            results.add(Accepted(device_id=name, transfer_id="t", record=record))
    results.write()
    devices = json.loads((ledger.folder / "devices.json").read_bytes())["devices"]
    assert [one["train_step_ms"] for one in devices] == [
        [1.0] * 3 + [2.0] * 3,
        [2.0] * 3,
        [2.0] * 2,
    ]
    assert [one["phases_s"] for one in devices] == [{"train": 1.0}] * 3


def test_the_rounds_bytes_are_of_all_devices_and_the_files_devices_those_that_counted(
    ledger, tmp_path
):
    for name in ("0", "aa", "c"):  # before, between and behind those whose updates count
        ledger.traffic.note(name, 1, Totals(bytes_up=1, bytes_down=2, peak_rss_bytes=3))
    results = _results(ledger)
    _play_round(ledger, tmp_path, 1)
    for one in ledger.accepted(1):
        results.add(one)
    (done,) = results.write().rounds
    assert (done.bytes_up, done.bytes_down) == (203, 146)
    found = json.loads(results.path.read_text())["devices"]
    assert [(one["id"], one["bytes_up"]) for one in found] == [("a", 100), ("b", 100)]


def test_a_device_that_tells_nothing_has_no_objects_of_its_own(ledger):
    """Thousands of devices may tell nothing but their number of examples."""
    results = _results(ledger)
    for name in ("a", "b"):
        record = UpdateRecord(
            client_id=name,
            round_id=1,
            num_examples=4,
            evaluation=EvaluationRecord(more={}),
            costs=Costs(phases_s={}, cpu_s={}),
        )
        results.add(Accepted(device_id=name, transfer_id="t", record=record))
    ours, theirs = results._devices.values()
    shared = ("train_step_ms", "infer_ms", "evaluation", "phases_s", "cpu_s")
    assert all(getattr(ours, name) is getattr(theirs, name) for name in shared)
