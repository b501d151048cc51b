from __future__ import annotations

import json

import numpy as np
import pytest

from protofleet.coordinator.ledger import Accepted, Ledger, Totals
from protofleet.coordinator.results import Results, round_scores, run_scores
from protofleet.federation.coding import Costs, EvaluationRecord, UpdateRecord
from protofleet.strategies.types import Evaluation, ServerState


def _counts(right, wrong):
    return np.array([[right, wrong], [0, right + wrong]], np.int64)


def test_scores_of_a_round_are_means_and_population_deviations():
    clients = [Evaluation(own=_counts(10, 0)), Evaluation(own=_counts(5, 5))]
    scores = round_scores(clients, _counts(8, 2))
    assert scores["personalisation"]["accuracy"] == {"mean": 0.875, "std": 0.125}
    assert scores["global"]["accuracy"] == {"mean": 0.9, "std": 0.0}
    assert "generalisation" not in scores


def _scored(own, pooled, server):
    def section(value):
        return {
            "macro_f1": {"mean": value - 0.1, "std": 0.0},
            "accuracy": {"mean": value, "std": 0},
        }

    return {
        "personalisation": section(own),
        "generalisation": section(pooled),
        "global": section(server),
    }


def test_a_run_scores_as_its_best_round_and_the_server_has_its_own():
    """The first of equals counts; generalisation is that of the best personal round."""
    rounds = [_scored(0.7, 0.9, 0.6), _scored(0.8, 0.4, 0.5), _scored(0.8, 0.3, 0.6)]
    rounds[2]["global"]["macro_f1"]["mean"] = 0.9
    scores = run_scores(rounds)
    assert scores["personalisation"] == rounds[1]["personalisation"]
    assert scores["generalisation"] == rounds[1]["generalisation"]
    assert scores["global"] == rounds[0]["global"]
    assert run_scores([{}]) == {}


def test_loss_and_further_scores_come_from_the_same_round():
    rounds = [_scored(0.7, 0.9, 0.6), _scored(0.8, 0.4, 0.5)]
    for scores, loss in zip(rounds, (0.1, 0.2), strict=True):
        scores |= {"own_loss": {"mean": loss, "std": 0.0}, "more": {"later": {"mean": loss}}}
    scores = run_scores(rounds)
    assert scores["own_loss"]["mean"] == 0.2
    assert scores["more"] == {"later": {"mean": 0.2}}


def test_after_a_final_fit_the_run_scores_as_that_fit():
    """Although a round before it was better; the server's model has its own best round."""
    rounds, final = [_scored(0.9, 0.9, 0.6)], _scored(0.8, 0.7, 0.1)
    del final["global"]
    scores = run_scores(rounds, final)
    assert scores["personalisation"] == final["personalisation"]
    assert scores["generalisation"] == final["generalisation"]
    assert scores["global"] == rounds[0]["global"]


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
            costs=Costs(train_step_ms=(1.0, 3.0), infer_ms=(0.5,), peak_rss_bytes=7),
        )
        path = folder / client_id
        path.write_bytes(b"an update")
        ledger.accept(path, Accepted(client_id=client_id, transfer_id="t", record=record))
        totals = Totals(bytes_up=100 * round_id, bytes_down=70 * round_id, peak_rss_bytes=9)
        ledger.pay(client_id, round_id, totals)
    ledger.close_round(round_id)
    state = ServerState(round_id=round_id, tensors={"w": np.zeros(1)})
    ledger.commit_round(state, _scored(1 / round_id, 0.5, 0.5), 12.5, keep_states=1)


def _results(ledger):
    return Results(ledger, strategy="fedavg", seed=5, classes=("x", "y"))


def test_the_file_has_rounds_devices_and_differences_of_counters(ledger, tmp_path):
    ledger.pay("a", 0, Totals(bytes_up=30, bytes_down=20, peak_rss_bytes=1))
    results = _results(ledger)
    for round_id in (1, 2):
        _play_round(ledger, tmp_path, round_id)
        results.add(round_id, ledger.accepted(round_id))
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
    assert details["confusion"]["own"] == [[2, 0], [0, 1]]
    assert [r["round_id"] for r in details["bytes_by_round"]] == [0, 1, 2]


def test_a_final_fit_is_a_row_of_its_own_kind_and_what_the_summary_quotes(ledger, tmp_path):
    for round_id in (3, 4):
        _play_round(ledger, tmp_path, round_id)
    _play_round(ledger, tmp_path, 5, final=True)
    document = _results(ledger).document()
    assert [row["final"] for row in document["rounds"]] == [False, False, True]
    assert document["scores"]["personalisation"]["accuracy"]["mean"] == 1 / 5


def test_a_restarted_coordinator_writes_the_same_results(ledger, tmp_path):
    results = _results(ledger)
    for round_id in (1, 2):
        _play_round(ledger, tmp_path, round_id)
        results.add(round_id, ledger.accepted(round_id))
    assert _results(ledger).document() == results.document()
