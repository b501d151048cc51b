"""Residual networks: torchvision's tensors, FedALA's units, weights from a file, a program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from protofleet.errors import InputError, MissingDataError
from protofleet.export.capture import capture
from protofleet.export.models import build_model
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import check_parity
from tests.export.toys import batch

pytestmark = pytest.mark.slow(seconds=1)


@pytest.mark.parametrize(
    ("tensors", "values"),
    [
        (2, 5_130),
        (17, 8_398_858),
        (32, 10_498_570),
        (47, 11_024_138),
        (59, 11_172_106),
        (62, 11_181_642),
    ],
)
def test_last_tensors_of_resnet18_are_fedalas_units(tensors: int, values: int) -> None:
    """Head, four stages and stem from the end, in FedALA's table 0.005 to 11.182 million."""
    model = build_model("resnet18", classes=10)
    last = list(model.named_parameters())[-tensors:]
    assert sum(value.numel() for _, value in last) == values
    first = last[0][0].partition(".")[0]
    assert first == {2: "head", 17: "layer4", 32: "layer3", 47: "layer2", 59: "layer1"}.get(
        tensors, "conv1"
    )


def test_names_and_shapes_are_torchvisions() -> None:
    """Spot checks of both kinds of block and of the shortcuts."""
    basic, deep = (build_model(name, classes=7).state_dict() for name in ("resnet18", "resnet50"))
    assert basic["conv1.weight"].shape == (64, 3, 7, 7)
    assert basic["layer3.0.downsample.0.weight"].shape == (256, 128, 1, 1)
    assert basic["layer4.1.bn2.running_var"].shape == (512,)
    assert deep["layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)
    assert deep["layer1.0.downsample.1.weight"].shape == (256,)
    assert deep["head.weight"].shape == (7, 2048)


@pytest.mark.parametrize(("small", "side"), [(False, 2), (True, 8)])
def test_the_small_stem_keeps_the_resolution(small: bool, side: int) -> None:  # noqa: FBT001 - a case
    """The last of four stages sees an eighth of the image, with the usual stem a thirty-second."""
    model = build_model("resnet18", small_input=small).eval()
    seen = []
    model.layer4.register_forward_hook(lambda _m, _i, out: seen.append(out.shape[-2:]))
    model(torch.zeros(1, 3, 64, 64))
    assert seen == [(side, side)]


@pytest.mark.full_size
@pytest.mark.timeout(600)
def test_resnet18_trains_as_in_pytorch() -> None:
    """Strided 1x1 convolutions, overlapping pooling, and new statistics of every batch norm."""
    torch.manual_seed(0)
    model = build_model("resnet18")
    program = capture(model, OBJECTIVES["cross_entropy"], batch((3, 32, 32)))
    record = check_parity(
        model, program, to_onnx(program, name="train"), name="train", batch_sizes=(4,)
    )
    assert record.worst_error < 1e-4
    changed = {port.key for port in program.outputs if port.role == "state"}
    assert len(changed) == 2 * 20
    assert {"bn1.running_mean", "layer4.0.downsample.1.running_var"} <= changed
    assert all(port.role != "param" or port.key in model.state_dict() for port in program.inputs)


def _torchvision_file(path: Path, classes: int) -> dict[str, torch.Tensor]:
    """Random weights under torchvision's names, without the counters."""
    torch.manual_seed(9)
    tensors = {
        name.replace("head.", "fc."): torch.rand_like(value)
        for name, value in build_model("resnet18", classes=classes).state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    save_file(tensors, path)
    return tensors


def test_weights_from_a_file_fill_everything(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    tensors = _torchvision_file(path, 4)
    loaded = build_model("resnet18", classes=4, pretrained=str(path)).state_dict()
    for name, value in tensors.items():
        np.testing.assert_array_equal(loaded[name.replace("fc.", "head.")], value)


def test_a_head_for_other_classes_stays_as_it_was_drawn(tmp_path: Path) -> None:
    """ImageNet's 1000 classes do not fit; the encoder does."""
    path = tmp_path / "weights.safetensors"
    tensors = _torchvision_file(path, 6)
    loaded = build_model("resnet18", classes=4, pretrained=str(path))
    assert loaded.head.weight.shape == (4, 512)
    np.testing.assert_array_equal(loaded.conv1.weight.detach(), tensors["conv1.weight"])


def test_a_file_that_does_not_fit_is_refused_with_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    tensors = _torchvision_file(path, 4)
    with pytest.raises(MissingDataError, match=r"absent\.safetensors'.*put a safetensors file"):
        build_model("resnet18", pretrained=str(tmp_path / "absent.safetensors"))
    with pytest.raises(InputError, match=r"tensor 'conv1\.weight': expected \(64, 3, 3, 3\)"):
        build_model("resnet18", classes=4, pretrained=str(path), small_input=True)
    save_file({k: v for k, v in tensors.items() if k != "bn1.bias"}, path)
    with pytest.raises(InputError, match=r"'bn1\.bias': expected \(64,\), got nothing"):
        build_model("resnet18", classes=4, pretrained=str(path))
    save_file({**tensors, "extra": torch.zeros(2)}, path)
    with pytest.raises(InputError, match=r"tensor 'extra': expected nothing, got \(2,\)"):
        build_model("resnet18", classes=4, pretrained=str(path))
    path.write_bytes(b"no such format")
    with pytest.raises(InputError, match="expected a safetensors file"):
        build_model("resnet18", classes=4, pretrained=str(path))
