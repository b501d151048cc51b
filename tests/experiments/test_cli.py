"""``protofleet experiment``: what it prints, writes and refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys

import msgspec
import pytest

from protofleet.cli import main
from protofleet.experiments import listing
from protofleet.experiments.config import DataSource, committed, digest, find, load_experiment
from protofleet.experiments.store import MethodResult, load_run, run_folder, save_result
from protofleet.federation.records import Metrics, RoundRecord, Scores, Spread

_TOML = """
title = "Digits among two clients"
paper = "fedx"
table = "Table 1"
rounds = 2
seeds = [1, 2]
partition = {kind = "iid", clients = 2}
model = {name = "mlp", settings = {hidden = [8]}}
training = {epochs = 1, optimiser = {kind = "sgd", lr = 0.1}}
score = {metric = "accuracy", sections = ["personalisation"]}

[[data]]
name = "digits"

[[methods]]
label = "FedAvg"
strategy = "fedavg"
paper = {personalisation = {mean = 90.0}}

[[methods]]
label = "Local, alone"
strategy = "local"
rounds = 120
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with an experiment's file."""
    (tmp_path / "tiny.toml").write_text(_TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROTOFLEET_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def _scored(accuracy):
    spread = Spread(mean=accuracy, std=0.0)
    return Scores(personalisation=Metrics(macro_f1=spread, accuracy=spread))


def store(place, *, seed, accuracies, label=0, engine="local"):
    experiment = load_experiment(place / "tiny.toml")
    rounds = tuple(
        RoundRecord(
            round_id=number + 1,
            seconds=1.0,
            participants=2,
            bytes_up=0,
            bytes_down=0,
            scores=_scored(accuracy),
        )
        for number, accuracy in enumerate(accuracies)
    )
    method = experiment.methods[label]
    result = MethodResult(
        experiment="tiny",
        label=method.label,
        strategy=method.strategy,
        seed=seed,
        identity="",
        engine=engine,
        finished=True,
        rounds=rounds,
    )
    save_result(run_folder(place / "runs" / "tiny", method, seed), result)


def ended(*args):
    """The exit status of a command; 0 if it ended by itself."""
    with pytest.raises(SystemExit) as caught:
        main(["experiment", *map(str, args)])
    return caught.value.code or 0


def refused(capsys, *args):
    assert ended(*args) in {1, 2}
    *_, last = capsys.readouterr().err.strip().splitlines()
    return last


@pytest.mark.usefixtures("place")
def test_the_list_has_every_committed_experiment(capsys):
    assert ended("list", "--json") == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed.keys() == committed().keys()
    assert "FedAli" in listed["fedali/table-1-hhar"]["methods"]
    assert listed["fedali/table-1-hhar"]["rounds"] == 600


def test_the_list_says_which_data_are_not_there_and_where_they_go(place, capsys):
    (place / "empty").mkdir()
    assert ended("list", "--data-root", place / "empty") == 0
    printed = capsys.readouterr().out
    assert "hhar: none" in printed
    assert "fedali/table-2-cifar100-20 " in printed
    assert ended("list", "--data-root", place / "empty", "--json") == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert "Phones_accelerometer.csv" in listed["fedali/table-1-hhar"]["missing"]["hhar"]
    assert listed["fedali/table-1-hhar"]["examples"] == {}


def test_the_list_fits_a_terminal_paper_by_paper_and_tells_the_time(place, monkeypatch, capsys):
    """Two rounds of a second each were run; so are all 5 methods' 3 seeds of 10 rounds."""
    monkeypatch.setenv("COLUMNS", "80")
    name = "cdfl/mnist-small"
    experiment = load_experiment(find(name))
    method = experiment.methods[0]
    shutil.copy(find(name), place / "tiny.toml")
    store(place, seed=experiment.seeds[0], accuracies=(0.5, 0.6))
    folder = run_folder(place / "runs" / name, method, experiment.seeds[0])
    found = load_run(run_folder(place / "runs" / "tiny", method, experiment.seeds[0]))
    save_result(folder, msgspec.structs.replace(found, digest=digest(experiment, method)))
    assert ended("list") == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[: next(n for n, line in enumerate(lines) if "takes here:" in line)]
    assert max(map(len, table)) <= 80
    assert "…" not in "".join(table)
    (row,) = [line for line in table if line.strip().startswith(f"{name} ")]
    assert "2 min" in row
    names = [line.split()[0] for line in table if line.strip()]
    assert names.index("fedsub") < names.index("claims/fedsub-wisdm") < names.index("hostile")


@pytest.mark.data
def test_data_that_are_there_are_found_without_loading_them(data_root, monkeypatch):
    monkeypatch.setattr(listing, "_load", lambda source, *_: f"{source.name}: absent")
    found = {one.name: one.present for one in listing.listed(data_root, data_root / "no-runs")}
    assert found["fedhp/mnist-small"] == {"mnist": True}
    assert found["fedali/ucihar-small"] == {"ucihar": True}
    assert found["fedali/table-1-hhar"] == {"hhar": False}
    assert found["fedsub/wisdm"] == {"wisdm": False}


@pytest.mark.data
def test_the_examples_that_are_there_are_counted(data_root):
    """A data set is asked for once, whatever number of experiments name it."""
    known = {}
    source = DataSource(name="wisdm_windows")
    assert listing._load(source, data_root, known) == 7292
    assert listing._load(source, data_root / "nowhere", known) == 7292


def test_the_table_of_stored_results_is_printed_written_and_drawn(place, capsys):
    """80 and 84 over two seeds: 82, 8 below the paper's 90."""
    store(place, seed=1, accuracies=(0.7, 0.8))
    store(place, seed=2, accuracies=(0.84, 0.6))
    assert ended("table", "tiny.toml", "--json", "t.json", "--plot", "t.png") == 0
    printed = capsys.readouterr().out
    assert "82.00 ± 2.00  90.00  -8.00" in printed
    document = json.loads((place / "t.json").read_bytes())
    assert document["experiment"]["title"] == "Digits among two clients"
    assert document["table"][0]["cells"]["personalisation"]["mean"] == pytest.approx(82)
    assert [run["seed"] for run in document["runs"]] == [1, 2]
    assert (place / "t.png").read_bytes().startswith(b"\x89PNG")
    assert (place / "t-bars.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_is_of_the_seeds_and_methods_that_are_asked_for(place, capsys):
    store(place, seed=7, accuracies=(0.7, 0.8), label=1)
    assert (
        ended("table", "tiny.toml", "--seeds", "7", "--methods", "Local, alone", "--markdown") == 0
    )
    printed = capsys.readouterr().out
    assert "| Local, alone | 80.00 ± 0.00† | 80.00 ± 0.00† | 1/1 |" in printed
    assert "FedAvg" not in printed


def test_the_costs_of_one_experiment_are_printed_alone(place, capsys):
    store(place, seed=1, accuracies=(0.7, 0.8))
    assert ended("table", "tiny.toml", "--costs") == 0
    printed = capsys.readouterr().out
    assert "| FedAvg | " in printed
    assert "80.00" not in printed


def test_costs_of_several_experiments_are_refused(place, capsys):
    (place / "other.toml").write_text(_TOML)
    last = refused(capsys, "table", "tiny.toml", "other.toml", "--costs")
    assert "--costs is for one experiment" in last


@pytest.mark.usefixtures("place")
def test_a_table_of_nothing_says_how_to_make_results(capsys):
    assert refused(capsys, "table", "tiny.toml") == (
        "protofleet: results 'runs/tiny': expected runs of 'tiny.toml', found none; "
        "make them with: protofleet experiment run tiny.toml"
    )


@pytest.mark.usefixtures("place")
def test_a_committed_experiment_keeps_its_papers_folder(capsys):
    """By its name and by its file's path alike."""
    for given in ("fedali/table-4", committed()["fedali/table-4"]):
        assert "results 'runs/fedali/table-4'" in refused(capsys, "table", given)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "no/such"], "experiment 'no/such': no such file"),
        (["run", "tiny.toml", "--methods", "FedAvg2"], "expected one of FedAvg, Local, alone"),
        (["run", "tiny.toml", "--seeds", "1;2"], "expected numbers from 0 such as 1,2; got '1;2'"),
        (["run", "tiny.toml", "--broker", "mqtts://x"], "--broker is for --engine mqtt"),
        (["run", "tiny.toml", "--json", "no/t.json"], "no such folder: 'no'"),
        (["table", "tiny.toml", "--plot", "t.gif"], "ends in .png or .svg, got 't.gif'"),
    ],
)
def test_bad_input_is_one_line(place, capsys, args, words):
    assert words in refused(capsys, *args)
    assert not (place / "runs").exists()


