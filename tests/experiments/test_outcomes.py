"""What every strategy does for owners, from stored runs: rows, page, picture and command."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from overview_runs import a_run

from protofleet.cli.main import main
from protofleet.experiments import _outcomes_figure, _outcomes_text
from protofleet.experiments.config import Experiment, committed, find, load_experiment
from protofleet.experiments.outcomes import TaskOutcome, rows_of_rates, task_outcome
from protofleet.experiments.store import run_folder, save_result
from protofleet.federation.outcomes.calibration import Calibration
from protofleet.federation.outcomes.outcome import OwnerOutcome, outcome_of

_RATES = (0.001, 0.01, 0.1)


def _experiment(metric="accuracy", **changes) -> Experiment:
    values = {
        "title": "Digits",
        "note": "Ten of them.",
        "paper": "outcome",
        "table": "digits",
        "data": [{"name": "digits"}],
        "partition": {"kind": "iid", "clients": 2},
        "model": {"name": "mlp"},
        "rounds": 4,
        "seeds": [1, 2],
        "finds_rate": True,
        "score": {"metric": metric, "select": "last"},
        "methods": [
            {"label": "fedavg", "strategy": "fedavg"},
            {"label": "local", "strategy": "local"},
            {"label": "fedhp", "strategy": "fedhp", "model": {"name": "mlp_prototypes"}},
        ],
    }
    return msgspec.convert(values | changes, Experiment)


def _store(folder, experiment, label, owners, *, seed=1, lr=0.01, task="classification", **more):
    """A run of these owners, each with start and end."""
    lower = task == "regression"
    told = outcome_of(
        task,
        [
            OwnerOutcome(
                id=f"client-{number}",
                examples=9,
                start=start,
                end=end,
                gain=start - end if lower else end - start,
                chance=None if lower else 0.2,
            )
            for number, (start, end) in enumerate(owners)
        ],
    )
    calibration = lr and Calibration(
        kind="adam", rates=_RATES, ratios=(0.9, 0.5, 0.7), devices=2, lr=lr
    )
    run = a_run(
        experiment,
        label,
        [0.5] * 4,
        seed=seed,
        outcome=told,
        calibration=calibration or None,
        settings={"optimiser": {"kind": "sgd", "lr": lr, "momentum": 0.5}},
        **more,
    )
    run = msgspec.structs.replace(run, finished=not run.stopped)
    method = next(one for one in experiment.methods if one.label == label)
    save_result(run_folder(folder, method, seed), run)
    return run


@pytest.fixture
def folder(tmp_path):
    experiment = _experiment()
    place = tmp_path / "digits"
    runs = [
        _store(place, experiment, "fedavg", [(0.1, 0.9), (0.1, 0.7)]),
        _store(place, experiment, "fedavg", [(0.1, 0.8), (0.1, 0.8)], seed=2, lr=0.1),
        _store(place, experiment, "local", [(0.1, 0.6), (0.1, 0.75)]),
        _store(place, experiment, "fedhp", [(0.3, 0.25), (0.1, 0.11)], lr=None),
    ]
    wider = msgspec.structs.replace(
        experiment, methods=(*experiment.methods, *rows_of_rates(experiment, runs[:1]))
    )
    for rate, owners in (("0.001", [(0.1, 0.5)] * 2), ("0.1", [(0.1, 0.92), (0.1, 0.78)])):
        _store(place, wider, f"fedavg at {rate}", owners, lr=None)
    return place


def test_rows_are_over_owners_and_seeds(folder):
    found = task_outcome("digits", _experiment(), folder)
    fedavg = found.rows["fedavg"]
    assert (fedavg.start, fedavg.end, fedavg.ends) == (
        pytest.approx(0.1),
        pytest.approx(0.8),
        (0.8, 0.8),
    )
    assert (fedavg.helped, fedavg.harmed, fedavg.owners, fedavg.rates) == (4, 0, 4, (0.01, 0.1))
    # Alone with seed 1 only: 0.9 against 0.6, and 0.7 against 0.75.
    assert (fedavg.better, fedavg.worse) == (1, 1)
    assert fedavg.regret == pytest.approx(0.05)
    fedhp = found.rows["fedhp"]
    assert (fedhp.helped, fedhp.unchanged, fedhp.harmed, fedhp.own_model) == (0, 1, 1, True)
    assert (fedhp.learns, fedavg.learns, fedhp.regret) == (False, True, None)
    assert (found.alone, found.metric, found.chance) == (0.675, "balanced_accuracy", 0.2)


def test_a_regret_is_of_the_rate_that_is_best_over_all_seeds(tmp_path):
    """The luckiest rate of each seed would have given 0.85."""
    experiment = _experiment(methods=[{"label": "fedavg", "strategy": "fedavg"}])
    runs = [_store(tmp_path, experiment, "fedavg", [(0.1, 0.8)], seed=seed) for seed in (1, 2)]
    wider = msgspec.structs.replace(experiment, methods=rows_of_rates(experiment, runs))
    for rate, ends in (("0.001", (0.9, 0.72)), ("0.1", (0.7, 0.8))):
        for seed, end in enumerate(ends, 1):
            _store(tmp_path, wider, f"fedavg at {rate}", [(0.1, end)], seed=seed, lr=None)
    row = task_outcome("digits", experiment, tmp_path).rows["fedavg"]
    assert (row.regret, row.regret_seeds) == (pytest.approx(0.01), 2)


def test_every_other_rate_of_the_ladder_has_a_row(folder):
    experiment = _experiment(methods=[{"label": "a", "strategy": "fedavg"}])
    run = _store(folder, experiment, "a", [(0.1, 0.2)])
    rows = rows_of_rates(experiment, [run])
    assert [(row.label, row.settings["optimiser"]) for row in rows] == [
        ("a at 0.001", {"kind": "sgd", "lr": 0.001, "momentum": 0.5}),
        ("a at 0.1", {"kind": "sgd", "lr": 0.1, "momentum": 0.5}),
    ]


def test_of_an_error_less_is_better(tmp_path):
    experiment = _experiment("mae")
    more = {"task": "regression"}
    run = _store(tmp_path, experiment, "fedavg", [(20.0, 12.0), (10.0, 11.0)], **more)
    _store(tmp_path, experiment, "local", [(20.0, 16.0), (10.0, 11.1)], **more)
    rows = rows_of_rates(experiment, [run])
    wider = msgspec.structs.replace(experiment, methods=rows)
    _store(tmp_path, wider, rows[0].label, [(20.0, 9.2), (10.0, 9.2)], lr=None, **more)
    assert task_outcome("turning", experiment, tmp_path).rows["fedavg"].regret is None
    _store(tmp_path, wider, rows[1].label, [(20.0, 1.0)] * 2, lr=None, stopped="diverged", **more)
    found = task_outcome("turning", experiment, tmp_path)
    row = found.rows["fedavg"]
    assert (row.helped, row.harmed, row.better, row.worse) == (1, 1, 1, 0)
    assert (found.metric, found.chance, row.learns) == ("mae", None, True)
    assert row.regret == pytest.approx((11.5 - 9.2) / 11.5)


def test_what_has_no_finished_run_is_left_out(tmp_path):
    experiment = _experiment()
    assert task_outcome("digits", experiment, tmp_path) is None
    _store(tmp_path, experiment, "fedavg", [(0.1, 0.9)], stopped="diverged")
    _store(tmp_path, experiment, "local", [(0.1, 0.9)])
    found = task_outcome("digits", experiment, tmp_path)
    assert (list(found.rows), found.diverged) == (["local"], {"fedavg": 1})
    page = _outcomes_text.page([found], "a command", None)
    assert "- Diverged: `fedavg` on digits (1 of 2 seeds)." in page


def test_page_and_picture_are_the_same_for_the_same_runs(folder, tmp_path):
    found = [task_outcome("outcome/digits", _experiment(), folder)]
    text = _outcomes_text.page(found, "a command", "images/x.png")
    assert text == _outcomes_text.page(found, "a command", "images/x.png")
    lines = text.splitlines()
    assert "| `fedavg` | 80.0 (4 · 0) | 100 % · 0 % | 1 · 1 | 5.0, 5.0 |" in lines
    assert "| `fedhp` | 18.0° (0 · 1) | 0 % · 50 % | 0 · 2 | - |" in lines
    assert "| `local` | 67.5 (2 · 0) | 100 % · 0 % | - | - |" in lines
    told = " ".join(text.split())
    assert "naming one class: 2 of 3; not `fedhp` on digits." in told
    assert "75 % are helped and 12 % harmed." in told
    assert "5.0 on average over 1 pairs of strategy and task, 5.0 at most (`fedavg` on" in told
    assert "With 0 of 2 strategies more owners are better off than by training alone" in told
    drawings = []
    for name in ("x.svg", "y.svg"):
        _outcomes_figure.draw(found, tmp_path / name)
        drawings.append((tmp_path / name).read_bytes())
    assert drawings[0] == drawings[1]


def test_the_committed_page_is_that_of_the_committed_figures():
    """Whoever changes a figure, or a word of the page, makes it again by the command."""
    docs = Path(__file__).parents[2] / "docs"
    found = msgspec.json.decode((docs / "outcome.json").read_bytes(), type=list[TaskOutcome])
    page = _outcomes_text.page(found, "protofleet experiment outcome", "images/outcome.png")
    assert (docs / "outcome.md").read_text() == page
    names = {name for name in committed() if name.startswith("outcome/")}
    assert {one.name for one in found} == names
    for one in found:
        known = load_experiment(find(one.name))
        assert {*one.rows, *one.diverged} == {method.label for method in known.methods}
        assert (one.rounds, one.seeds) == (known.rounds, len(known.seeds))


def _run(*args):
    with pytest.raises(SystemExit) as ended:
        main(["experiment", *args])
    assert not ended.value.code


def _write(place, text=""):
    place.write_text(
        'title = "Two"\npaper = "x"\ntable = "x"\nrounds = 2\nseeds = [3]\n'
        'partition = {kind = "iid", clients = 2}\n'
        'model = {name = "mlp", settings = {hidden = [8]}}\ndata = [{name = "digits"}]\n'
        f'score = {{metric = "accuracy", select = "last", pooled_limit = 0}}\n{text}'
        '[[methods]]\nlabel = "fedavg"\nstrategy = "fedavg"\n'
        '[[methods]]\nlabel = "local"\nstrategy = "local"\n'
        '[[methods]]\nlabel = "apart"\nstrategy = "fedavg"\n'
        'settings = {optimiser = {kind = "sgd", lr = 1e5}}\n'
    )
    return str(place)


@pytest.mark.slow(seconds=12)
def test_the_command_trains_what_is_missing_and_shows_all(tmp_path, capsys):
    """A row that diverges is told, and ends nothing; the ladder's other rates tell the regret."""
    task, out = _write(tmp_path / "two.toml", "finds_rate = true\n"), str(tmp_path / "runs")
    written = {name: tmp_path / name for name in ("page.md", "plot.png", "found.json")}
    files = [
        *("--page", str(written["page.md"])),
        *("--plot", str(written["plot.png"])),
        *("--json", str(written["found.json"])),
    ]
    _run("outcome", task, "--out", out, "--regret", "--workers", "1", *files)
    (found,) = msgspec.json.decode(written["found.json"].read_bytes())
    assert set(found["rows"]) == {"fedavg", "local"}
    fedavg = found["rows"]["fedavg"]
    assert fedavg["regret"] >= 0
    assert fedavg["end"] > fedavg["start"]
    assert "![Where each strategy ends on each task](plot.png)" in written["page.md"].read_text()
    assert written["plot.png"].read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    _run("outcome", task, "--out", out, "--status")
    assert "fedavg" in capsys.readouterr().out


def test_a_task_without_its_data_is_left_out_and_named(tmp_path, capsys):
    tasks = ("outcome/few", "outcome/turning")
    out = ("--out", str(tmp_path / "runs"), "--data-root", str(tmp_path), "--seeds", "1")
    with pytest.raises(SystemExit):
        main(["experiment", "outcome", *tasks, *out])
    printed = capsys.readouterr()
    told = " ".join((printed.out + printed.err).split())
    assert all(f"{task}: left out: " in told for task in tasks)
    assert told.endswith(f"expected runs of {', '.join(tasks)}, found none that are finished")


def test_what_cannot_be_shown_is_refused(tmp_path, capsys):
    for text, told in (
        ("finds_rate = true\n", "expected runs of two, found none that are finished"),
        ("", "expected one with `finds_rate = true`, such as outcome/digits"),
    ):
        task = _write(tmp_path / "two.toml", text)
        with pytest.raises(SystemExit):
            main(["experiment", "outcome", task, "--out", str(tmp_path), "--status"])
        assert told in capsys.readouterr().err
