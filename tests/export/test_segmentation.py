"""A class for each step of an example: what is exported, trained centrally, taken and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import protofleet as pf
from protofleet.benchmarks.device.request import device_data
from protofleet.bundle import Bundle
from protofleet.cli.bench import bench
from protofleet.cli.prepare import prepare
from protofleet.cli.pretrain import pretrain
from protofleet.datasets import DeviceData, load_device_data
from protofleet.edge import LocalData
from protofleet.edge.data.examples import Examples, load_examples
from protofleet.edge.data.recording import Labelled, to_device_data
from protofleet.edge.join import open_learner
from protofleet.edge.learning.personalise import personalise
from protofleet.errors import InputError
from protofleet.export.pretraining.checkpoints import load_checkpoint
from protofleet.runtime import open_programs
from protofleet.strategies import DESCRIPTIONS
from protofleet.strategies.tasks import TASKS

pytestmark = pytest.mark.slow(seconds=8)

_CLASSES = ("rest", "walk", "run", "fall")
_STEPS, _CHANNELS = 12, 2


class _Segmenter(nn.Module):
    """Classes of every step, behind or before the steps."""

    def __init__(self, *, classes_last: bool = True, channels: int = _CHANNELS) -> None:
        super().__init__()
        self.body = nn.Conv1d(channels, 6, 3, padding=1)
        self.head = nn.Linear(6, len(_CLASSES))
        self.classes_last = classes_last

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(torch.relu(self.body(x.mT)).mT)
        return logits if self.classes_last else logits.mT


def _examples(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The class of a step is told by the sign of its two channels."""
    x = np.random.default_rng(seed).normal(size=(count, _STEPS, _CHANNELS)).astype(np.float32)
    return x, 2 * (x[:, :, 0] > 0) + (x[:, :, 1] > 0).astype(np.int64)


def _export(path: Path, model: nn.Module, strategy: str | list[str] = "fedavg", **more: Any) -> Any:
    told: list[str] = []
    more = {"task": "segmentation", "classes": _CLASSES, **more}
    pf.export_model(
        model, path, strategy=strategy, input_shape=(_STEPS, _CHANNELS), tell=told.append, **more
    )
    return Bundle.open(path, any_signer=True), told


@pytest.fixture(scope="module")
def exported_file(tmp_path_factory):
    return tmp_path_factory.mktemp("steps") / "a.pfb"


@pytest.fixture(scope="module")
def exported(exported_file):
    torch.manual_seed(0)
    return _export(exported_file, _Segmenter(), ["fedavg", "all"])


@pytest.fixture(scope="module")
def bundle(exported):
    return exported[0]


def _data(y: Any = None, **changes: Any) -> DeviceData:
    x, own = _examples(20)
    y = own if y is None else y
    known = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "classes": _CLASSES}
    return DeviceData(**{**known, **changes})


def test_ports_have_an_axis_of_steps_and_the_loss_is_pytorch_s(bundle):
    programs = bundle.manifest.programs
    assert set(programs) == {"infer", "train"}
    shapes = {port.key: port.shape for port in programs["train"].inputs if port.role == "input"}
    assert shapes["y"] == ("batch", _STEPS)
    (logits,) = [port for port in programs["infer"].outputs if port.key == "logits"]
    assert logits.shape == ("batch", _STEPS, len(_CLASSES))
    x, y = _examples(5, seed=3)
    opened, network = open_programs(bundle), bundle.model().network
    step = opened.grad_fns["step_cross_entropy"](
        network, {"x": x, "y": y}, np.random.default_rng(0)
    )
    outputs = torch.from_numpy(opened.predict(network, x, batch_size=4))
    expected = nn.functional.cross_entropy(outputs.mT, torch.from_numpy(y))
    assert step.loss == pytest.approx(expected.item(), rel=1e-5)
    assert TASKS["segmentation"].losses["step_cross_entropy"](outputs.numpy(), y) == pytest.approx(
        expected.item(), rel=1e-5
    )


def test_classes_before_the_steps_are_turned_and_told(bundle, tmp_path):
    """As PyTorch's loss has them; the bundle is the one of the model that has them last."""
    torch.manual_seed(0)
    model = _Segmenter(classes_last=False)
    turned, told = _export(tmp_path / "a.pfb", model)
    assert "the model gives (n, classes, steps), (4, 12): taken as (n, steps, classes)" in told
    x, _ = _examples(3)
    outputs = [
        open_programs(one).predict(one.model().network, x, batch_size=3) for one in (turned, bundle)
    ]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-6, atol=1e-6)
    assert model(torch.from_numpy(x)).shape == (3, len(_CLASSES), _STEPS)


