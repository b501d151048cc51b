"""``protofleet demo`` as a person runs it: interrupted, resumed, looked at."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protofleet.demo import browsers, load_settings
from protofleet.demo.comparison import make_job
from protofleet.demo.recipes import RECIPES
from protofleet.errors import UnavailableError
from protofleet.experiments.local import run_local
from protofleet.experiments.processes import processes
from protofleet.federation.records import load_record
from protofleet.report import ComparedRecord

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=25), pytest.mark.timeout(900)]

_DEMO = [sys.executable, "-m", "protofleet", "demo"]


_ROOT = Path(__file__).parents[2]
_ROUNDING = 2.5
"""Points."""
_SECTIONS = ("personalisation", "generalisation", "global")


def _processes_of(folder):
    """Command lines of living processes that name the run's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and str(path.parent.name) != str(Path("/proc/self").resolve().name):
            found.append(line)
    return found


def _interrupted(options, sign, base, folder):
    """Output of a run that is interrupted after a line that starts with ``sign``."""
    process = subprocess.Popen(
        [*_DEMO, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=base
    )
    output = ""
    for line in process.stdout:
        output += line
        if line.startswith(sign):
            break
    process.send_signal(signal.SIGINT)
    output += process.stdout.read()
    assert process.wait(60) == 130, output
    deadline = time.monotonic() + 30
    while stray := _processes_of(folder):
        assert time.monotonic() < deadline, stray
        time.sleep(0.1)
    assert f"protofleet demo --out {folder}" in output.replace("\n", " ")
    return output


@pytest.fixture(
    scope="module", params=["ditto", pytest.param("fedali", marks=pytest.mark.full_size)]
)
def strategy(request):
    """The default one, and one whose devices have a network of their own."""
    return request.param


@pytest.fixture(scope="module")
def run(tmp_path_factory, strategy):
    """Two devices, interrupted in their second round, in the comparison, resumed."""
    base = tmp_path_factory.mktemp("demo")
    folder = base / "run"
    options = ["--devices", "2", "--rounds", "2", "--seed", "5", "--out", str(folder)]
    options += ["--strategy", strategy]
    _interrupted(options, "round   1/2", base, folder)
    second = _interrupted(["--out", str(folder)], "seed 5, Local", base, folder)
    again = subprocess.run(
        [*_DEMO, "--out", str(folder)], capture_output=True, text=True, check=False, cwd=base
    )
    assert again.returncode == 0, again.stdout + again.stderr
    return folder, second, again.stdout


def test_interrupted_run_goes_on_where_it_was(run):
    folder, second, third = run
    assert "round   1/2" not in second
    assert "round   2/2" in second
    assert "device processes" not in third
    assert "seed 5, FedAvg" in third
    assert not _processes_of(folder)


def test_the_table_shows_the_methods_and_what_they_start_from(run, strategy):
    """A row each below the networks' starts; Local has no model at the server."""
    _, _, output = run
    rows = [line.split("│")[1:-1] for line in output.splitlines() if line.startswith("│")]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    own = {"start of FedAli", "FedAli"} if strategy == "fedali" else set()
    named = {"Local", "FedAvg", "Ditto"} | own
    assert {"start", *named} <= cells.keys()
    assert cells["Local"][-1] == "-"
    assert all("±" in cell for name in named for cell in cells[name][1:3])
    assert "everybody" in output


def test_it_ends_with_what_it_has_done_for_the_owners(run, strategy):
    folder, _, output = run
    result = load_record(folder / "result.json", ComparedRecord)
    lines = [line.strip() for line in output.splitlines()]
    assert lines[lines.index(f"{strategy}, for its owners:") :][1:4] == result.outcome.lines()
    assert "than alone" in result.outcome.lines()[2]
    methods = {method.strategy: method.outcome for method in result.comparison}
    alone = {one.id: one.end for one in methods["local"].owners}
    assert {one.id: one.alone for one in result.outcome.owners} == alone
    assert [(one.start, one.end) for one in result.outcome.owners] == [
        (one.start, one.end) for one in methods[strategy].owners
    ]
    assert len(alone) == 2


def test_the_methods_stand_beside_each_other_in_the_result(run, strategy):
    folder, *_ = run
    result = load_record(folder / "result.json", ComparedRecord)
    methods = {method.strategy: method for method in result.comparison}
    assert list(methods) == list(dict.fromkeys(("local", "fedavg", "ditto", strategy)))
    assert methods["local"].start == methods["ditto"].start
    assert (methods["local"].start == methods[strategy].start) is (strategy == "ditto")
    assert methods["local"].last.global_ is None
    for method in methods.values():
        assert len(method.rounds) == 2
        assert method.start.global_["accuracy"].mean > 0.5
        # One model on everybody's test parts, whoever evaluates it.
        spread = method.start.generalisation["accuracy"]
        assert (spread.mean, spread.std) == (method.start.global_["accuracy"].mean, 0)
    assert methods[strategy].rounds == tuple(one.scores for one in result.rounds)
    assert methods[strategy].last == result.last


@pytest.mark.full_size
def test_the_engine_without_a_broker_gives_the_scores_of_the_devices(run, strategy):
    """What the comparison rests on: the fleet's own method, run again as the others are."""
    folder, *_ = run
    settings = load_settings(folder)
    job = make_job(
        strategy, settings, RECIPES[settings.data](settings, folder), folder / "bundle.pfb"
    )
    with processes(2) as opened:
        again = run_local(job, opened=opened, watch=lambda _: None)
    result = load_record(folder / "result.json", ComparedRecord)
    assert [one.scores for one in again.rounds] == [one.scores for one in result.rounds]


def test_result_has_every_promised_field(run, strategy):
    folder, *_ = run
    result = json.loads((folder / "result.json").read_text())
    assert (result["strategy"], result["seed"]) == (strategy, 5)
    assert [one["round_id"] for one in result["rounds"]] == [1, 2]
    for one in result["rounds"]:
        assert one["participants"] == 2
        assert one["bytes_up"] > 1e6
        assert one["bytes_down"] > 1e6
        assert one["scores"].keys() == {"own_loss", *_SECTIONS}
        assert 0 < one["scores"]["own_loss"]["mean"] < 3
    for section in _SECTIONS:
        metrics = result["scores"][section]
        assert 0.5 < metrics["macro_f1"]["mean"] <= 1
        assert metrics["accuracy"]["std"] >= 0
    for device in result["devices"]:
        assert device["train_step_ms"].keys() >= {"p50", "p95"}
        assert device["infer_ms"].keys() >= {"p50", "p95", "p99"}
        assert device["peak_rss_bytes"] > 30e6


def test_report_is_one_file_with_its_pictures(run, strategy):
    folder, *_ = run
    page = (folder / "report.html").read_text()
    assert not re.search(r'(src|href)="https?:', page)
    for heading in (
        "Scores by round",
        "Methods beside each other",
        "Personalisation of the methods",
        "Traffic by round",
        "latency",
        "Confusion",
        *(["Prototypes"] if strategy == "fedali" else []),
    ):
        assert heading in page


def test_other_settings_in_the_same_folder_are_refused(run, strategy):
    folder, *_ = run
    other = [*_DEMO, "--out", str(folder), "--strategy", "fedavg"]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"strategy = {strategy}" in refused.stderr


def test_a_missing_browser_is_named_before_anything_is_done(tmp_path):
    command = [*_DEMO, "--browsers", "2", "--out", str(tmp_path / "run")]
    env = {**os.environ, "PATH": str(tmp_path)}
    refused = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert refused.returncode == 1
    assert "--browsers: no Chromium is installed" in refused.stderr
    assert not (tmp_path / "run").exists()


def test_a_page_that_was_not_built_is_named(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, said in (("chromium", ""), ("node", "v20.1.0 /usr/bin/node")):
        (programs / name).write_text(f"#!/bin/sh\necho {said}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr("protofleet.hub.site.page_folder", lambda: tmp_path / "static")
    with pytest.raises(UnavailableError, match=r"the page .* not here; in a checkout: make web"):
        browsers.check_browsers()


@pytest.mark.full_size
def test_a_browser_trains_beside_the_devices_under_a_name_of_its_own(run, strategy, tmp_path):
    try:
        browsers.check_browsers()
    except UnavailableError as error:
        if "PROTOFLEET_CI" in os.environ:
            raise
        pytest.skip(str(error))
    folder = tmp_path / "run"
    folder.mkdir()
    # The default strategy's, made for the comparison where devices have a network of their own.
    made = run[0] / ("bundle.pfb" if strategy == "ditto" else "comparison/bundle.pfb")
    shutil.copy(made, folder)
    options = ["--devices", "2", "--browsers", "1", "--rounds", "1", "--seed", "5", "--no-compare"]
    command = [*_DEMO, *options, "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 device processes, 1 in browsers," in done.stdout
    result = json.loads((folder / "result.json").read_text())
    assert [one["participants"] for one in result["rounds"]] == [3]
    names = ["device-01", "device-02", "device-03"]
    assert [device["id"] for device in result["devices"]] == names
    assert all(device["train_step_ms"]["p50"] > 0 for device in result["devices"])
    page = (folder / "report.html").read_text()
    assert all(name in page and name in done.stdout for name in names)
    assert not _processes_of(folder)


def test_missing_data_root_is_named(tmp_path):
    command = [*_DEMO, "--data", "uci-har", "--out", str(tmp_path / "run")]
    env = {name: value for name, value in os.environ.items() if name != "PROTOFLEET_DATA"}
    refused = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert refused.returncode == 1
    assert "--data-root" in refused.stderr


@pytest.mark.full_size
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("page", "options"),
    [("README.md", []), ("docs/guide.md", ["--data", "uci-har", "--strategy", "fedali"])],
)
def test_the_figures_on_the_pages_are_what_comes_out(page, options, tmp_path, data_root):
    """Within what other processors' rounding changes; of a run as the page names it."""
    rows = re.findall(r"^\| (\w+) \| (.*?) \|$", (_ROOT / page).read_text(), re.MULTILINE)
    told = {name: cells for name, cells in rows if re.search(r"\d ± \d", cells)}
    assert {"Local", "FedAvg", "Ditto"} <= told.keys()
    command = [*_DEMO, *options, "--data-root", str(data_root), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    printed = {cells[0].strip(): " | ".join(one.strip() for one in cells[2:]) for cells in lines}
    for name, cells in told.items():
        ours, found = (
            [float(one) for one in re.sub(r"± [\d.]+", "", text).split("|") if one.strip() != "-"]
            for text in (cells, printed[name])
        )
        assert found == pytest.approx(ours, abs=_ROUNDING), name
