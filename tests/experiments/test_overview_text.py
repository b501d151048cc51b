"""The page of several experiments, and the command that prints it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from overview_runs import a_run, an_experiment, found, page_of, rests_on, scores

from protofleet.cli.main import main
from protofleet.experiments import _overview_figure, _overview_text
from protofleet.experiments.config import expanded, load_experiment
from protofleet.experiments.overview import MOST_FREQUENT, Overview, overview
from protofleet.experiments.store import run_folder, save_result


def test_a_method_with_a_final_fit_is_marked_where_it_is_advised():
    experiment = an_experiment()
    table = found(
        experiment,
        a_run(experiment, "FedAvg", [0.1] * 4),
        a_run(experiment, "Fitted", [0.5] * 4, fit=0.9),
    )
    text = page_of(table)
    assert "**Fitted‡** (0.0; 1 of 1)" in text


@pytest.fixture
def stored(tmp_path):
    """Two experiments, of which one has runs."""
    experiments = {"one": an_experiment("One"), "two": an_experiment("Two", kind="dirichlet")}
    one = experiments["one"]
    for run in (
        *(a_run(one, "FedAvg", [0.5, 0.6, 0.7, 0.8], seed=seed, peak=100) for seed in (1, 2)),
        a_run(one, "Dear", [0.6, 0.7, 0.8, 0.9], size=150),
        a_run(one, "Alone", [0.4, 0.5, 0.6, 0.7], size=0),
        a_run(one, "Cheap", [0.1], size=50),  # stopped after a round: not what the file asks for
    ):
        method = next(method for method in one.methods if method.label == run.label)
        save_result(run_folder(tmp_path / "one", method, run.seed), run)
    return overview(experiments, tmp_path)


def test_the_page_is_the_same_for_the_same_results_and_names_what_is_missing(stored, tmp_path):
    page = _overview_text.page(stored, "protofleet experiment table one two", "images/x.png")
    assert page == _overview_text.page(
        stored, "protofleet experiment table one two", "images/x.png"
    )
    lines = page.splitlines()
    assert "Not yet run: `two`." in lines
    assert "| [One](#one) | iid | 2 | `mlp` | accuracy | - | 4 | 0.0004 | 1 of 3 |" in lines
    dear = [line for line in lines if line.startswith("| Dear | ")]
    assert dear[-3:] == [
        "| Dear | **90.0** | - | **80.0** |",
        "| Dear | **70.0** | - | 60.0 | 2 |",
        "| Dear | 0.00015 | 1.50 | 1.00 | 0.0015 | - | - |",
    ]
    (slow,) = [line for line in lines if line.startswith("| A slow or dear link")]
    assert slow.endswith("| **Alone** (0.0; 1 of 1) |")
    narrow, wide = (_overview_text.page(stored, "x", None, columns=n) for n in (80, 140))
    assert ("| Dear | **90.0**" in narrow, "| Dear | **90.0**" in wide) == (False, True)
    assert "Its table takes 140 columns" in narrow
    drawings = []
    for name in ("x.svg", "y.svg"):
        _overview_figure.draw(stored, tmp_path / name)
        drawings.append((tmp_path / name).read_bytes())
    assert drawings[0] == drawings[1]


def test_a_summary_has_a_page_for_each_data_set_and_one_for_all(stored):
    """What they show is what the one page for a terminal shows."""
    whole = _overview_text.page(stored, "x", None)
    pages = _overview_text.pages(stored, "x", None, "which")
    assert list(pages) == ["which.md", "results/which-all.md", "results/which-one.md"]
    summary, together, one = pages.values()
    assert summary.index("## What to take") < summary.index("## The data sets")
    assert "[One](results/which-one.md)" in summary
    assert "[Which method should I take?](../which.md)" in one
    assert "](../algorithms.md)" in together
    split = {line.lstrip("#") for text in pages.values() for line in text.splitlines()}
    linked = ("algorithms.md", "(#")
    lost = {line.lstrip("#") for line in whole.splitlines()} - split
    assert [line for line in lost if not any(part in line for part in linked)] == []
    headings = [line for line in one.splitlines() if line.startswith("#")]
    assert headings == ["# One", "## One, equal rounds", "## One, equal bytes", "## One, costs"]


def test_several_names_and_a_folder_of_experiments_are_compared(tmp_path, capsys):
    names = expanded(["choosing"])
    assert "choosing/ucihar" in names
    assert expanded(["digits.toml", "choosing/wisdm"]) == ["digits.toml", "choosing/wisdm"]
    with pytest.raises(SystemExit) as ended:
        main(["experiment", "table", "choosing", "--out", str(tmp_path)])
    assert ended.value.code == 1
    assert "found none that are finished; make them with" in capsys.readouterr().err


_COMMITTED = Path(__file__).parents[2] / "docs" / "choosing.md"
_FILE = """
title = "Digits"
paper = "x"
table = "1"
rounds = 4
partition = {kind = "iid", clients = 2}
model = {name = "mlp"}
data = [{name = "digits"}]
score = {metric = "accuracy", select = "last"}
"""


def test_some_methods_of_several_experiments_are_compared_where_they_are(
    tmp_path, monkeypatch, capsys
):
    """The second one has neither of the two, and so no say."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.toml").write_text(
        _FILE
        + """
        methods = [{label = "FedAvg", strategy = "fedavg"}, {label = "Dear", strategy = "scaffold"},
                   {label = "Alone", strategy = "local"}]"""
    )
    other = 'methods = [{label = "Average", strategy = "fedavg"}]'
    (tmp_path / "two.toml").write_text(_FILE + other)
    one = load_experiment(tmp_path / "one.toml")
    for method in one.methods:
        run = a_run(one, method.label, [0.5, 0.6, 0.7, 0.8])
        save_result(run_folder(tmp_path / "runs" / "one", method, 1), run)

    def table(*labels):
        chosen = [word for label in labels for word in ("--methods", label)]
        with pytest.raises(SystemExit) as ended:
            main(["experiment", "table", "one.toml", "two.toml", "--markdown", *chosen])
        return ended.value.code or 0

    assert table("Dear", "FedAvg") == 0
    printed = capsys.readouterr().out
    assert "| Dear | " in printed
    assert "| Alone | " not in printed
    assert "Not yet run" not in printed
    assert table("Dear") == 1
    assert "--methods: expected FedAvg among them" in capsys.readouterr().err