def test_every_strategy_that_asks_nothing_of_classes_takes_it(exported):
    _, told = exported
    left_out = {line.split(":")[0].rsplit(" ", 1)[1] for line in told if "left out" in line}
    refused = {name for name, one in DESCRIPTIONS.items() if "segmentation" not in one.tasks}
    assert left_out == refused | {"fedali"}  # which wants alignment layers
    reasons = [line for line in told if "strategy moon" in line]
    assert "because it looks at classes, got segmentation" in reasons[0]


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (
            _Segmenter(classes_last=False),
            {"classes": ("a", "b", "c")},
            r"expected 3 numbers for a step, .* \(a, b, c\), got 12",
        ),
        (_Segmenter(), {"classes": None}, r"classes: name those of a segmentation"),
        (
            _Segmenter(),
            {"task": "classification"},
            r"returns \(2, 12, 4\) .* classes of each step .* task of their own, segmentation",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(24, 4)),
            {},
            r"returns \(2, 4\) .* expected \(2, steps, classes\); keep an axis of steps",
        ),
        (
            _Segmenter(),
            {"loss": "cross_entropy"},
            "expected step_cross_entropy for task segmentation",
        ),
        (
            _Segmenter(),
            {"objectives": ["moon"]},
            "'moon': expected one for task segmentation, got one whose labels are classes",
        ),
        (_Segmenter(), {"strategy": "moon"}, "looks at classes, got segmentation"),
    ],
)
def test_what_does_not_fit_is_refused(model, more, message, tmp_path):
    with pytest.raises(InputError, match=message):
        _export(tmp_path / "a.pfb", model, more.pop("strategy", "fedavg"), **more)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(20, np.int64), r"y_train: expected \(n, steps\) int64, a class number for each"),
        (np.full((20, _STEPS), 4), "y_train holds 4…4, expected 0…3"),
        (np.eye(4, dtype=np.int64)[np.zeros(20, int)], r"got \(20, 4\); save y.argmax\(1\)"),
        (
            np.zeros((20, _STEPS - 1), int),
            r"\(n, 12\), a class for each step of the bundle's",
        ),
        (np.zeros((20, _STEPS), np.float32), r"expected class numbers \(n,\), got \(20, 12\)"),
    ],
)
def test_labels_of_another_form_are_refused(bundle, y, message):
    with pytest.raises(InputError, match=message):
        open_learner(bundle, LocalData(own=_data(y)), threads=1, device_id="a")


def test_names_of_classes_become_numbers_and_steps_are_counted(bundle):
    own = _data()
    named = _data(np.array(_CLASSES)[own.y_train])
    np.testing.assert_array_equal(named.y_train, own.y_train)
    learner = open_learner(bundle, LocalData(own=named), threads=1, device_id="a")
    assert learner.class_counts(1) == tuple(np.bincount(own.y_train.reshape(-1), minlength=4))
    assert learner.num_examples(1) == 20


def test_rows_that_are_no_stream_and_a_head_alone_are_refused_by_name(bundle):
    rows = Examples(x=_examples(3)[0], y=np.zeros(3, np.int64))
    with pytest.raises(InputError, match=r"of windows of a stream alone; .* y \(n, steps\) as an"):
        Labelled(bundle.manifest, raw=False).taken(rows)
    with pytest.raises(InputError, match="segmentation, of which no head is trained alone"):
        personalise(bundle, open_programs(bundle), LocalData(own=_data()))


