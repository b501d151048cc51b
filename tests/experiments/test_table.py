"""The table and the pictures of stored results; every expected number is worked out by hand."""

import io
import re

import msgspec
import numpy as np
import pytest
from rich.console import Console

from protofleet.errors import InputError
from protofleet.experiments import figures
from protofleet.experiments._table_text import costs_markdown, markdown, show
from protofleet.experiments.config import Experiment
from protofleet.experiments.store import MethodResult, load_results, run_folder, save_result
from protofleet.experiments.table import tabulate
from protofleet.federation.records import ClientCosts, Metrics, RoundRecord, Scores, Spread

_PNG = b"\x89PNG\r\n\x1a\n"


def an_experiment(methods, seeds=(1, 2), rounds=3, **score):
    return msgspec.convert(
        {
            "title": "Digits",
            "paper": "fedx",
            "table": "Table 1",
            "data": [{"name": "digits"}],
            "partition": {"kind": "iid", "clients": 2},
            "model": {"name": "mlp"},
            "rounds": rounds,
            "seeds": seeds,
            "methods": methods,
            "score": {"sections": ["personalisation"], **score},
        },
        Experiment,
    )


def a_method(label="FedAvg", strategy="fedavg", **more):
    return {"label": label, "strategy": strategy, **more}


def scored(f1, accuracy, std=0.02):
    return {"macro_f1": {"mean": f1, "std": std}, "accuracy": {"mean": accuracy, "std": std}}


def a_round(number, *, own=None, server=None, seconds=1.0, up=0, down=0, participants=2, **more):
    scores = {"personalisation": own and scored(*own), "global": server and scored(*server, 0.0)}
    return RoundRecord(
        round_id=number,
        seconds=seconds,
        participants=participants,
        bytes_up=up,
        bytes_down=down,
        scores=msgspec.convert({key: value for key, value in scores.items() if value}, Scores),
        **more,
    )


def own_scores(*accuracies):
    return [a_round(number + 1, own=(a, a)) for number, a in enumerate(accuracies)]


def a_run(rounds, *, label="FedAvg", seed=1, finished=True):
    return MethodResult(
        experiment="x",
        label=label,
        strategy="fedavg",
        seed=seed,
        identity="",
        engine="local",
        finished=finished,
        rounds=tuple(rounds),
    )


@pytest.fixture
def table_of(tmp_path):
    """The table of an experiment whose runs went through the store."""

    def make(experiment, *runs):
        methods = {method.label: method for method in experiment.methods}
        for run in runs:
            save_result(run_folder(tmp_path, methods[run.label], run.seed), run)
        return tabulate(experiment, load_results(tmp_path, experiment))

    return make


_TWO_RUNS = (
    a_run(
        [
            a_round(1, own=(0.60, 0.5), server=(0.40, 0.4)),
            a_round(2, own=(0.80, 0.9), server=(0.30, 0.3)),
            a_round(3, own=(0.85, 0.7), server=(0.55, 0.6)),
        ]
    ),
    a_run(
        [
            a_round(1, own=(0.50, 0.6), server=(0.45, 0.7)),
            a_round(2, own=(0.75, 0.7), server=(0.20, 0.1)),
            a_round(3, own=(0.70, 0.8), server=(0.10, 0.2)),
        ],
        seed=2,
    ),
)


def test_best_is_the_round_of_the_best_own_accuracy_and_the_servers_model_has_its_own(table_of):
    """Not the round of the best shown metric; 80 and 70, 55 and 45; the spread divides by n."""
    paper = {"personalisation": {"mean": 90.0, "std": 2.0}}
    table = table_of(
        an_experiment([a_method(paper=paper)], sections=["personalisation", "global"]), *_TWO_RUNS
    )
    own, server = table.rows[0].cells["personalisation"], table.rows[0].cells["global"]
    assert (own.mean, own.std, own.over) == (pytest.approx(75), pytest.approx(5), "seeds")
    assert own.difference == pytest.approx(-15)
    assert own.paper == msgspec.convert(paper["personalisation"], type(own.paper))
    assert (server.mean, server.std) == (pytest.approx(50), pytest.approx(5))
    assert server.difference is None