@pytest.mark.parametrize("more", [["--rounds", "1"], ["--engine", "mqtt"]])
def test_a_quick_look_does_not_replace_finished_results(place, capsys, more):
    store(place, seed=1, accuracies=(0.7, 0.8))
    assert "which would be lost; choose another --out" in refused(capsys, "run", "tiny.toml", *more)


@pytest.mark.slow(seconds=20)
def test_an_interrupted_run_says_how_to_go_on_and_does(place):
    """The same command then runs what is left, prints the table and draws the pictures."""
    command = [sys.executable, "-P", "-m", "protofleet", "experiment", "run", "tiny.toml"]
    command += ["--workers", "1", "--seeds", "5", "--json", "t.json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("seed 5, Local, alone: accuracy"):
                os.kill(process.pid, signal.SIGINT)
                break
        _, rest = process.communicate()
    assert process.returncode == 130
    assert "to go on: the same command; 'runs/tiny' keeps what is done" in rest
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "seed 5, FedAvg: finished before" in done.stdout
    document = json.loads((place / "t.json").read_bytes())
    assert [(run["label"], run["seed"], run["finished"]) for run in document["runs"]] == [
        ("FedAvg", 5, True),
        ("Local, alone", 5, True),
    ]
    quoted = document["table"][0]["cells"]["personalisation"]["mean"]
    assert f"{quoted:.2f} ±" in done.stdout
    assert {"curves.png", "bars.png"} <= {path.name for path in (place / "runs" / "tiny").iterdir()}
