"""Alignment layers behind modules of any model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.build import initial_values
from protofleet.export.capture import capture
from protofleet.export.classifier import find_parts
from protofleet.export.classifier.align import place_by_default
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import check_parity
from protofleet.nn import AlignedOutput, align
from protofleet.strategies import build
from protofleet.tensors import Model, TensorMap
from tests.export.users_models import Encoder, Images, Tcn, perceptron


def _model_of(model: nn.Module) -> Model:
    params, buffers = (TensorMap.pack(tensors) for tensors in initial_values(model))
    return Model(params=params, buffers=buffers, num_classes=3, input_shape=(10, 6))


def test_a_pattern_aligns_every_module_that_it_matches() -> None:
    """Names of the model's tensors stay; FedAli finds layers and shares, each with its own."""
    model = Encoder()
    before = model.state_dict().keys()
    align(model, after=["encoder.layers.*", "embed"], prototypes=[4, 2])
    assert before <= model.state_dict().keys()
    counts = {
        name: len(module.local_prototypes)
        for name, module in model.named_modules()
        if isinstance(module, AlignedOutput)
    }
    assert counts == {
        "embed.align": 2,
        **{f"encoder.layers.{index}.align": 4 for index in range(3)},
    }
    strategy = build("fedali", {}, _model_of(model))
    sent = [name for name in strategy.uplink.required if name.startswith("state/")]
    assert sent == [f"state/{name}.local_prototypes" for name in counts]


def test_an_aligned_model_s_output_is_the_layer_s_of_its_module_s_output() -> None:
    """Channels first or last; a copy of the model aligns with tensors of its own."""
    torch.manual_seed(0)
    plain, x = Tcn().eval(), torch.randn(3, 6, 20)
    model = align(copy.deepcopy(plain), after=["stem"], prototypes=[4])
    layer = model.stem.align
    channels = plain.stem(x)
    expected = layer(channels.transpose(1, 2), layer.beta).transpose(1, 2)
    torch.testing.assert_close(model.stem(x), expected)
    other = copy.deepcopy(model)
    other.stem.align.beta.fill_(0)
    lengths = other.stem(x).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    torch.testing.assert_close(model.stem(x), expected)


def test_the_end_of_a_chain_is_aligned_outside_of_it() -> None:
    """What is added to a ``Sequential`` would run as one of its parts."""
    torch.manual_seed(0)
    plain, x = Images().eval(), torch.randn(2, 1, 12, 12)
    model = align(copy.deepcopy(plain), after=["features"], prototypes=[4])
    layer = model.features[5].align
    pixels = plain.features(x).flatten(2).transpose(1, 2)
    expected = layer(pixels, layer.beta).transpose(1, 2).reshape(2, 6, 3, 3)
    torch.testing.assert_close(model.features(x), expected)


def test_recurrent_layers_are_aligned_in_what_they_give_first() -> None:
    """With time on the first axis too; the state that they also give stays."""
    torch.manual_seed(0)
    gru = nn.GRU(3, 4, bidirectional=True)
    x = torch.randn(5, 2, 3)
    plain, state = gru(x)
    model = align(nn.Sequential(gru), after=["0"], prototypes=[4])
    aligned, after = model(x)
    torch.testing.assert_close(after, state)
    layer = gru.align
    expected = layer(plain.transpose(0, 1), layer.beta).transpose(0, 1)
    model.eval()
    assert aligned.shape == expected.shape == (5, 2, 8)


@pytest.mark.parametrize(
    ("model", "shape", "where"),
    [
        (Encoder(), (10, 6), ["after 'encoder.layers.1'", "after 'encoder.layers.2'"]),
        (Tcn(), (6, 20), ["after 'blocks.1'", "after 'blocks.2'"]),
        (perceptron(), (9,), ["before '5'"]),
        (Images(), (1, 12, 12), ["before 'classifier.3'"]),
    ],
    ids=["encoder", "tcn", "perceptron", "images"],
)
def test_by_default_the_last_blocks_are_aligned_or_the_features(
    model: nn.Module, shape: tuple[int, ...], where: list[str]
) -> None:
    """And the head stays the head."""
    x = torch.zeros(2, *shape)
    parts = find_parts(model, x)
    placed = place_by_default(model, parts.head, x, 8)
    assert [str(one).partition(" with")[0] for one in placed] == where
    assert find_parts(model, x).head_params == parts.head_params
    assert model(x).shape == (2, 3)


def test_what_cannot_be_aligned_is_refused() -> None:
    """The message names the module and what to do."""
    for after, prototypes, why in (
        (["encoder.*.x"], [4], r"no module is called 'encoder\.\*\.x'; modules are embed"),
        (["embed", "fc"], [4, 3, 2], "expected one number of prototypes or 2, got 3"),
        (["encoder.layers.0.dropout1"], [4], "a Dropout does not say how wide its output is"),
        (["embed"], [0], "expected at least 1 prototype, got 0"),
    ):
        with pytest.raises(InputError, match=why):
            align(Encoder(), after=after, prototypes=prototypes)
    with pytest.raises(InputError, match="it has a part 'align' already"):
        align(align(Encoder(), after=["embed"], prototypes=[4]), after=["embed"], prototypes=[4])


class _Wrong(nn.Module):
    """Its last layer is not the one that runs last."""

    def __init__(self) -> None:
        super().__init__()
        self.after, self.before = nn.Linear(4, 3), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.before(x))


def test_a_width_that_was_told_wrong_is_named() -> None:
    """At the first forward pass."""
    model = align(nn.Sequential(_Wrong()), after=["0"], prototypes=[2])
    with pytest.raises(InputError, match=r"expected 4 channels on axis -1, got \(2, 3\)"):
        model(torch.zeros(2, 5))


class _Dense(nn.Module):
    """Wider than its last layer: what goes in comes out again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.conv(x)), 1)


class _Turned(nn.Module):
    """Its last layer has the channels behind, its output before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize(
    ("blocks", "width"),
    [((_Dense(3), _Dense(7)), 11), ((_Turned(3), _Turned(3)), 3)],
    ids=["joined", "turned"],
)
def test_with_examples_the_width_is_that_of_the_output(
    blocks: tuple[nn.Module, nn.Module], width: int
) -> None:
    """Channels are channels, whatever the last layer in the block does."""
    rest = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3))
    model = nn.Sequential(nn.Sequential(*blocks), *rest)
    x = torch.zeros(2, 3, 6, 5)
    placed = place_by_default(model, "3", x, width)
    assert [one.module for one in placed] == ["0.0", "0.1"]
    assert (blocks[1].align.width, blocks[1].align.axis) == (width, 1)
    assert model(x).shape == (2, 3)


@pytest.mark.slow(seconds=15)
def test_an_aligned_model_passes_parity() -> None:
    """The training program moves the prototypes of both layers."""
    torch.manual_seed(0)
    model = align(Encoder(), after=["encoder.layers.*"], prototypes=[4])
    example = {"x": torch.zeros(4, 10, 6), "y": torch.zeros(4, dtype=torch.int64)}
    program = capture(model, OBJECTIVES["cross_entropy"], example)
    moved = [port.key for port in program.outputs if port.role == "state"]
    assert moved == [f"encoder.layers.{index}.align.local_prototypes" for index in range(3)]
    check_parity(model, program, to_onnx(program, name="train"), name="train")