def test_last_is_the_last_round(table_of):
    """85 and 70."""
    cell = table_of(an_experiment([a_method()], select="last"), *_TWO_RUNS).rows[0].cells
    assert cell["personalisation"].mean == pytest.approx(77.5)
    assert cell["personalisation"].std == pytest.approx(7.5)


@pytest.mark.parametrize(("select", "mean", "other"), [("best", 75, 77.5), ("last", 77.5, 75)])
def test_the_score_of_the_round_that_is_not_quoted_stands_beside_it(table_of, select, mean, other):
    table = table_of(an_experiment([a_method()], select=select), *_TWO_RUNS)
    cell = table.rows[0].cells["personalisation"]
    assert (cell.mean, cell.other.mean) == (pytest.approx(mean), pytest.approx(other))
    assert sorted([cell.std, cell.other.std]) == pytest.approx([5, 7.5])
    head = "last" if select == "best" else "best"
    assert f"| {head} round pers. |" in markdown(table)


def with_clients(rounds, n):
    """The same rounds, told of how many clients."""
    text = msgspec.json.encode(rounds).replace(b'"std":0.02', b'"std":0.02,"n":%d' % n)
    return msgspec.json.decode(text, type=list[RoundRecord])


def test_intervals_are_the_clients_and_their_mean_over_the_seeds(table_of):
    """Of 5 and 11 clients: 2.776 · 2 / √4 and 2.228 · 2 / √10."""
    runs = [
        msgspec.structs.replace(run, rounds=tuple(with_clients(run.rounds, n)))
        for run, n in zip(_TWO_RUNS, (5, 11), strict=True)
    ]
    experiment = an_experiment([a_method()], spread="ci95", sections=["personalisation", "global"])
    table = table_of(experiment, *runs)
    own, server = table.rows[0].cells["personalisation"], table.rows[0].cells["global"]
    assert own.ci95 == pytest.approx((2.77645 + 2.22814 * 2 / 10**0.5) / 2, rel=1e-5)
    assert server.ci95 is None
    text = markdown(table)
    assert "mean ± half the clients' 95 % interval" in text
    assert "| FedAvg | 75.00 ± 2.09 | 50.00 |" in text


def test_loss_and_scores_after_the_fit_are_columns(table_of, tmp_path):
    """The loss is no per cent; both come from the quoted round."""
    rounds = [
        msgspec.structs.replace(
            one,
            scores=msgspec.structs.replace(
                one.scores,
                own_loss=Spread(mean=loss, std=0.1, n=2),
                more={"after_fit": msgspec.convert(scored(0.9 - loss, 0.5), Metrics)},
            ),
        )
        for one, loss in zip(_TWO_RUNS[0].rounds, (0.5, 0.4, 0.3), strict=True)
    ]
    sections = ["personalisation", "after_fit", "loss"]
    paper = {"loss": {"mean": 0.32}}
    experiment = an_experiment([a_method(paper=paper)], seeds=(1,), sections=sections)
    table = table_of(experiment, a_run(rounds))
    cells = table.rows[0].cells
    assert cells["loss"].mean == pytest.approx(0.4)
    assert cells["loss"].difference == pytest.approx(0.08)
    assert cells["after_fit"].mean == pytest.approx(50)
    assert "| 0.400 ± 0.100† | 0.320 | +0.080 |" in markdown(table)
    figures.curves(experiment, [a_run(rounds)], tmp_path / "curves.png")
    figures.bars(table, tmp_path / "bars.png")


