"""Kernels against their peers: what is measured, reported, judged and drawn."""

from __future__ import annotations

import importlib
import json
import sys
import time
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from threadpoolctl import threadpool_info, threadpool_limits

from protofleet.benchmarks._rows import Row
from protofleet.benchmarks._timing import Sample, within
from protofleet.benchmarks.kernels import measure as kernels
from protofleet.benchmarks.kernels.comparison import (
    KernelCase,
    KernelRow,
    Peer,
    Sides,
    kernel_row,
    show_kernels,
    verdict,
)
from protofleet.benchmarks.kernels.plot import draw
from protofleet.cli import bench as cli
from protofleet.cli.bench import bench
from protofleet.cli.main import main
from protofleet.errors import InputError, UnavailableError
from protofleet.kernels.native import pool

_KEYS = {
    "kernel", "case", "threads", "ours_ms", "baseline", "baseline_ms", "speedup", "target",
}  # fmt: skip

_ONCE = kernels._Effort(each_s=0, patience_s=0, total_s=1, least=1, most=1)


def case(kernel="add", size=1.0, **changes):
    def prepare():
        peers = (
            Peer(name="loop", run=lambda: sum(range(2000)), target=1.5),
            Peer(name="rate", fixed_ms=1e9),
        )
        return Sides(ours=lambda: None, peers=peers)

    settings = {"quick": True, "threads": (1,), "prepare": prepare, **changes}
    return KernelCase(kernel=kernel, case=f"{size:g} items", size=size, unit="items", **settings)


def row(**changes):
    fields = {
        "kernel": "add", "case": "8 items", "threads": 1, "ours_ms": 1.0, "baseline": "loop",
        "baseline_ms": 2.0, "speedup": 2.0, "target": None,
    }  # fmt: skip
    return KernelRow(**(fields | changes))


@pytest.fixture
def tiny(monkeypatch):
    """Two kernels, one with a growth curve, and no time spent on them."""
    cases = (case(size=1), case(size=8), case("scan", 8, quick=False))
    monkeypatch.setattr(kernels, "load_cases", lambda: cases)
    monkeypatch.setattr(kernels, "_use_threads", lambda _: None)
    monkeypatch.setattr(kernels, "_QUICK", _ONCE)
    monkeypatch.setattr(kernels, "_FULL", _ONCE)


def run(*args):
    return CliRunner().invoke(bench, ["kernels", *map(str, args)], catch_exceptions=False)


def test_speedup_is_the_median_over_pairs():
    mine, theirs = ([Sample(s / 1e3, 0) for s in times] for times in ((1, 10, 2), (2, 20, 8)))
    found = kernel_row(case(), 2, mine, Peer(name="loop", run=print, target=3), theirs)
    assert found == row(case="1 items", threads=2, ours_ms=2, baseline_ms=8, speedup=2, target=3)
    assert found.met is False


def test_a_required_rate_is_a_baseline_without_a_run():
    mine = [Sample(0.001, 0), Sample(0.004, 0), Sample(0.002, 0)]
    found = kernel_row(case(), 1, mine, Peer(name="rate", fixed_ms=6, target=3), ())
    assert (found.baseline_ms, found.speedup, found.met) == (6, 3, True)


@pytest.mark.parametrize(
    ("budget_s", "patience_s", "samples"), [(0, 60, 2), (60, 60, 5), (60, 0, 5), (0, 0.1, 1)]
)
def test_a_budget_bounds_the_samples_and_patience_the_least(budget_s, patience_s, samples):
    order = []
    sides = {name: lambda name=name: (order.append(name), time.sleep(0.04)) for name in "ab"}
    found = within(sides, budget_s=budget_s, patience_s=patience_s, least=2, most=5)
    assert [len(of_side) for of_side in found.values()] == [samples] * 2
    assert "".join(order) == "abbaabbaab"[: 2 * samples]


def test_a_sample_of_a_fast_call_is_the_mean_of_many():
    calls = []
    within({"a": lambda: calls.append(0)}, budget_s=0, patience_s=0, least=1, most=1)
    assert len(calls) > 100


def test_measurements_share_the_time_that_is_left():
    effort = kernels._Effort(each_s=2, patience_s=3, total_s=30, least=3, most=9)
    assert effort.shared(30, 10) == effort
    assert effort.shared(10, 10) == effort._replace(each_s=1)
    assert effort.shared(-1, 10) == effort._replace(each_s=-0.1, patience_s=0)


