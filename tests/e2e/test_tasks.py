"""Other tasks than a class for an example, on real data: trained in both runtimes, scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnxruntime import InferenceSession
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    mean_absolute_error,
    precision_score,
    r2_score,
    recall_score,
    root_mean_squared_error,
)

from protofleet.bundle import Bundle
from protofleet.bundle.keys import load_or_create_signing_key, save_public_key
from protofleet.cli._trial_text import to_text
from protofleet.cli.quantise import quantise
from protofleet.datasets import DeviceData, load_device_data
from protofleet.datasets.derived import WESAD_FEATURES, wesad_features_pool
from protofleet.datasets.mnist import mnist_pool
from protofleet.datasets.ucihar import ucihar_pool
from protofleet.edge import LocalData, load_local_data, open_personal, try_bundle
from protofleet.edge.join import open_learner
from protofleet.edge.predictions import score_predictions
from protofleet.edge.state.store import read_personal
from protofleet.errors import InputError
from protofleet.federation.records import RunRecord, load_record
from protofleet.report import compare, details_of_run, save_details, write_report

pytestmark = [pytest.mark.slow(seconds=40), pytest.mark.mosquitto, pytest.mark.data]

_BACKENDS = ("onnx", "litert")
_LABELS = ("even", "above four", "has a loop")
_LOOPS = (0, 6, 8, 9)
_PREDICTED = ("EDA_phasic_std", "net_acc_std")
_SETTINGS = """
[strategy.settings]
epochs = 2
batch_size = 16
optimiser = {kind = "adam", lr = 0.01}
"""


def _people(root: Path) -> list[DeviceData]:
    """Two people of WESAD: two of a window's features from its eleven others."""
    pool = wesad_features_pool(root)
    columns = [WESAD_FEATURES.index(name) for name in _PREDICTED]
    others = [index for index in range(len(WESAD_FEATURES)) if index not in columns]
    return [
        _parts(pool.x[pool.client == who], others, columns, _PREDICTED) for who in ("S2", "S10")
    ]


def _parts(
    rows: np.ndarray, inputs: list[int], outputs: list[int], targets: tuple[str, ...]
) -> DeviceData:
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = order[20:], order[:20]
    return DeviceData(
        x_train=np.ascontiguousarray(rows[train][:, inputs]),
        y_train=np.ascontiguousarray(rows[train][:, outputs]),
        x_test=np.ascontiguousarray(rows[test][:, inputs]),
        y_test=np.ascontiguousarray(rows[test][:, outputs]),
        targets=targets,
    )


def _digits(root: Path) -> list[DeviceData]:
    """Digits at a quarter of their size, and three things that may be true of each."""
    pool = mnist_pool(root, limit=40)
    small = pool.x[:, 0].reshape(-1, 7, 4, 7, 4).mean((2, 4)).reshape(-1, 49)
    facts = np.stack([pool.y % 2 == 0, pool.y > 4, np.isin(pool.y, _LOOPS)], axis=1)
    rows = np.random.default_rng(0).permutation(len(small))[:560]
    x, y = small[rows].astype(np.float32), facts[rows].astype(np.float32)
    return [
        DeviceData(
            x_train=x[part : part + 200],
            y_train=y[part : part + 200],
            x_test=x[part + 200 : part + 280],
            y_test=y[part + 200 : part + 280],
            targets=_LABELS,
        )
        for part in (0, 280)
    ]