@pytest.mark.parametrize(("select", "own"), [("best", 90), ("last", 33)])
def test_the_final_fit_is_the_last_score_and_one_of_those_the_best_is_chosen_from(
    table_of, select, own
):
    """The server's model is that of the rounds."""
    final = a_round(4, own=(0.33, 0.33), final=True)
    rounds = [*own_scores(0.5, 0.9), a_round(3, own=(0.6, 0.6), server=(0.4, 0.4)), final]
    experiment = an_experiment(
        [a_method()], seeds=(1,), select=select, sections=["personalisation", "global"]
    )
    row = table_of(experiment, a_run(rounds)).rows[0]
    assert row.cells["personalisation"].mean == pytest.approx(own)
    assert row.cells["global"].mean == pytest.approx(40)
    assert row.notes == ()


def test_one_seed_has_the_spread_over_its_clients_and_one_model_has_none(table_of):
    experiment = an_experiment([a_method()], sections=["personalisation", "global"])
    row = table_of(experiment, _TWO_RUNS[0]).rows[0]
    own, server = row.cells["personalisation"], row.cells["global"]
    assert (own.mean, own.std, own.over) == (pytest.approx(80), pytest.approx(2), "clients")
    assert (server.std, server.over) == (None, None)
    assert (row.seeds_done, row.seeds_asked) == (1, 2)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([(0.5, 0.8, 0.9), (0.8, 0.7, 0.9)], 1.5),
        ([(0.5, 0.8, 0.9), (0.1, 0.2, 0.8), (0.1, 0.2, 0.3)], 3),
        ([(0.5, 0.8, 0.9), (0.1, 0.2, 0.3)], None),
        ([(0.1, 0.2, 0.79)], None),
    ],
)
def test_rounds_to_target_is_the_median_over_seeds_that_counts_never_as_last(
    table_of, accuracies, expected
):
    seeds = tuple(range(1, len(accuracies) + 1))
    experiment = an_experiment([a_method()], seeds=seeds, target=0.8)
    runs = [a_run(own_scores(*one), seed=s) for s, one in zip(seeds, accuracies, strict=True)]
    assert table_of(experiment, *runs).rows[0].rounds_to_target == expected


def test_rounds_to_target_does_not_count_the_final_fit(table_of):
    rounds = [*own_scores(0.1, 0.2, 0.3), a_round(4, own=(0.9, 0.9), final=True)]
    experiment = an_experiment([a_method()], target=0.8)
    assert table_of(experiment, a_run(rounds)).rows[0].rounds_to_target is None


def test_costs_are_per_round_and_per_client_without_the_final_fit(table_of):
    """(8 + 1) MB up and (16 + 2) down of 4 + 2 clients; medians of 1, 2, 9 and of 4, 8, 12 s."""
    first = [
        a_round(1, own=(0.5, 0.5), seconds=1, up=8_000_000, down=16_000_000, participants=4),
        a_round(2, own=(0.5, 0.5), seconds=2, up=1_000_000, down=2_000_000, participants=2),
        a_round(3, seconds=9, participants=0),
        a_round(4, seconds=99, up=10**9, down=10**9, participants=4, final=True),
    ]
    second = [a_round(n, own=(0.5, 0.5), seconds=s) for n, s in ((1, 4), (2, 8), (3, 12))]
    methods = [
        a_method("Central", merged=True),
        a_method(),
        a_method("Ours", "fedali"),
        a_method("None yet", "fedala"),
    ]
    runs = [a_run(first), a_run(second, label="Ours"), a_run(second, label="Central")]
    _, fedavg, ours, none = table_of(an_experiment(methods), *runs).rows
    assert (fedavg.mb_up, fedavg.mb_down) == (pytest.approx(1.5), pytest.approx(3.0))
    assert (fedavg.seconds_per_round, ours.seconds_per_round) == (2, 8)
    assert (none.seconds_per_round, none.train_ms, none.mb_up) == (None, None, None)
    assert none.cells["personalisation"].mean is None