def test_threads_are_set_alike_before_each_measurement(monkeypatch):
    monkeypatch.setattr(pool._Setting, "threads", None)
    monkeypatch.setitem(sys.modules, "torch", torch := SimpleNamespace())
    torch.set_num_threads = lambda n: setattr(torch, "threads", n)
    seen = []

    def ours():
        blas = {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}
        seen.append((pool.threads(), torch.threads, max(blas, default=None)))

    one = case(prepare=lambda: Sides(ours=ours, peers=()), threads=(1, 2))
    with threadpool_limits(None):
        list(kernels.measure(kernels.plan([one], quick=True, threads=[2, 1]), print, quick=True))
    ours_two, ours_one = seen[0], seen[-1]
    assert ours_two[:2] == (2, 2)
    assert ours_one in {(1, 1, 1), (1, 1, None)}
    assert set(seen) == {ours_two, ours_one}


def test_a_peer_that_is_not_installed_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    planned = kernels.plan([case(prepare=lambda: importlib.import_module("ot"))], quick=True)
    with pytest.raises(UnavailableError, match=r"add is compared with ot, .* pip install"):
        list(kernels.measure(planned, print, quick=True))


@pytest.mark.parametrize(
    ("declared", "wanted", "measured"),
    [((1, 2), (1, 4), (1, 4)), ((1,), (1, 4), (1,)), ((1,), (4,), None), ((1, 10**6), (), (1,))],
)
def test_threads_come_from_the_option_else_from_the_case_and_the_cores(declared, wanted, measured):
    cases = [case(threads=declared)]
    if measured is None:
        with pytest.raises(InputError, match="nothing to measure"):
            kernels.plan(cases, quick=True, threads=wanted)
    else:
        assert kernels.plan(cases, quick=True, threads=wanted)[0].threads == measured


def test_quick_and_only_choose_cases():
    cases = [case(), case("scan"), case("Scan rows", quick=False)]
    names = [one.case.kernel for one in kernels.plan(cases, quick=False, only=["scan"])]
    assert names == ["scan", "Scan rows"]
    assert [one.case.kernel for one in kernels.plan(cases, quick=True)] == ["add", "scan"]
    with pytest.raises(InputError, match="kernel 'x': expected part of one of: add; scan; Scan"):
        kernels.plan(cases, quick=True, only=["x"])


def test_every_declared_case_is_a_point_of_its_own_and_each_kernel_has_one_unit():
    cases = kernels.load_cases()
    points = [(one.kernel, one.case, count) for one in cases for count in one.threads]
    assert len(points) == len(set(points))
    for name in {one.kernel for one in cases}:
        assert len({one.unit for one in cases if one.kernel == name}) == 1


@pytest.mark.usefixtures("tiny")
def test_the_file_has_the_machine_and_rows_with_exactly_the_promised_keys(tmp_path):
    result = run("--quick", "--json", tmp_path / "k.json")
    saved = json.loads((tmp_path / "k.json").read_text())
    assert saved["machine"]["cores"]
    assert [set(one) for one in saved["rows"]] == [_KEYS] * 4
    assert [one["target"] for one in saved["rows"]] == [1.5, None] * 2
    assert [one["baseline"] for one in saved["rows"]] == ["loop", "rate"] * 2
    assert "targets: 2 of 2 met" in result.stdout
    assert [line.split()[2:4] for line in result.stderr.splitlines()] == [
        ["1/2", "add"],
        ["2/2", "add"],
    ]


@pytest.mark.usefixtures("tiny")
def test_what_is_measured_already_is_shown_and_kept_when_a_case_fails(tmp_path, monkeypatch):
    def prepare():
        raise ArithmeticError("they disagree")

    cases = (*kernels.load_cases(), case("wrong", prepare=prepare))
    monkeypatch.setattr(kernels, "load_cases", lambda: cases)
    result = CliRunner().invoke(bench, ["kernels", "--json", str(tmp_path / "k.json")])
    assert isinstance(result.exception, ArithmeticError)
    assert "scan" in result.stdout
    assert len(json.loads((tmp_path / "k.json").read_text())["rows"]) == 6


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_figure_names_kernels_peers_and_targets(tmp_path, suffix):
    file = tmp_path / f"k{suffix}"
    assert run("--plot", file).exit_code == 0
    if suffix == ".png":
        assert file.read_bytes().startswith(b"\x89PNG")
    else:
        ET.fromstring(file.read_bytes())  # noqa: S314 - written by the line above
        words = file.read_text()
        for word in ("add", "loop", "rate", "Protofleet", "1 thread", "add 8 items"):
            assert f"<!-- {word}" in words
        assert "<!-- scan -->" not in words, "a single size is no curve"


