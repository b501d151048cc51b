"""One example has the output that it has among others, or the line that takes that away is told."""

from __future__ import annotations

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

from protofleet.bundle.manifest import Preprocessing
from protofleet.errors import ExportError, InputError
from protofleet.export.batch_of_one import check_one_example, where_one_differs
from protofleet.export.build import BundleSpec, export_bundle

_X = torch.zeros(2, 3, 16)


class _Pooled(nn.Module):
    """A convolution pooled to one place, (B, 3, 16) → (B, 2), and how that place is taken away."""

    def __init__(self, flat) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv1d(3, 8, 3), nn.AdaptiveAvgPool1d(1)
        self.head = nn.Linear(8, 2)
        self.flat = flat

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flat(self.pool(self.conv(x))))


class _Doubled(_Pooled):
    """One example is computed otherwise than several, on purpose, as the attribute says."""

    mixes_samples = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.pool(self.conv(x)).flatten(1))
        if x.shape[0] == 1:
            y = y * 2
        return y


def _exported(model, tmp_path, formats=None):
    spec = BundleSpec(
        name="pooled",
        strategy="fedavg",
        classes=("sit", "walk"),
        preprocessing=Preprocessing(input_shape=(3, 16)),
        formats=formats,
    )
    return export_bundle(model, spec, out=tmp_path / "m.pfb", key=Ed25519PrivateKey.generate())


@pytest.mark.parametrize(
    ("flat", "said"),
    [
        (lambda y: y.squeeze(), r"operator squeeze .*returns \(2,\), .*\.squeeze\(-1\)"),
        (torch.squeeze, r"\.flatten\(1\)$"),
        (lambda y: y.squeeze((0, 2)), r"name the axes that are always one"),
        (lambda y: y.squeeze(0).squeeze(-1), "leave it out: the first axis is the batch's"),
        (
            lambda y: y.view(8) if len(y) == 1 else y.view(-1, 8),
            "operator view .*; keep that axis for one example",
        ),
        (lambda y: y.squeeze() - y.squeeze().mean(1, keepdim=True), r"fails \(.*squeeze\(-1\)"),
    ],
)
def test_a_batch_axis_that_is_lost_at_one_example_is_told_before_anything_is_captured(
    flat, said, tmp_path
):
    model = _Pooled(flat).train()
    place = rf"model \(.*_Pooled\), .*{__file__.rsplit('/', 1)[1]}:\d+: "
    with pytest.raises(InputError, match=place + ".*" + said) as told:
        _exported(model, tmp_path)
    assert "\n" not in str(told.value)
    assert "one example" in str(told.value)
    assert model.training


def test_statistics_of_the_batch_in_evaluation_are_told():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48, track_running_stats=False))
    said = r"module '1' \(.*BatchNorm1d\): with one example the model fails .*without statistics"
    with pytest.raises(InputError, match=said):
        check_one_example(model, _X)


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("formats", [("onnx",), ("tflite",)])
@pytest.mark.parametrize(
    "flat",
    [
        lambda y: y.squeeze(-1),
        lambda y: y.squeeze().view(y.shape[0], -1),
        lambda y: y.squeeze(1).squeeze((1, 2)),
    ],
)
def test_a_squeeze_that_leaves_one_example_its_axis_is_exported_in_both_formats(
    flat, formats, tmp_path
):
    torch.manual_seed(0)
    report = _exported(_Pooled(flat), tmp_path, formats)
    assert {record.program for record in report.parity} == {"infer", "features", "train"}
    assert max(record.worst_error for record in report.parity) < 1e-5


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("formats", [("onnx",), ("tflite",)])
def test_another_value_of_one_example_names_the_line(formats, tmp_path):
    model = _Doubled(None)
    with pytest.raises(ExportError, match=r"_Doubled\), .*test_batch_of_one.py:\d+: operator mul:"):
        _exported(model, tmp_path, formats)
    assert not list(tmp_path.iterdir())


def test_where_nothing_differs_there_is_no_place():
    assert not where_one_differs(_Pooled(lambda y: y.flatten(1)), _X)