def _costly(*seconds, **more):
    """A run's rounds with what a client's training took in each."""
    return [
        a_round(n, own=(0.5, 0.5), costs=ClientCosts(train_s=s), **more)
        for n, s in enumerate(seconds, 1)
    ]


def test_training_is_the_mean_over_the_rounds_after_the_first_and_all_seeds(table_of):
    """(1 + 3 + 2 + 2) / 4 and (4 + 4) / 2 seconds; the final fit does not count."""
    final = a_round(4, own=(0.5, 0.5), costs=ClientCosts(train_s=80), final=True)
    runs = [
        a_run([*_costly(9, 1, 3), final]),
        a_run(_costly(9, 2, 2), seed=2),
        a_run(_costly(0, 4, 4), label="Ours"),
    ]
    table = table_of(an_experiment([a_method(), a_method("Ours", "fedali")]), *runs)
    assert [(row.train_ms, row.train_ratio) for row in table.rows] == [(2000, 1), (4000, 2)]
    assert "train ms: processor time of a client's training" in markdown(table)


def test_a_method_with_a_model_of_its_own_stands_beside_fedavg_on_it(table_of):
    """Half of its seconds and a quarter of its bytes; beside FedAvg's first row it were twice."""
    methods = [
        a_method(),
        a_method("FedAvg on its model", model={"name": "cnn"}),
        a_method("Ours", "fedhp", model={"name": "cnn"}, beside="FedAvg on its model"),
    ]
    runs = [
        a_run(_costly(9, 1, 1, up=100, down=100)),
        a_run(_costly(9, 4, 4, up=800, down=800), label="FedAvg on its model"),
        a_run(_costly(9, 2, 2, up=200, down=200), label="Ours"),
    ]
    table = table_of(an_experiment(methods), *runs)
    found = [(row.train_ratio, row.up_ratio, row.down_ratio) for row in table.rows]
    assert found == [(1, 1, 1), (4, 8, 8), (0.5, 0.25, 0.25)]
    text = costs_markdown(table)
    head = "| method | seeds | train ms | train times FedAvg | MB up | MB down |"
    assert f"{head} up times FedAvg | down times FedAvg |" in text
    assert "| Ours | 1/2 | 2000.0 | 0.50 | 0.000 | 0.000 | 0.25 | 0.25 |" in text
    assert "- Ours: costs times those of FedAvg on its model" in text
    part = table_of(an_experiment([methods[0], methods[2]]), *runs[::2])
    assert part.rows[1].train_ratio is None
    assert "costs times those of" not in costs_markdown(part)


def test_bytes_up_and_down_stand_beside_fedavgs(table_of):
    def rounds(up, down):
        return [a_round(n, own=(0.5, 0.5), up=up, down=down) for n in (1, 2, 3)]

    methods = [a_method(), a_method("Ours", "fedali"), a_method("None yet", "fedala")]
    runs = [a_run(rounds(4000, 2000)), a_run(rounds(3000, 5000), label="Ours")]
    table = table_of(an_experiment(methods), *runs)
    found = [(row.up_ratio, row.down_ratio) for row in table.rows]
    assert found == [(1, 1), (pytest.approx(0.75), pytest.approx(2.5)), (None, None)]
    assert "up times FedAvg | down times FedAvg |" in markdown(table)
    assert "| 0.75 | 2.50 |" in markdown(table)


def test_without_fedavg_there_is_no_ratio(table_of):
    methods = [a_method("Central", merged=True), a_method("Ours", "fedali")]
    run = a_run(own_scores(0.5, 0.5, 0.5), label="Ours")
    assert table_of(an_experiment(methods), run).rows[1].up_ratio is None