def test_a_figure_without_a_curve_and_a_target_is_not_drawn(tmp_path):
    with pytest.raises(InputError, match="expected a kernel with several sizes or a target"):
        draw(tmp_path / "k.png", [row(case=case().case, target=None)], [case()], {})
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("tiny")
def test_all_benchmarks_share_one_file_and_draw_the_kernels(tmp_path, monkeypatch):
    other = Row(bench="programs", case="step", threads=1, ours_ms=1.0)
    module = SimpleNamespace(run=lambda quick: [[other]] if quick else [])
    monkeypatch.setitem(sys.modules, "protofleet.benchmarks.programs", module)
    monkeypatch.setattr(cli, "_TIMED", ("programs",))
    files = {"--json": tmp_path / "all.json", "--plot": tmp_path / "all.png"}
    options = [str(part) for pair in files.items() for part in pair]
    CliRunner().invoke(bench, ["all", "--quick", *options], catch_exceptions=False)
    rows = json.loads(files["--json"].read_text())["rows"]
    assert [one.get("bench", one.get("kernel")) for one in rows] == ["programs", *["add"] * 4]
    assert files["--plot"].exists()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threads", "0"], "expected numbers from 1"),
        (["--threads", "a"], "expected numbers from 1"),
        (["--plot", "x.pdf"], "ends in .png or .svg"),
    ],
)
def test_wrong_options_are_told_before_anything_is_measured(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.usefixtures("tiny")
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured():
    with pytest.raises(InputError, match=r"--json 'nowhere/x\.json': no such folder"):
        run("--json", "nowhere/x.json")


def test_the_table_leaves_out_what_repeats_and_marks_what_is_missed():
    lines: list[str] = []
    rows = [row(target=3), row(baseline="rate"), row(threads=2, target=2), row(kernel="scan")]
    show_kernels(rows, lines.append)
    cells = [line.split() for line in lines[1:]]
    assert cells == [
        [],
        ["add", "8", "items", "1", "1", "loop", "2", "2.00", "3", "MISSED"],
        ["rate", "2", "2.00"],
        ["2", "1", "loop", "2", "2.00", "2", "met"],
        [],
        ["scan", "8", "items", "1", "1", "loop", "2", "2.00"],
    ]


def test_the_verdict_names_what_is_missed():
    rows = [row(target=3), row(threads=2, target=2), row()]
    assert verdict(rows) == ("targets: 1 of 2 met; missed: add 8 items, 1 thread, loop (2.00 of 3)")
    assert verdict(rows[1:]) == "targets: 1 of 1 met"
    assert verdict(rows[2:]) == "targets: none among these rows"


def saved(path, rows, machine):
    path.write_text(json.dumps({"machine": machine, "rows": rows}))
    return str(path)


def as_saved(**changes):
    return {name: getattr(row(**changes), name) for name in _KEYS}


def compared(*paths):
    result = CliRunner().invoke(bench, ["compare", *paths], catch_exceptions=False)
    return result.stdout.splitlines()


def test_two_runs_side_by_side(tmp_path):
    step = {"bench": "programs", "case": "step", "threads": 1, "ours_ms": 4.0, "ratio": 0.5}
    memory = {"bench": "memory", "case": "round", "details": {"peak_rss_mb": 80.0}}
    mine = [as_saved(), as_saved(case="gone"), as_saved(threads=2), step, memory]
    other = [
        as_saved(ours_ms=1.5, speedup=1.5),
        as_saved(case="new"),
        as_saved(threads=2, ours_ms=1.09, speedup=2.1),
        step | {"ours_ms": 3.0, "ratio": 0.25},
    ]
    lines = compared(
        saved(tmp_path / "a.json", mine, {"cores": "2", "numpy": "2"}),
        saved(tmp_path / "b.json", other, {"cores": "4", "numpy": "2"}),
    )
    assert "machines differ in cores: A 2, B 4" in lines
    assert not any("numpy" in line for line in lines)
    assert [" ".join(line.split()) for line in lines if " items " in line or "step" in line] == [
        "add 8 items 1 loop 1 1.5 1.5 2 1.5 0.75 slower, speedup down",
        "add 8 items 2 loop 1 1.09 1.09 2 2.1 1.05",
        "programs step 1 4 3 0.75 2 4 2 faster, speedup up",
    ]
    assert "only in A: add gone, threads 1, loop" in lines
    assert "only in B: add new, threads 1, loop" in lines
    assert lines[-1] == "2 of 3 rows changed by more than 10 %"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("nonsense", "expected what 'protofleet bench --json' writes"),
        ('{"rows": []}', "missing required field `machine`"),
        ('{"machine": {}, "rows": [{"kernel": "add"}]}', "missing required field `case`"),
        ('{"machine": {}, "rows": []}', "no row is in both"),
    ],
)
def test_a_file_that_cannot_be_compared_is_named(tmp_path, capsys, content, words):
    good = saved(tmp_path / "good.json", [as_saved()], {})
    other = tmp_path / "other.json"
    if content is not None:
        other.write_text(content)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "compare", good, str(other)])
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert words in told
    assert "other.json" in told