def test_tables_are_sorted_where_a_row_lacks_the_first_section():
    """Training alone has no server's model, and the most frequent class is each device's."""
    experiment = an_experiment()
    score = msgspec.structs.replace(experiment.score, sections=("global", "personalisation"))
    experiment = msgspec.structs.replace(experiment, score=score)
    evaluation = rests_on(100, 0.4)
    alone = a_run(experiment, "Alone", [0.9] * 4)
    rounds = tuple(msgspec.structs.replace(one, scores=scores(0.9)) for one in alone.rounds)
    table = found(
        experiment,
        a_run(experiment, "FedAvg", [0.6] * 4, evaluation_data=evaluation),
        a_run(experiment, "Dear", [0.7] * 4, evaluation_data=evaluation),
        msgspec.structs.replace(alone, rounds=rounds),
    )
    lines = page_of(table).split("### Digits, equal rounds")[1].strip().splitlines()[2:6]
    assert [line.split(" | ")[0] for line in lines] == [
        "| Dear", "| FedAvg", "| Alone", f"| {MOST_FREQUENT}",
    ]  # fmt: skip


def _said(page):
    """Its sentences, and the first cells of its tables."""
    said = set()
    for paragraph in page.split("\n\n"):
        lines = paragraph.splitlines()
        said |= {line.split(" | ")[0] for line in lines if line.startswith("| ")}
        text = " ".join(line.strip() for line in lines if not line.startswith("| "))
        said |= set(re.split(r"(?<=[.:;]) ", text))
    return said


def _pages_of_one(title, method, seeds):
    methods = [{"label": "FedAvg", "strategy": "fedavg"}, method]
    experiment = an_experiment(title, methods=methods)
    table = found(
        experiment,
        *(a_run(experiment, one["label"], [0.5] * 4, seed=n) for one in methods for n in seeds),
        name=title,
    )
    several = Overview(data_sets=(table,), missing=(), runs={})
    pages = _overview_text.pages(
        several, "protofleet experiment table choosing", "images/choosing.png", "choosing"
    )
    return "\n".join(pages.values())


def test_the_committed_pages_say_what_all_pages_say():
    """What pages of different data, methods and numbers of seeds share comes from the generator."""
    one = _pages_of_one("One", {"label": "Dear", "strategy": "scaffold"}, [1])
    other = _pages_of_one("Two", {"label": "Alone", "strategy": "local"}, [1, 2, 3])
    always = _said(one) & _said(other)
    assert len(always) > 50
    pages = (_COMMITTED, *(_COMMITTED.parent / "results").glob("choosing-*.md"))
    committed = set().union(*(_said(page.read_text()) for page in pages))
    assert sorted(always - committed) == []