def test_what_codecs_save_and_lose_is_told_beside_the_same_method_without(table_of):
    def rounds(f1, up, down):
        return [a_round(n + 1, own=(f1, f1), up=up, down=down) for n in range(3)]

    int8, topk = {"up": "int8", "down": "int8"}, {"up": "topk", "keep": 0.05, "down": "int4"}
    methods = [
        a_method("FedAvg"),
        a_method("FedAvg, int8", codec=int8),
        a_method("FedAli", "fedali"),
        a_method("FedAli, top", "fedali", codec=topk),
        a_method("Alone", "fedprox", codec={**int8, "compression": "none"}),
    ]
    given = [(0.8, 4000, 6000), (0.79, 1000, 1500), (0.9, 8000, 8000), (0.905, 300, 700)]
    runs = [
        a_run(rounds(*one), label=method["label"])
        for one, method in zip(given, methods, strict=False)
    ]
    table = table_of(an_experiment(methods), *runs)
    found = [(row.codec, row.bytes_ratio, row.cells["personalisation"].lost) for row in table.rows]
    assert found == [
        ("raw / raw", 1.0, None),
        ("int8 / int8", pytest.approx(0.25), pytest.approx(1.0)),
        ("raw / raw", pytest.approx(1.6), None),
        ("topk 0.05 / int4", pytest.approx(0.1), pytest.approx(-0.5)),
        ("int8 / int8, not compressed", None, None),
    ]
    text = markdown(table)
    assert "bytes times raw FedAvg | points lost pers." in text
    assert "| topk 0.05 / int4 | 0.100 | -0.50 |" in text


def test_the_columns_of_codecs_are_left_out_where_all_is_raw(table_of):
    assert "codec" not in markdown(table_of(an_experiment([a_method()]), a_run(own_scores(0.5))))


def test_an_unfinished_run_is_left_out_if_another_is_finished(table_of):
    runs = a_run(own_scores(0.6, 0.7, 0.5)), a_run(own_scores(0.9), seed=2, finished=False)
    row = table_of(an_experiment([a_method()]), *runs).rows[0]
    assert row.cells["personalisation"].mean == pytest.approx(70)
    assert row.notes == ("seed 2: stopped after 1 of 3 rounds, left out",)
    assert (row.seeds_done, row.seeds_asked) == (1, 2)


def test_unfinished_runs_are_shown_if_nothing_else_is_there(table_of):
    runs = [a_run(own_scores(0.6), seed=seed, finished=False) for seed in (1, 2)]
    row = table_of(an_experiment([a_method()]), *runs).rows[0]
    assert row.cells["personalisation"].mean == pytest.approx(60)
    assert row.notes == ("seeds 1, 2: stopped after 1 of 3 rounds, figures so far",)
    assert row.seeds_done == 0


@pytest.mark.parametrize("done", [0, 1])
def test_a_run_that_diverged_says_so_and_why(table_of, done):
    run = a_run(own_scores(0.5)[:done], finished=False)
    run = msgspec.structs.replace(run, stopped="a loss is not finite")
    (row,) = table_of(an_experiment([a_method()]), run).rows
    assert row.notes == (f"seed 1: diverged after {done} of 3 rounds: a loss is not finite",)


def test_a_run_of_fewer_rounds_than_the_file_says_is_noted(table_of):
    row = table_of(an_experiment([a_method(rounds=5)]), a_run(own_scores(0.6, 0.7))).rows[0]
    assert row.notes == ("seed 1: 2 rounds instead of 5",)


def test_a_metric_that_was_not_measured_is_an_error_that_names_the_run(table_of):
    with pytest.raises(InputError, match="'FedAvg', seed 1: expected the metric 'sample_accuracy'"):
        table_of(an_experiment([a_method()], metric="sample_accuracy"), _TWO_RUNS[0])


