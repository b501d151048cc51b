from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from report.fake_run import write_run

from protofleet.cli.report import report as command
from protofleet.errors import InputError
from protofleet.federation.records import (
    DeviceDetails,
    FleetDetails,
    Percentiles,
    RunRecord,
    load_record,
    percentiles,
    save_by_device,
)
from protofleet.report import compare, details_of_run, to_prototypes
from protofleet.report.details import MAX_PROTOTYPES, MAX_SAMPLES

_SCORE = {"macro_f1": {"mean": 0.5, "std": 0.1}, "accuracy": {"mean": 0.6, "std": 0.1}}


def _result(**changes):
    """``result.json`` with exactly the documented fields."""
    scores = {"personalisation": _SCORE, "generalisation": _SCORE, "global": _SCORE}
    device = {
        "id": "a",
        "bytes_up": 10,
        "bytes_down": 20,
        "train_step_ms": {"p50": 1.0, "p95": 2.0},
        "infer_ms": {"p50": 1.0, "p95": 2.0, "p99": 3.0},
        "peak_rss_bytes": 1000,
    }
    one = {"round_id": 1, "seconds": 2.0, "participants": 1, "bytes_up": 10, "bytes_down": 20}
    return {
        "strategy": "fedavg",
        "seed": 1,
        "rounds": [{**one, "scores": scores}],
        "scores": scores,
        "devices": [device],
    } | changes


def _write(path, document):
    path.write_text(json.dumps(document))
    return path


def test_the_documented_fields_are_the_record(tmp_path):
    result = load_record(_write(tmp_path / "result.json", _result()), RunRecord)
    assert result.scores.global_["macro_f1"].mean == 0.5
    assert result.devices[0].infer_ms == Percentiles(p50=1.0, p95=2.0, p99=3.0)


def test_what_was_not_measured_may_be_absent(tmp_path):
    """No server model, no inference samples: empty objects, as the coordinator writes them."""
    device = {**_result()["devices"][0], "infer_ms": {}}
    path = _write(tmp_path / "result.json", _result(devices=[device], scores={}))
    result = load_record(path, RunRecord)
    assert result.scores.global_ is None
    assert result.devices[0].infer_ms.p99 is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"seed": "1"}, "seed"), ({"devices": [{}]}, "id"), ({"rounds": 3}, "rounds")],
)
def test_a_wrong_field_is_named(tmp_path, changes, field):
    path = _write(tmp_path / "result.json", _result(**changes))
    with pytest.raises(InputError, match=field):
        load_record(path, RunRecord)


def test_details_come_from_what_the_coordinator_leaves(tmp_path):
    """Samples are thinned over the whole run; a scored device gives its confusion."""
    samples = [float(index) for index in range(3 * MAX_SAMPLES)]
    about = {"num_examples": 5, "rounds": 2}
    devices = [
        {"id": "a", **about, "train_step_ms": samples, "infer_ms": [], "evaluation": {"own": None}},
        {
            "id": "b",
            **about,
            "train_step_ms": [1.0],
            "infer_ms": [2.0],
            "evaluation": {"own": [[1, 0], [2, 3]]},
        },
    ]
    _write(tmp_path / "devices.json", {"outputs": ["x", "y"], "devices": devices})
    details = details_of_run(tmp_path, title="t", data="d", bundle="00")
    assert details.classes == ("x", "y")
    (found,) = details.confusions
    assert (found.device_id, found.counts) == ("b", ((1, 0), (2, 3)))
    assert details.bundle == "00"
    thinned = details.latencies[0].train_step_ms
    assert len(thinned) <= MAX_SAMPLES
    assert thinned[-1] > samples[-1] - 10


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c")])
def test_details_are_written_device_by_device_a_line_for_each(tmp_path, names):
    path = tmp_path / "devices.json"
    devices = tuple(DeviceDetails(id=name, num_examples=5, rounds=2) for name in names)
    taken = []

    def one_by_one():
        for device in devices:
            taken.append(device.id)
            yield device

    fleet = FleetDetails(task="multilabel", outputs=("x", "y"), devices=())
    save_by_device(fleet, one_by_one(), path)
    assert load_record(path, FleetDetails) == msgspec.structs.replace(fleet, devices=devices)
    assert taken == list(names)
    assert sum('"id"' in line for line in path.read_text().splitlines()) == len(names)


