"""The commands around a personal model: predict, stores, reset."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner
from personal import deliver_personal
from tiny_bundle import tiny_data

import protofleet
from protofleet.cli.main import main
from protofleet.cli.stores import reset
from protofleet.edge.state.journal import read_journal
from protofleet.edge.state.store import Store
from protofleet.edge.state.stores import default_store
from protofleet.errors import InputError


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the command line in this process: its exit status, output and errors."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path / "config"))

    def call(*arguments):
        try:
            main(["device", *map(str, arguments)])
        except SystemExit as end:
            status = end.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_a_csv_is_predicted_line_by_line_and_scored(run, personal_store, tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("a,b,c,d,label\n1,0,0,0,class0\n0,2,0,0,class0\n0,0,1,0,\n")
    status, out, _ = run("predict", "--store", personal_store, "--data", table, "--latency")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "model of round 2: federation 'test-fed', strategy fedavg, bundle 'tiny'"
    assert [line.split() for line in lines[1:5]] == [
        ["example", "class", "probability", "label"],
        ["0", "class0", "0.9094", "class0"],
        ["1", "class1", "0.9951", "class0"],
        ["2", "class2", "0.9094"],
    ]
    assert lines[5] == "macro-F1 0.3333, accuracy 0.5000 on 2 labelled examples of 3"
    assert lines[6].startswith("one window, ms: p50 ")


def test_json_lines_hold_every_probability(run, personal_store, world):
    status, out, _ = run("predict", "--store", personal_store, "--data", world.data(1), "--json")
    model, *found, scores = [json.loads(line) for line in out.splitlines()]
    assert (status, model["event"], model["round_id"], model["backend"]) == (0, "model", 2, "onnx")
    x, y = tiny_data(1001, 20)
    assert [one["class"] for one in found] == [f"class{k}" for k in x[:, :3].argmax(axis=1)]
    assert [one["label"] for one in found] == [f"class{k}" for k in y]
    assert np.allclose([sum(one["probabilities"]) for one in found], 1)
    assert scores["accuracy"] == np.mean(x[:, :3].argmax(axis=1) == y)
    status, out, _ = run("predict", "--store", personal_store, "--data", world.data(1), "--summary")
    assert len(out.splitlines()) == 2


def test_the_only_store_is_found_and_listed(run, world, personal_store):
    default = default_store("fed", "anna")
    default.parent.mkdir(parents=True)
    status, _, err = run("predict", "--data", world.data(1))
    assert (status, "join a federation first" in err) == (1, True)
    personal_store.rename(default)
    assert run("predict", "--data", world.data(1), "--summary")[0] == 0
    status, out, _ = run("stores")
    assert out.splitlines()[0] == str(default)
    assert "federation 'test-fed', device 'anna', round 2, bundle 'tiny', " in out
    (record,) = [json.loads(line) for line in run("stores", "--json")[1].splitlines()]
    assert (record["path"], record["device_id"], record["round_id"]) == (str(default), "anna", 2)


def test_a_bundles_own_values_need_a_trusted_signer(run, world):
    arguments = ["predict", "--bundle", world.bundle_path, "--data", world.data(1), "--summary"]
    status, _, err = run(*arguments)
    assert (status, "no trusted signer" in err) == (1, True)
    status, out, _ = run(*arguments, "--trust", world.trust)
    assert (status, out.splitlines()[0]) == (0, "bundle 'tiny', its own values")


def test_readings_that_are_said_to_be_normalised_are_doubted(run, personal_store, tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("a,b,c,d\n1000.5,-20,3,40000\n7,8000,-90,1\n")
    status, _, err = run("predict", "--store", personal_store, "--data", table)
    assert (status, "not normalised?" in err, "--raw" in err) == (0, True, True)
    assert "warning" not in run("predict", "--store", personal_store, "--data", table, "--raw")[2]


def test_nothing_to_predict_is_an_error(run, personal_store, tmp_path):
    (tmp_path / "mine.csv").write_text("a,b,c,d\n")
    status, _, err = run("predict", "--store", personal_store, "--data", tmp_path / "mine.csv")
    assert (status, "expected examples to predict, got none" in err) == (1, True)


def test_a_stream_on_standard_input_goes_on_with_each_new_round(world, personal_store):
    """While the device commits a round, with the store locked, in another process."""
    arguments = ["device", "predict", "--store", str(personal_store), "--data", "-"]
    process = world.start(arguments, stdin=-1)
    process.stdin.write("0,5,0,0\n")
    process.stdin.flush()
    first = [process.stdout.readline() for _ in range(3)]
    with Store.open(personal_store) as store:
        deliver_personal(store, 3, scale=-3.0)
        out, _ = process.communicate("0,5,0,0\n", timeout=60)
    assert first[-1].split()[:2] == ["0", "class1"]
    second = out.splitlines()
    assert second[0].startswith("model of round 3")
    assert second[1].split()[1] != "class1"
    assert second[2] == "2 examples, none with a label"
    assert process.returncode == 0


def test_a_plain_file_gives_what_predict_prints_without_the_package(run, personal_store, tmp_path):
    out = tmp_path / "mine.onnx"
    status, said, _ = run("export-model", "--store", personal_store, "--out", out)
    assert (status, "model of round 2" in said) == (0, True)
    session = onnxruntime.InferenceSession(out)
    x, _ = tiny_data(4, 9)
    (shares,) = session.run(["probabilities"], {"x": x})
    expected = protofleet.open_personal(personal_store).predict(x).probabilities
    np.testing.assert_allclose(shares, expected, atol=1e-6)
    origin = json.loads(session.get_modelmeta().custom_metadata_map["provenance"])
    assert (origin["strategy"], origin["round_id"], origin["bundle"]) == ("fedavg", 2, "tiny")


def test_what_cannot_be_written_is_named(run, personal_store, tmp_path):
    for name, status, words in (
        ("mine.pt", 2, "expected FILE.onnx or FILE.tflite, got"),
        ("mine.tflite", 1, "bundle 'tiny': has no program 'infer' as tflite"),
        ("nowhere/mine.onnx", 1, "nowhere"),
    ):
        found, _, err = run("export-model", "--store", personal_store, "--out", tmp_path / name)
        assert (found, words in err) == (status, True)


def test_reset_says_what_goes_and_asks(personal_store, run):
    done = CliRunner().invoke(reset, ["--store", str(personal_store)], input="n\n")
    assert done.exit_code == 1
    assert "federation 'test-fed', its personal model of round 2, " in done.output
    assert "the device id 'anna' stays" in done.output
    assert (personal_store / "journal.json").exists()
    done = CliRunner().invoke(reset, ["--store", str(personal_store)])
    assert isinstance(done.exception, InputError)
    assert "without a terminal: --yes" in str(done.exception)
    assert read_journal(personal_store).last_round_id
    status, _, err = run("reset", "--store", personal_store, "--yes")
    assert (status, err.splitlines()[-1]) == (0, f"{personal_store}: reset")
    status, _, err = run("predict", "--store", personal_store, "--data", "x.csv")
    assert (status, "no round was finished yet" in err) == (1, True)
    run("reset", "--store", personal_store, "--yes", "--identity")
    assert not personal_store.exists()