def test_accuracy_over_all_samples_of_the_servers_one_model_is_its_accuracy(table_of):
    section = scored(0.1, 0.2) | {"sample_accuracy": {"mean": 0.3, "std": 0.0, "n": 1}}
    scores = {"personalisation": section, "global": scored(0.4, 0.5)}
    run = a_run([msgspec.structs.replace(a_round(1), scores=scores)])
    experiment = an_experiment(
        [a_method()], metric="sample_accuracy", sections=["personalisation", "global"]
    )
    cells = table_of(experiment, run).rows[0].cells
    assert cells["personalisation"].mean == pytest.approx(30)
    assert cells["personalisation"].std is None  # of all clients' examples there is one
    assert cells["global"].mean == pytest.approx(50)


def shown(table, width):
    console = Console(width=width, file=io.StringIO())
    show(table, console)
    return console.file.getvalue()


def test_fifteen_methods_in_three_sections_fit_a_hundred_columns(table_of):
    """Nothing is cut off; wider consoles get one line per method."""
    paper = {name: {"mean": 98.15, "std": 11.75} for name in ("personalisation", "global")}
    labels = [f"Method number {number}" for number in range(15)]
    experiment = an_experiment(
        [a_method(label, paper=paper) for label in labels],
        sections=["personalisation", "generalisation", "global"],
        target=0.9,
    )
    runs = [msgspec.structs.replace(run, label=label) for label in labels for run in _TWO_RUNS]
    table = table_of(experiment, *runs)
    narrow, wide = shown(table, 100), shown(table, 250)
    assert max(map(len, narrow.splitlines())) <= 100
    for text, lines in ((narrow, 3), (wide, 1)):
        assert "…" not in text
        assert text.count("75.00 ± 5.00") == text.count("-23.15") == 15
        assert text.count("98.15 ± 11.75") == 30
        assert sum(f"{labels[1]} " in line for line in text.splitlines()) == lines


def test_the_text_marks_a_spread_over_clients_and_says_what_is_missing(table_of):
    methods = [a_method(), a_method("None yet", "fedala")]
    text = shown(table_of(an_experiment(methods, target=0.95), _TWO_RUNS[0]), 100)
    row, nothing = (
        next(line for line in text.splitlines() if line.startswith(start))
        for start in (" FedAvg", " None yet")
    )
    assert row.split()[1:] == [
        *("80.00", "±", "2.00†"),
        *("85.00", "±", "2.00†"),
        *("1/2", "-", "1.00", "0.000", "0.000"),
    ]
    assert nothing.split()[2:] == ["-", "-", "0/2", "-", "-", "-", "-"]
    assert "† std over the clients of one seed" in text
    assert "the sizes of the blobs" in text


def test_a_note_that_is_true_of_several_methods_is_written_once(table_of):
    methods = [a_method(label, rounds=5) for label in ("A", "B", "C")]
    runs = [a_run(own_scores(0.6, 0.7), label=label) for label in ("A", "B", "C")]
    note = "seed 1: 2 rounds instead of 5"
    assert f"\nA, B, {note}\n" in shown(table_of(an_experiment(methods), *runs[:2]), 100)
    assert f"\nevery method, {note}\n" in shown(table_of(an_experiment(methods), *runs), 100)


def test_central_training_has_no_spread_over_clients(table_of):
    run = msgspec.structs.replace(_TWO_RUNS[0], clients=1)
    row = table_of(an_experiment([a_method(merged=True)]), run).rows[0]
    assert row.cells["personalisation"].std is None