def _export(path: Path, key: Path, *options: str) -> None:
    import torch  # noqa: PLC0415 - not where only a runtime is

    from protofleet.cli.export import export  # noqa: PLC0415 - torch

    # As in a process of its own; tests before this one have drawn.
    torch.manual_seed(1)
    arguments = ["mlp", "--strategy", "fedavg", "--out", str(path), "--key", str(key)]
    done = CliRunner().invoke(export, [*arguments, *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def _run(federation: Any, data: list[DeviceData], extra: str = _SETTINGS) -> RunRecord:
    """Two devices, one of each runtime; the pooled test part is both of theirs."""
    federation.write(rounds=8, extra=extra)
    x_test, y_test = (np.concatenate([getattr(d, n) for d in data]) for n in ("x_test", "y_test"))
    kind = "classes" if data[0].classes else "targets"
    names = {kind: np.array(getattr(data[0], kind))}
    np.savez(federation.pooled, x_test=x_test, y_test=y_test, **names)
    for name, own in zip(federation.devices, data, strict=True):
        own.save(federation.folder / f"{name}.npz")
    coordinator = federation.start_coordinator()
    devices = [
        federation.start_device(name, backend=backend)
        for name, backend in zip(federation.devices, _BACKENDS, strict=True)
    ]
    assert coordinator.finish() == 0, coordinator.log
    for device, backend in zip(devices, _BACKENDS, strict=True):
        assert device.finish() == 0, device.log
        assert f"programs run on the backend {backend}" in device.log
    return load_record(federation.run_dir / "result.json", RunRecord)


def _predicted(federation: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """True values and what each device's personal model makes of its own test part."""
    true, found = [], []
    bundle = Bundle.open(federation.bundle, any_signer=True)
    for name in federation.devices:
        data = load_local_data(
            str(federation.folder / f"{name}.npz"), bundle.manifest.preprocessing
        )
        learner = open_learner(bundle, data, threads=1, device_id=name)
        journal, state = read_personal(federation.folder / f"store-{name}")
        strategy = learner.strategy(journal.strategy, journal.settings)
        scores = learner.window_scores(strategy.client_model(state))
        true.append(data.own.y_test)
        found.append(scores(data.own.x_test))
    return true, found


def _page(federation: Any) -> str:
    details = details_of_run(federation.run_dir, title="a run", data="real")
    save_details(details, federation.run_dir / "details.json")
    return write_report(federation.run_dir).read_text()


@pytest.fixture
def signed(tmp_path, make_federation):
    """A signing key's file, and federations that trust it."""
    file = tmp_path / "signing.pem"
    public = load_or_create_signing_key(file).public_key().public_bytes_raw()

    def make(name: str, bundle: Path) -> Any:
        federation = make_federation(name, bundle, 2)
        save_public_key(public, federation.trust)
        return federation

    return file, make


@pytest.mark.timeout(600)
def test_a_regression_is_federated_and_scored_as_scikit_learn_does(signed, data_root, tmp_path):
    """Devices' figures, those over all samples, and those of each target."""
    key, make = signed
    bundle = tmp_path / "regression.pfb"
    shape = ("--set", "inputs=11", "--set", "hidden=[16]", "--set", "classes=2")
    named = ("--targets", ",".join(_PREDICTED), "--input-shape", "11")
    _export(bundle, key, *shape, *named, "--task", "regression", "--loss", "huber")
    federation = make("regression", bundle)
    people = _people(data_root)
    _check_trial(Bundle.open(bundle, any_signer=True), people[0])
    result = _run(federation, people)
    scores, first = result.scores, result.rounds[0].scores
    assert (scores.task, scores.sections.keys()) == (
        "regression",
        {"personalisation", "generalisation", "global"},
    )
    assert scores.personalisation["rmse"].mean < 0.8 * first.personalisation["rmse"].mean
    assert scores.personalisation["rmse"].mean == min(
        one.scores.personalisation["rmse"].mean for one in result.rounds
    )
    last = result.rounds[-1].scores
    true, found = _predicted(federation)
    each = [root_mean_squared_error(t, p) for t, p in zip(true, found, strict=True)]
    assert last.personalisation["rmse"].mean == pytest.approx(np.mean(each), rel=1e-4)
    assert last.personalisation["rmse"].std == pytest.approx(np.std(each), rel=1e-3)
    every = np.concatenate(true), np.concatenate(found)
    assert last.personalisation["sample_mae"].mean == pytest.approx(
        mean_absolute_error(*every), rel=1e-4
    )
    assert last.personalisation["sample_r2"].mean == pytest.approx(r2_score(*every), rel=1e-3)
    for index, target in enumerate(_PREDICTED):
        columns = every[0][:, index], every[1][:, index]
        assert last.targets[target]["r2"] == pytest.approx(r2_score(*columns), rel=1e-3)
    assert last.targets["net_acc_std"]["r2"] > 0.3

    asked = [str(bundle), "--data", "a.npz", "--out", str(tmp_path / "q.pfb"), "--key", str(key)]
    with pytest.raises(InputError, match=r"quantise compares classes .* its task is regression"):
        CliRunner().invoke(quantise, asked, catch_exceptions=False)

    page = _page(federation)
    assert all(text in page for text in ("RMSE", "R²", *_PREDICTED))
    assert "macro-F1" not in page
    rows = {row.name for row in compare(result, result)}
    assert {"personalisation RMSE", "global R²"} <= rows


def _check_trial(bundle: Bundle, own: DeviceData) -> None:
    """A trial trains by the task's own loss, and advises a rate that lowers it on held-out ones."""
    trial = try_bundle(
        bundle,
        LocalData(own=own),
        optimiser="adam",
        threads=1,
        backend="onnx",
        progress=lambda _done, _total: None,
    )
    assert (trial.strategy, trial.examples) == ("fedavg", len(own.y_train))
    assert trial.ratios[trial.learning_rate] < 1
    assert "[strategy.settings]" in to_text(trial)


@pytest.mark.timeout(600)
def test_labels_that_hold_together_are_federated_and_scored(signed, data_root, tmp_path):
    """FedPer; each label's F1 over all devices' samples is scikit-learn's; a device infers."""
    key, make = signed
    bundle = tmp_path / "labels.pfb"
    shape = ("--set", "inputs=49", "--set", "hidden=[32]", "--set", "classes=3")
    named = ("--targets", ",".join(_LABELS), "--input-shape", "49")
    _export(bundle, key, *shape, *named, "--task", "multilabel")
    federation = make("labels", bundle)
    extra = '[strategy]\nname = "fedper"\n' + _SETTINGS.replace("epochs = 2", "epochs = 4")
    result = _run(federation, _digits(data_root), extra)
    last = result.rounds[-1].scores
    true, found = _predicted(federation)
    flags = np.concatenate(true), np.concatenate(found) > 0
    for index, label in enumerate(_LABELS):
        column = flags[0][:, index], flags[1][:, index]
        expected = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
        for name, score in expected.items():
            assert last.targets[label][name] == pytest.approx(score(*column), abs=0.01), label
    assert last.personalisation["sample_micro_f1"].mean == pytest.approx(
        f1_score(*flags, average="micro"), abs=0.01
    )
    assert result.scores.personalisation["macro_f1"].mean > 0.75
    assert result.scores.global_ is None

    one = federation.devices[1]
    own = load_device_data(federation.folder / f"{one}.npz")
    signer = bytes.fromhex(Bundle.open(bundle, any_signer=True).signer)
    store = federation.folder / f"store-{one}"
    model = open_personal(store, use="personal", bundle=bundle, backend="litert", trusted=[signer])
    predicted = model.predict(own.x_test)
    personal = score_predictions(predicted, own.y_test)
    shares = InferenceSession(model.plain("onnx")).run(["probabilities"], {"x": own.x_test})[0]
    np.testing.assert_allclose(shares, predicted.probabilities, atol=1e-5)
    assert (personal.examples, personal.each.keys()) == (80, set(_LABELS))
    assert personal.scores["macro_f1"] > 0.7
    page = _page(federation)
    assert all(text in page for text in ("micro-F1", "recall (%)", *_LABELS))
    counts = json.loads((federation.run_dir / "devices.json").read_text())
    assert np.shape(counts["devices"][0]["evaluation"]["own"]) == (3, 4)


_STEPS = 32
_ACTIVITIES = ("walking", "sitting", "laying")


def _changes(root: Path) -> list[DeviceData]:
    """Two people of UCI-HAR who go over from one activity to another within an example."""
    pool = ucihar_pool(root)
    names = [pool.classes.index(one) for one in _ACTIVITIES]
    found = []
    for who in ("1", "3"):
        rng = np.random.default_rng(0)
        own, y = pool.x[pool.client == who], pool.y[pool.client == who]
        windows = [own[y == name][:, ::4] for name in names]
        before, after = rng.integers(0, 3, (2, 120))
        at = rng.integers(0, _STEPS + 1, 120)[:, np.newaxis]
        first, second = (
            np.stack([windows[one][rng.integers(len(windows[one]))] for one in part])
            for part in (before, after)
        )
        is_first = np.arange(_STEPS) < at
        x = np.where(is_first[:, :, np.newaxis], first, second).astype(np.float32)
        labels = np.where(is_first, before[:, np.newaxis], after[:, np.newaxis])
        parts = {"x_train": x[:80], "y_train": labels[:80], "x_test": x[80:], "y_test": labels[80:]}
        found.append(DeviceData(**parts, classes=_ACTIVITIES))
    return found


def _export_segmenter(path: Path, key: Path, channels: int) -> None:
    import torch  # noqa: PLC0415 - not where only a runtime is
    from torch import nn  # noqa: PLC0415 - as above

    from protofleet import export_model  # noqa: PLC0415 - as above

    class Segmenter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv1d(channels, 16, 7, padding=3)
            self.head = nn.Linear(16, len(_ACTIVITIES))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.body(x.mT)).mT)

    torch.manual_seed(1)
    shape, classes = (_STEPS, channels), _ACTIVITIES
    named = {"task": "segmentation", "input_shape": shape, "classes": classes}
    export_model(Segmenter(), path, strategy=["fedavg", "ditto"], key=key, **named)


@pytest.mark.timeout(600)
def test_a_class_for_each_step_is_federated_and_scored(signed, data_root, tmp_path):
    """Ditto; the devices' figures are scikit-learn's over all steps; a device infers."""
    key, make = signed
    bundle = tmp_path / "steps.pfb"
    people = _changes(data_root)
    _export_segmenter(bundle, key, people[0].x_train.shape[2])
    federation = make("steps", bundle)
    extra = '[strategy]\nname = "ditto"\n' + _SETTINGS
    result = _run(federation, people, extra)
    first, last = result.rounds[0].scores, result.rounds[-1].scores
    assert last.task == "segmentation"
    assert last.personalisation["accuracy"].mean > first.personalisation["accuracy"].mean
    true, found = _predicted(federation)
    steps = [
        (t.reshape(-1), p.argmax(axis=-1).reshape(-1)) for t, p in zip(true, found, strict=True)
    ]
    each = [accuracy_score(*one) for one in steps]
    assert last.personalisation["accuracy"].mean == pytest.approx(np.mean(each), abs=0.005)
    macro = [f1_score(*one, average="macro") for one in steps]
    assert last.personalisation["macro_f1"].mean == pytest.approx(np.mean(macro), abs=0.005)
    assert min(each) > 0.7

    signer = bytes.fromhex(Bundle.open(bundle, any_signer=True).signer)
    store = federation.folder / f"store-{federation.devices[0]}"
    model = open_personal(store, use="personal", bundle=bundle, trusted=[signer])
    predicted = model.predict(people[0].x_test)
    assert predicted.probabilities.shape == (40, _STEPS, 3)
    shares = InferenceSession(model.plain("onnx")).run(["probabilities"], {"x": people[0].x_test})
    np.testing.assert_allclose(shares[0], predicted.probabilities, atol=1e-5)
    row = predicted.rows(people[0].y_test)[0]
    assert row.figures["classes"] == list(predicted.labels[0])
    assert len(row.figures["labels"]) == _STEPS
    scored = score_predictions(predicted, people[0].y_test)
    assert scored.scores["accuracy"] == pytest.approx(each[0], abs=0.005)
    page = _page(federation)
    assert "Every step of every window counts" in page
    assert "Confusion" in page