@pytest.mark.parametrize(("steps", "rate"), [(12, 1), (4, 3)])
def test_a_recording_s_labels_are_those_of_steps(steps, rate, tmp_path):
    """A step is a sample, or three; its label is that in its middle; one of a gap has none."""

    class Pooled(_Segmenter):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            return logits.unflatten(1, (steps, rate)).mean(2)

    stream = {"rate_hz": 10, "window": _STEPS, "hop": _STEPS, "channels": ["acc_x", "acc_y"]}
    inputs = {"input_shape": [_STEPS, _CHANNELS], "mean": [0, 0], "std": [1, 1], **stream}
    bundle = tmp_path / "a.pfb"
    pf.export_model(
        Pooled(),
        bundle,
        strategy="fedavg",
        preprocessing=inputs,
        task="segmentation",
        classes=_CLASSES,
    )
    manifest = Bundle.open(bundle, any_signer=True).manifest
    assert manifest.steps == steps
    labels = np.repeat(["rest", "walk", "", "run", "fall"], [18, 18, 12, 7, 5])
    table = "".join(
        f"{0.1 * i:.1f},{i % 3},{i % 2},{label}\n" for i, label in enumerate(labels.tolist())
    )
    (tmp_path / "r.csv").write_text("time_s,acc_x,acc_y,label\n" + table)
    blocks = list(load_examples([str(tmp_path / "r.csv")], manifest))
    y = np.concatenate([block.y for block in blocks])
    numbers = np.array([-1 if one == "" else _CLASSES.index(one) for one in labels])
    middles = numbers.reshape(-1, steps, rate)[:, :, rate // 2]
    np.testing.assert_array_equal(y, middles)
    made = tmp_path / "own.npz"
    asked = ["--bundle", str(bundle), "--out", str(made), "--plot", str(tmp_path / "own.svg")]
    done = CliRunner().invoke(prepare, [str(tmp_path / "r.csv"), *asked], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "steps to train" in done.output
    assert (tmp_path / "own.svg").stat().st_size > 1000
    assert load_device_data(made).y_train.shape[1] == steps
    own = to_device_data(blocks, manifest, raw=False, test_share=0.3)
    taken = np.concatenate([own.y_train, own.y_test])  # the third has a gap; the rest by class
    assert sorted(taken.tolist()) == sorted(np.delete(middles, 3, axis=0).tolist())


def test_examples_with_and_without_labels_are_read_for_prediction(bundle, tmp_path):
    x, y = _examples(3)
    for name, labels in (("with", {"y": y}), ("without", {})):
        np.savez(tmp_path / f"{name}.npz", x=x, **labels)
        (block,) = load_examples([str(tmp_path / f"{name}.npz")], bundle.manifest)
        assert (block.y == y).all() if labels else (block.y == -1).all()


@pytest.mark.usefixtures("exported")
def test_a_federation_in_python_learns_each_step(exported_file, tmp_path):
    clients = {}
    for seed, name in enumerate(("a", "b", "c")):
        (x, y), (x_test, y_test) = _examples(40, seed), _examples(20, 100 + seed)
        parts = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
        clients[name] = DeviceData(**parts, classes=_CLASSES)
    run = pf.Federation(exported_file, clients, rounds=4, folder=tmp_path / "run").run()
    assert (run.outcome.since_start.helped, run.outcome.since_start.harmed) == (3, 0)


def test_it_is_trained_centrally_and_its_names_are_kept(tmp_path, monkeypatch):
    x, y = _examples(80)
    np.savez(tmp_path / "central.npz", x=x, y=y, classes=np.array(_CLASSES))
    (tmp_path / "own_segmenter.py").write_text(
        "from tests.export.test_segmentation import _Segmenter\n"
        "def build():\n    return _Segmenter(classes_last=False)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["--model", "own_segmenter:build", "--data", str(tmp_path / "central.npz")]
    arguments += ["--task", "segmentation", "--epochs", "3", "--lr", "0.01", "--out"]
    done = CliRunner().invoke(pretrain, [*arguments, str(tmp_path / "central"), "--json"])
    assert done.exit_code == 0, done.output
    _, metadata = load_checkpoint(tmp_path / "central" / "model.safetensors")
    assert (metadata["task"], json.loads(metadata["classes"])) == ("segmentation", list(_CLASSES))


@pytest.mark.usefixtures("exported")
def test_what_a_device_pays_is_measured_and_scored(exported_file, tmp_path):
    _data().save(tmp_path / "own.npz")
    asked = [
        "device",
        "--bundle",
        str(exported_file),
        "--quick",
        "--backend",
        "onnx",
        "--batch",
        "4",
    ]
    asked += ["--precision", "float32", "--seconds", "0.05", "--json", str(tmp_path / "a.json")]
    for data, is_scored in ((["--data", str(tmp_path / "own.npz")], True), ([], False)):
        done = CliRunner().invoke(bench, [*asked, *data], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert ("macro-F1" in done.output) is is_scored
        (run,) = json.loads((tmp_path / "a.json").read_text())["runs"]
        assert (run["status"], "score" in run) == ("measured", is_scored)


def test_random_examples_are_the_task_s_own(bundle):
    """Of a regression and of labels, too, which ``bench device`` measures without data."""
    known = bundle.manifest
    numbers = {"classes": (), "targets": ("a", "b"), "programs": {}}
    for task, changes in (("segmentation", {}), ("regression", numbers), ("multilabel", numbers)):
        manifest = msgspec.structs.replace(known, task=task, **changes)
        made = device_data("", manifest, seed=0)
        TASKS[task].check_labels("y", made.y_train, len(manifest.outputs))