def test_markdown_has_as_many_cells_in_every_line(table_of):
    methods = [a_method("A|B", "fedali", paper={"personalisation": {"mean": 81.0}}), a_method()]
    text = markdown(table_of(an_experiment(methods), *_TWO_RUNS))
    lines = [line.replace("\\|", "") for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {10}
    assert lines[0].startswith("| method | personalisation, ours | personalisation, paper |")
    assert lines[2].startswith("| AB | - | 81.00 | - | - | 0/2 |")
    assert lines[3].startswith("| FedAvg | 75.00 ± 5.00 | - | - | 77.50 ± 7.50 | 2/2 |")


def test_curves_are_means_over_seeds_by_round():
    """Round 2 was scored for one seed only."""
    runs = [
        a_run(own_scores(0.2, 0.6)),
        a_run([a_round(1, own=(0.4, 0.4)), a_round(2)], seed=2),
    ]
    points = figures._points(runs, "personalisation", "accuracy")
    np.testing.assert_allclose(points, [(1, 30, 10), (2, 60, 0)])


def png_size(path):
    data = path.read_bytes()
    assert data.startswith(_PNG)
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_pictures_have_a_panel_per_section_that_was_scored(table_of, tmp_path):
    paper = {"personalisation": {"mean": 81.0, "std": 3.0}}
    methods = [a_method(paper=paper), a_method("Nothing run", "fedala")]
    widths = []
    for sections in (["personalisation"], ["personalisation", "global"]):
        experiment = an_experiment(methods, sections=[*sections, "generalisation"])
        table = table_of(experiment, *_TWO_RUNS)
        figures.curves(experiment, _TWO_RUNS, tmp_path / "curves.png")
        figures.bars(table, tmp_path / "bars.png")
        widths.append(png_size(tmp_path / "curves.png")[0])
        assert png_size(tmp_path / "bars.png")[0] > widths[-1]
    assert widths[0] < widths[1]


def drawn_text(path):
    """What a picture in SVG says, line by line: matplotlib notes each text before its shapes."""
    return re.findall(r"<!-- (.*?) -->", path.read_text(), re.DOTALL)


def test_curves_say_in_words_what_a_panel_shows_and_who_has_no_such_score(tmp_path):
    """FedAvg has no scores after the fit: it is named, and a method without runs is not."""
    fit = msgspec.convert(scored(0.5, 0.5), Metrics)
    rounds = [
        msgspec.structs.replace(
            one, scores=msgspec.structs.replace(one.scores, more={"after_fit": fit})
        )
        for one in own_scores(0.4, 0.6)
    ]
    methods = [a_method(), a_method("FedSub", "fedsub"), a_method("Nothing run", "fedala")]
    experiment = an_experiment(methods, rounds=2, sections=["personalisation", "after_fit"])
    runs = [a_run(own_scores(0.2, 0.6)), a_run(rounds, label="FedSub")]
    figures.curves(experiment, runs, tmp_path / "curves.svg")
    text = drawn_text(tmp_path / "curves.svg")
    assert "personalisation, after local training" in text
    assert "after_fit" not in text
    assert text.count("no such score: FedAvg") == 1
    assert not [line for line in text if "such score" in line and "Nothing run" in line]


@pytest.mark.parametrize(
    ("rounds", "key"), [(3, "paper"), (150, "paper; ours after 3 of 150 rounds")]
)
def test_curves_say_that_ours_have_fewer_rounds_than_the_file(tmp_path, rounds, key):
    methods = [a_method(paper={"personalisation": {"mean": 81.0}})]
    experiment = an_experiment(methods, rounds=rounds)
    figures.curves(experiment, [a_run(own_scores(0.1, 0.2, 0.3))], tmp_path / "curves.svg")
    assert key in drawn_text(tmp_path / "curves.svg")


def test_curves_name_who_has_fewer_rounds_than_the_file(tmp_path):
    paper = {"personalisation": {"mean": 81.0}}
    methods = [a_method(paper=paper), a_method("FedSub", "fedsub", paper=paper)]
    runs = [a_run(own_scores(0.1, 0.2, 0.3)), a_run(own_scores(0.1, 0.2), label="FedSub")]
    figures.curves(an_experiment(methods, rounds=3), runs, tmp_path / "curves.svg")
    assert "paper; FedSub after 2 of 3 rounds" in drawn_text(tmp_path / "curves.svg")


def test_curves_of_nothing_are_refused(tmp_path):
    with pytest.raises(InputError, match="expected scored rounds of 'Digits', got none"):
        figures.curves(an_experiment([a_method()]), [a_run([a_round(1)])], tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
