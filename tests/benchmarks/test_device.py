"""``protofleet bench device`` and ``bench compare`` of two of its files, with real processes."""

from __future__ import annotations

import copy
import json
import os
import sys

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.benchmarks._compare import compare
from protofleet.benchmarks.device.compare import compare_devices
from protofleet.benchmarks.device.measure import run_process
from protofleet.benchmarks.device.plan import absence, training_program
from protofleet.benchmarks.device.plot import draw_device
from protofleet.benchmarks.device.report import (
    Combination,
    DeviceRun,
    StrategyTraffic,
    is_device_report,
    read_report,
)
from protofleet.benchmarks.device.request import Request
from protofleet.benchmarks.device.table import lines
from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.keys import load_or_create_signing_key, save_public_key
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli._trust import trusted_keys
from protofleet.cli.bench import bench
from protofleet.datasets import DeviceData
from protofleet.errors import InputError, RefusedError
from protofleet.strategies.scores import confusion, macro_f1
from protofleet.wire import codecs

_CLASSES = ("class0", "class1", "class2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A signed bundle, its signer's key, and data."""
    path, key = tmp_path_factory.mktemp("device"), Ed25519PrivateKey.generate()
    tiny_bundle(path / "tiny.pfb", key, strategy="fedprox")
    save_public_key(key.public_key().public_bytes_raw(), path / "key.pem")
    (x, y), (x_test, y_test) = tiny_data(0, 40), tiny_data(1, 30)
    data = DeviceData(x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=_CLASSES)
    data.save(path / "data.npz")
    return path


def _arguments(folder, *more):
    return [
        *("device", "--quick", "--bundle", str(folder / "tiny.pfb")),
        *("--trust", str(folder / "key.pem"), *more),
    ]


@pytest.fixture(scope="module")
def measured(folder):
    """The command's result, and its report."""
    files = ("--json", str(folder / "a.json"), "--plot", str(folder / "a.png"))
    data = ("--data", str(folder / "data.npz"))
    done = CliRunner().invoke(bench, _arguments(folder, *data, *files))
    assert done.exit_code == 0, done.output
    content = (folder / "a.json").read_bytes()
    assert is_device_report(content)
    return done, read_report(folder / "a.json", content)


def test_every_phase_of_a_device_is_measured(measured):
    _, report = measured
    run = next(run for run in report.runs if run.what.backend == "onnx" and run.phases)
    assert run.status == "measured", run.reason
    once = ["import", "verify", "open", "infer", "stream", "open training"]
    assert [one.key for one in run.phases] == [*once, "train 1", "train 8", "train 32", "train 64"]
    assert run.load_ms == sum(run.phase(name).ms["p50"] for name in once[:3])
    assert run.phase("infer").calls >= 20
    assert all(one.peak_rss_bytes > 10_000_000 for one in run.phases)
    assert run.objective == "cross_entropy"


def test_the_score_is_that_of_the_bundle_on_the_data(measured, folder):
    """Computed here with NumPy alone."""
    _, report = measured
    model = Bundle.open(folder / "tiny.pfb", any_signer=True).model()
    x, y = tiny_data(1, 30)
    predicted = (x @ model.params["w"] + model.params["b"]).argmax(axis=1)
    expected = macro_f1(confusion(y, predicted, 3))
    run = next(run for run in report.runs if run.status == "measured")
    assert run.score.macro_f1 == pytest.approx(expected)
    assert run.score.examples == 30


def test_sizes_are_those_of_the_bundle(measured, folder):
    _, report = measured
    files = Bundle.open(folder / "tiny.pfb", any_signer=True).manifest.files
    run = next(run for run in report.runs if run.what.backend == "onnx" and run.phases)
    names = ("programs/infer.onnx", "programs/train.onnx")
    assert run.program_bytes == {name: files[name].bytes for name in names}
    assert run.weight_bytes == files["params.safetensors"].bytes


def test_what_is_lacking_is_listed_with_a_remedy(measured):
    done, report = measured
    absent = {(r.what.backend, r.what.precision): r for r in report.runs if r.status == "absent"}
    assert "infer_int8" in absent["onnx", "int8"].reason
    assert absent["litert", "float32"].reason
    assert "Absent" in done.output
    assert absent["onnx", "int8"].reason in done.output


def test_bytes_are_counted_for_each_codec(measured):
    """60 bytes of parameters travel each way; the rest is the blob's header and the record."""
    _, report = measured
    assert [row.strategy for row in report.traffic if row.codec == "raw"] == ["fedavg", "fedprox"]
    names = [name.replace("topk", "topk / int4") for name in codecs.NAMES]
    assert [row.codec for row in report.traffic if row.strategy == "fedavg"] == names
    raw = next(row for row in report.traffic if row.codec == "raw")
    assert 60 < raw.down_bytes < raw.up_bytes < 4000


def test_the_table_shows_every_part(measured):
    done, _ = measured
    titles = ("Loading and inference", "Training step", "Peak resident memory", "On disk", "Bytes")
    assert all(title in done.output for title in titles)
    assert "macro-F1" in done.output


def test_the_plot_is_a_picture(measured, folder):
    _, report = measured
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
    draw_device(folder / "a.svg", report)
    text = (folder / "a.svg").read_text()
    assert "<svg" in text
    empty = msgspec.structs.replace(report, runs=[], traffic=[])
    draw_device(folder / "empty.png", empty)
    assert list(lines(empty))


def test_two_reports_are_compared(measured, folder):
    _, report = measured
    full = json.loads((folder / "a.json").read_bytes())
    full["settings"]["quick"] = False
    slower = copy.deepcopy(full)
    run = next(run for run in slower["runs"] if run.get("phases"))
    infer = next(phase for phase in run["phases"] if phase["name"] == "infer")
    infer["ms"]["p50"] *= 2
    run["score"]["macro_f1"] -= 0.02
    slower["traffic"][0]["up_bytes"] //= 2
    slower["settings"]["seed"] = 7
    output = _compared(folder, full, slower)
    text = {line.split("  ")[0]: line for line in output.splitlines()}
    assert text["onnx float32, 1 thread: infer ms p50"].split()[-2:] == ["2.000", "WORSE"]
    assert text["onnx float32, 1 thread: macro-F1"].split()[-2:] == ["-0.0200", "WORSE"]
    assert text["fedavg raw: bytes up"].endswith("better")
    assert text["onnx float32, 1 thread: load ms"].endswith("1.000")
    assert "seed differs: A 0, B 7" in output
    assert "2 worse, 1 better" in output
    with pytest.raises(InputError, match="no figure is in both"):
        compare_devices(report, msgspec.structs.replace(report, runs=[], traffic=[]))


def _compared(folder, first, second):
    """What the command says of two reports' JSON."""
    paths = folder / "first.json", folder / "second.json"
    for path, content in zip(paths, (first, second), strict=True):
        path.write_text(json.dumps(content))
    done = CliRunner().invoke(bench, ["compare", *map(str, paths)])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("measured")
def test_what_hangs_on_luck_or_data_is_not_judged(folder):
    quick = json.loads((folder / "a.json").read_bytes())
    full = copy.deepcopy(quick)
    full["settings"]["quick"] = False
    run = next(run for run in full["runs"] if run.get("phases"))
    next(phase for phase in run["phases"] if phase["name"] == "infer")["ms"]["p99"] = 1.0
    other = copy.deepcopy(full)
    run = next(run for run in other["runs"] if run.get("phases"))
    next(phase for phase in run["phases"] if phase["name"] == "infer")["ms"]["p99"] = 9.0
    zipped = next(row for row in other["traffic"] if row["codec"] == "fp16+zlib")
    zipped["up_bytes"] *= 2
    output = _compared(folder, full, other)
    text = {line.split("  ")[0]: line for line in output.splitlines()}
    assert text["onnx float32, 1 thread: infer ms p99"].endswith("9.000")
    assert text["fedavg fp16+zlib: bytes up"].endswith("WORSE")
    assert "1 worse, 0 better" in output
    other["data"] = "elsewhere.npz"
    assert "0 worse, 0 better" in _compared(folder, full, other)
    output = _compared(folder, quick, {**other, "data": quick["data"]})
    assert "WORSE" not in output
    assert "none judged" in output


@pytest.mark.usefixtures("measured")
def test_what_one_report_lacks_is_a_line_for_each_run(folder):
    full = json.loads((folder / "a.json").read_bytes())
    less = copy.deepcopy(full)
    less["runs"] = [run for run in less["runs"] if not run.get("phases")]
    less["traffic"][0].pop("up_bytes")
    output = _compared(folder, full, less)
    alone = [line for line in output.splitlines() if line.startswith("only in")]
    runs = [run["what"]["threads"] for run in full["runs"] if run.get("phases")]
    assert len(alone) == len(runs) + 1
    assert "only in A: onnx float32, 1 thread" in alone
    assert "only in A: fedavg: raw: bytes down, raw: bytes up" in alone


@pytest.mark.usefixtures("measured")
def test_a_device_report_is_compared_with_nothing_else(folder):
    (folder / "rows.json").write_text('{"machine": {}, "rows": []}')
    with pytest.raises(InputError, match="expected two of 'bench device' or none"):
        compare(folder / "a.json", folder / "rows.json")


@pytest.mark.usefixtures("measured")
def test_a_report_of_another_version_is_refused(folder):
    later = json.loads((folder / "a.json").read_bytes()) | {"schema": 99}
    with pytest.raises(InputError, match="schema 1, got 99"):
        read_report(folder / "later.json", json.dumps(later).encode())


def test_a_process_that_dies_says_how_and_keeps_what_it_measured(folder):
    """A bundle that changes while it is measured ends the process after its first phase."""
    heard = []
    request = Request(
        bundle=str(folder / "tiny.pfb"),
        digest="0" * 64,
        what=Combination(backend="onnx", precision="float32", threads=1),
        objective="",
        batches=(),
        stream_batch=4,
        seconds=0.01,
        least=1,
        least_infer=1,
        seed=0,
        data="",
    )
    failure = run_process("child", request, threads=1, hear=heard.append)
    assert "has changed since the measuring began" in failure
    assert [line["phase"]["name"] for line in heard if "phase" in line] == ["import"]


def test_failed_and_absent_runs_stand_in_the_table(measured):
    _, report = measured
    what = Combination(backend="onnx", precision="int8", threads=2)
    failed = DeviceRun(what=what, status="failed", reason="SIGKILL: no message")
    row = StrategyTraffic(strategy="moon", codec="raw", reason="needs 'moon'")
    text = "\n".join(lines(msgspec.structs.replace(report, runs=[failed], traffic=[row])))
    assert "onnx int8, 2 threads: SIGKILL: no message" in text
    assert "moon: needs 'moon'" in text


def test_the_training_program_is_that_of_the_strategy(folder):
    manifest = Bundle.open(folder / "tiny.pfb", any_signer=True).manifest
    float32 = Combination(backend="onnx", precision="float32", threads=1)
    assert training_program(float32, manifest) == ("train", "")
    name, why = training_program(msgspec.structs.replace(float32, precision="int8"), manifest)
    assert name is None
    assert "training needs float32" in why
    name, why = training_program(msgspec.structs.replace(float32, backend="litert"), manifest)
    assert name is None
    assert "no TFLite" in why


def test_a_runtime_that_is_not_installed_is_named(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    manifest = Bundle.open(folder / "tiny.pfb", any_signer=True).manifest
    what = Combination(backend="litert", precision="float32", threads=1)
    assert "pip install 'protofleet[litert]'" in absence(what, manifest)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--strategy", "fedavgg"], "unknown; expected one of"),
        (["--data", "wrong.npz"], "classes"),
        (["--data", "labels.npz"], "2 of 2 that are not whole, such as 0.7"),
        (["--plot", "a.jpg"], ".png or .svg"),
    ],
)
def test_a_mistake_is_named_before_anything_is_measured(folder, more, words):
    x, y = np.zeros((2, 4), np.float32), np.zeros(2, np.int64)
    DeviceData(x_train=x, y_train=y, x_test=x, y_test=y, classes=("other",)).save(
        folder / "wrong.npz"
    )
    arrays = {"x_train": x, "y_train": y + 0.7, "x_test": x, "y_test": y, "classes": _CLASSES}
    np.savez(folder / "labels.npz", **arrays)
    more = [str(folder / text) if text.endswith(".npz") else text for text in more]
    done = CliRunner().invoke(bench, _arguments(folder, *more))
    assert done.exit_code != 0
    assert words in f"{done.output} {done.exception}"