def test_details_that_cannot_be_written_replace_nothing(tmp_path):
    path = tmp_path / "devices.json"
    path.write_text("of the round before")

    def broken():
        yield DeviceDetails(id="a", num_examples=5, rounds=2)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        save_by_device(FleetDetails(devices=()), broken(), path)
    assert path.read_text() == "of the round before"


def test_prototypes_are_capped_and_of_one_width():
    layer = to_prototypes(
        "alp", {"a": np.zeros((3000, 2), np.float32), "b": np.ones((5, 2), np.float32)}
    )
    assert len(layer.values) == len(layer.groups) <= MAX_PROTOTYPES
    assert set(layer.groups) == {"a", "b"}
    with pytest.raises(InputError, match="one width"):
        to_prototypes("alp", {"a": np.zeros((1, 2), np.float32), "b": np.zeros((1, 3), np.float32)})


def test_a_comparison_gives_change_and_ratio(tmp_path):
    first = load_record(_write(tmp_path / "a.json", _result()), RunRecord)
    better = {**_SCORE, "macro_f1": {"mean": 0.75, "std": 0.1}}
    second = load_record(
        _write(tmp_path / "b.json", _result(scores={"personalisation": better})), RunRecord
    )
    rows = {row.name: row for row in compare(first, second)}
    row = rows["personalisation macro-F1 (%)"]
    assert (row.first, row.second, row.change, row.ratio) == (50.0, 75.0, 25.0, 1.5)
    assert rows["global accuracy (%)"].second is None
    assert rows["global accuracy (%)"].change is None
    assert rows["bytes up per round"].ratio == 1.0


def _with_more(tmp_path, name, loss, **more):
    """A run with a final fit, a loss and further scores."""
    scores = {"personalisation": _SCORE, "own_loss": {"mean": loss, "std": 0.1}, "more": more}
    one = _result()["rounds"][0]
    last = {**one, "round_id": 2, "final": True, "bytes_up": 1000, "scores": scores}
    return load_record(
        _write(tmp_path / name, _result(rounds=[one, last], scores=scores)), RunRecord
    )


def test_a_comparison_has_losses_and_further_scores_of_either_run(tmp_path):
    first = _with_more(tmp_path, "a.json", 0.5, **{"before fit": _SCORE})
    second = _with_more(tmp_path, "b.json", 0.25, **{"<other>": _SCORE})
    rows = {row.name: row for row in compare(first, second)}
    assert (rows["own loss"].first, rows["own loss"].ratio) == (0.5, 0.5)
    assert (rows["before fit accuracy (%)"].first, rows["before fit accuracy (%)"].second) == (
        60,
        None,
    )
    assert rows["<other> macro-F1 (%)"].second == 50
    plain = load_record(_write(tmp_path / "c.json", _result()), RunRecord)
    assert "own loss" not in {row.name for row in compare(plain, plain)}


def test_a_final_fit_is_no_round_in_a_comparison(tmp_path):
    first = _with_more(tmp_path, "a.json", 0.5)
    rows = {row.name: row for row in compare(first, first)}
    assert (rows["rounds"].first, rows["bytes up per round"].first) == (1, 10)


def test_the_command_rebuilds_the_page_and_compares(tmp_path):
    run = CliRunner().invoke
    one = str(write_run(tmp_path / "one", rounds=2, devices=2))
    two = str(write_run(tmp_path / "two", rounds=2, devices=2, prototypes=False, seed=1))
    assert run(command, [one]).stdout.strip() == f"{one}/report.html"
    assert (tmp_path / "one" / "report.html").is_file()
    table = run(command, [one, two]).stdout.splitlines()
    assert any(line.startswith("generalisation macro-F1 (%)") for line in table)
    assert "strategy: fedali | fedavg" in table
    page = tmp_path / "beside.html"
    assert run(command, [one, two, one, "--page", str(page)]).exit_code == 0
    assert page.read_text().count("<img") == 3
    assert run(command, [one, "--page", str(page)]).exit_code == 2
    assert not any(line.startswith("codec:") for line in table)
    (found,) = json.loads(run(command, [one, f"{two}/result.json", "--json"]).stdout)
    assert {"name", "first", "second", "change", "ratio"} == found["scores"][0].keys()
    assert found["settings"] == {"strategy": ["fedali", "fedavg"], "seed": ["0", "1"]}
    assert run(command, []).exit_code == 2


def test_percentiles_interpolate():
    assert percentiles([1, 2, 3, 4], 50, 95) == Percentiles(p50=2.5, p95=3.85)
    assert percentiles([], 50) == Percentiles()
