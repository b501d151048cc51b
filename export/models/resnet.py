"""Residual networks: ResNet-18 of FedALA, ResNet-50 of CDFL.

Source: He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385, with the stride
of a bottleneck in its 3x3 convolution, as torchvision has it. Tensors have torchvision's names,
except that its last layer ``fc`` is called ``head``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from protofleet.errors import InputError, MissingDataError
from protofleet.export.pickled import refuse_pickled

_STEM = 64


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, (B, inputs, H, W) → (B, width, H/s, W/s)."""

    expansion: ClassVar = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        inner = functional.relu(self.bn1(self.conv1(x)))
        inner = self.bn2(self.conv2(inner))
        return functional.relu(inner + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, with four times ``width`` channels out."""

    expansion: ClassVar = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        inner = functional.relu(self.bn1(self.conv1(x)))
        inner = functional.relu(self.bn2(self.conv2(inner)))
        inner = self.bn3(self.conv3(inner))
        return functional.relu(inner + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Images (B, channels, H, W) float32 → logits (B, classes).

    Batch statistics are state: training returns the new ones.

    Args:
        block: kind of residual block.
        blocks: number of blocks of each of the four stages.
        classes: C.
        channels: input channels.
        small_input: a 3x3 stem of stride 1 without pooling, for images of 32 x 32, in place of the
            7x7 stem of stride 2 with pooling.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        blocks: Sequence[int],
        *,
        classes: int,
        channels: int,
        small_input: bool,
    ) -> None:
        super().__init__()
        size, stride = (3, 1) if small_input else (7, 2)
        self.small_input = small_input
        self.conv1 = _convolution(channels, _STEM, size, stride)
        self.bn1 = nn.BatchNorm2d(_STEM)
        widths = [_STEM << stage for stage in range(4)]
        inputs = [_STEM, *(width * block.expansion for width in widths)]
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _stage(block, inputs[i], widths[i], count=blocks[i], stride=1 if i == 0 else 2)
            for i in range(4)
        )
        self.head = nn.Linear(inputs[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """Mean of the last stage over positions, (B, 512 x expansion)."""
        x = functional.relu(self.bn1(self.conv1(x)))
        if not self.small_input:
            x = functional.max_pool2d(x, 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


def _stage(
    block: type[BasicBlock | Bottleneck], inputs: int, width: int, *, count: int, stride: int
) -> nn.Sequential:
    first = block(inputs, width, stride)
    rest = (block(width * block.expansion, width, 1) for _ in range(count - 1))
    return nn.Sequential(first, *rest)


def resnet18(
    *,
    classes: int = 10,
    channels: int = 3,
    small_input: bool = False,
    pretrained: str | None = None,
) -> ResNet:
    """ResNet-18, 512 features; ``pretrained`` as in ``load_weights``."""
    model = ResNet(
        BasicBlock, (2, 2, 2, 2), classes=classes, channels=channels, small_input=small_input
    )
    return load_weights(model, pretrained)


def resnet50(
    *,
    classes: int = 10,
    channels: int = 3,
    small_input: bool = False,
    pretrained: str | None = None,
) -> ResNet:
    """ResNet-50, 2048 features; ``pretrained`` as in ``load_weights``."""
    model = ResNet(
        Bottleneck, (3, 4, 6, 3), classes=classes, channels=channels, small_input=small_input
    )
    return load_weights(model, pretrained)


def load_weights(model: ResNet, pretrained: str | None) -> ResNet:
    """Fill a model from a safetensors file with torchvision's names (``fc`` or ``head``).

    A last layer for another number of classes is left out: the model keeps its own.

    Args:
        model: is changed.
        pretrained: path of the file; None changes nothing.

    Returns:
        The model.

    Raises:
        MissingDataError: there is no such file.
        InputError: no safetensors file, or a tensor is missing, surplus or of another shape.
    """
    if pretrained is None:
        return model
    own = model.state_dict()
    given = {
        f"head.{name.removeprefix('fc.')}" if name.startswith("fc.") else name: value
        for name, value in _read(Path(pretrained)).items()
    }
    head = {name for name in own if name.startswith("head.")}
    if any(given[name].shape != own[name].shape for name in head & given.keys()):
        given = {name: value for name, value in given.items() if name not in head}
    expected = own.keys() - (head - given.keys())
    for name in sorted(expected | given.keys()):
        _check(pretrained, name, own.get(name), given.get(name))
    model.load_state_dict(given, strict=False)
    return model


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise MissingDataError(
            f"pretrained '{path}': no such file; put a safetensors file with torchvision's "
            "tensors of this network there"
        )
    refuse_pickled(path, "pretrained")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise InputError(f"pretrained '{path}': expected a safetensors file, {error}") from error
    return tensors


def _check(path: str, name: str, own: Tensor | None, given: Tensor | None) -> None:
    if own is not None and given is not None and own.shape == given.shape:
        return
    # Counters of steps are absent from some files, and nothing reads them.
    if own is not None and given is None and name.endswith(".num_batches_tracked"):
        return
    expected, got = ("nothing" if t is None else tuple(t.shape) for t in (own, given))
    raise InputError(f"pretrained '{path}', tensor '{name}': expected {expected}, got {got}")