def test_a_bundle_of_a_stranger_is_not_run(folder, tmp_path, monkeypatch):
    stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    save_public_key(stranger, tmp_path / "other.pem")
    arguments = _arguments(folder)
    arguments[arguments.index("--trust") + 1] = str(tmp_path / "other.pem")
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path))
    with pytest.raises(RefusedError, match="not trusted"):
        CliRunner().invoke(bench, arguments, catch_exceptions=False)


def test_what_this_user_signed_is_measured_without_being_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path))
    mine = load_or_create_signing_key().public_key().public_bytes_raw()
    assert trusted_keys(()) == {mine}
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path / "nobody"))
    with pytest.raises(InputError, match="no trusted signer"):
        trusted_keys(())


def test_a_signal_that_ends_a_process_is_named(tmp_path, monkeypatch):
    """As a crash in native code would."""
    package = tmp_path / "sitecustomize.py"
    package.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    request = Combination(backend="onnx", precision="float32", threads=1)
    failure = run_process("child", request, threads=1, hear=lambda _line: None)
    assert failure.startswith("SIGSEGV")


@pytest.mark.slow(seconds=15)
def test_every_backend_and_precision_is_measured(tmp_path, monkeypatch):
    """A perceptron is exported for both runtimes, quantised, and measured in four processes."""
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path / "config"))
    (x, y), (x_test, y_test) = tiny_data(0, 60, features=64), tiny_data(1, 30, features=64)
    data = DeviceData(x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=_CLASSES)
    data.save(tmp_path / "data.npz")
    key = Ed25519PrivateKey.generate()
    save_public_key(key.public_key().public_bytes_raw(), tmp_path / "key.pem")
    _export_quantised(tmp_path / "tiny.pfb", key, x)
    which = ("--precision", "float32", "--precision", "int8", "--batch", "64")
    arguments = _arguments(tmp_path, "--data", str(tmp_path / "data.npz"), *which)
    done = CliRunner().invoke(bench, [*arguments, "--json", str(tmp_path / "all.json")])
    assert done.exit_code == 0, done.output
    report = read_report(tmp_path / "all.json", (tmp_path / "all.json").read_bytes())
    assert [(run.status, run.reason) for run in report.runs] == [("measured", "")] * 4
    by_name = {(run.what.backend, run.what.precision): run for run in report.runs}
    for backend in ("onnx", "litert"):
        exact, small = by_name[backend, "float32"], by_name[backend, "int8"]
        assert exact.objective == "cross_entropy"
        assert exact.phase("train 64").batch == 64
        assert "training needs float32" in small.no_training
        assert small.weight_bytes == 0
        assert sum(small.program_bytes.values()) < exact.weight_bytes
        assert abs(exact.score.macro_f1 - by_name["onnx", "float32"].score.macro_f1) < 1e-9


def _export_quantised(path, key, x):
    """A perceptron whose weights outweigh its programs."""
    import torch  # noqa: PLC0415 - heavy, and only here

    from protofleet.export.build import BundleSpec, export_bundle  # noqa: PLC0415 - torch
    from protofleet.export.models import build_model  # noqa: PLC0415 - torch
    from protofleet.export.quantise import quantise  # noqa: PLC0415 - onnx

    torch.manual_seed(0)
    spec = BundleSpec(
        name="perceptron",
        strategy="fedavg",
        classes=_CLASSES,
        preprocessing=Preprocessing(input_shape=(64,)),
        objectives=("cross_entropy",),
    )
    export_bundle(build_model("mlp", inputs=64, classes=3), spec, out=path, key=key)
    draft = quantise(bundle := Bundle.open(path, any_signer=True), bundle.model(), x, ("int8",))
    write_bundle(path, draft.manifest, draft.files, key)
