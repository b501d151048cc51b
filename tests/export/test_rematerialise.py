"""Training programs keep little of the forward pass, and compute the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, fx, nn

from protofleet.export.capture import capture
from protofleet.export.capture.rematerialise import tidy
from protofleet.export.objectives import OBJECTIVES

pytestmark = pytest.mark.slow(seconds=1)

BATCH, WIDTH = 64, 128


class Deep(nn.Module):
    """Three blocks of a product and what is cheap to compute again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + nn.functional.dropout(nn.functional.silu(layer(norm(x))), 0.3, self.training)
        logits: Tensor = self.head(x)
        return logits


def _example() -> dict[str, Tensor]:
    return {"x": torch.randn(BATCH, WIDTH), "y": torch.arange(BATCH) % 4}


def _kept_values(graph: fx.Graph) -> int:
    """How many tensors of (BATCH, WIDTH) the backward pass reads from before the loss."""
    (output,) = graph.find_nodes(op="output")
    nodes = list(graph.nodes)
    forward = set(nodes[: nodes.index(output.args[0][0]) + 1])
    return sum(
        node.op == "call_function"
        and isinstance(node.meta["val"], Tensor)
        and node.meta["val"].dim() == 2
        and node.meta["val"].shape[1] == WIDTH
        and not isinstance(node.meta["val"].shape[0], int)
        and any(user not in forward and user is not output for user in node.users)
        for node in forward
    )


def test_the_backward_pass_reads_little_of_the_forward_pass() -> None:
    """A block leaves its product and its sum: norms, masks and activations are made again."""
    torch.manual_seed(0)
    program = capture(Deep(), OBJECTIVES["cross_entropy"], _example())
    assert _kept_values(program.graph.graph) <= 2 * 3


def test_values_that_are_computed_again_have_the_same_bits() -> None:
    """Merging what is computed twice changes no result."""
    torch.manual_seed(0)
    program = capture(Deep(), OBJECTIVES["cross_entropy"], _example())
    merged = copy.deepcopy(program.graph)
    tidy(merged)
    assert len(merged.graph.nodes) < len(program.graph.graph.nodes)
    inputs = []
    for node in program.graph.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        shape = [n if isinstance(n, int) else BATCH for n in value.shape]
        drawn = torch.rand(shape) if value.dtype == torch.float32 else torch.arange(BATCH) % 4
        inputs.append(drawn)
    for ours, other in zip(program.graph(*inputs), merged(*inputs), strict=True):
        assert torch.equal(ours, other)


class Thin(nn.Module):
    """Blocks whose inner values are large, and cheap enough to compute again if need be."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(48, 9600) for _ in range(blocks))
        self.narrow = nn.ModuleList(nn.Linear(9600, 48) for _ in range(blocks))
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            x = x + narrow(torch.sin(wide(x)))
        logits: Tensor = self.head(x)
        return logits


def _products(blocks: int) -> int:
    example = {"x": torch.randn(8, 48), "y": torch.arange(8) % 4}
    graph = capture(Thin(blocks), OBJECTIVES["cross_entropy"], example).graph.graph
    products = graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default)
    return sum(node.meta["val"].shape[1] == 9600 for node in products)


@pytest.mark.slow
def test_thin_products_run_twice_only_where_much_would_be_kept() -> None:
    """Two blocks would keep 5 MB at the nominal batch, twelve would keep 29 MB."""
    assert _products(2) == 2
    assert _products(12) == 2 * 12


class Narrow(nn.Module):
    """Thin products alone, over long rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.silu(layer(torch.sin(x)))
        return x.mean(1)[:, :4]


def test_a_model_of_thin_products_alone_does_not_keep_everything() -> None:
    """Where all is cheap there is no second cut: the first one stays."""
    example = {"x": torch.randn(8, 512, 48), "y": torch.arange(8) % 4}
    graph = capture(Narrow(), OBJECTIVES["cross_entropy"], example).graph.graph
    assert len(graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)) == 2 * 8


class _Heads(nn.Module):
    """Leaves both the batch size and the number of heads of a view to be found out."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], -1, 16).mean(2)


def test_a_view_has_one_open_axis_whatever_the_model_left_open() -> None:
    """Two would be an error in every runtime."""
    program = capture(_Heads(), None, {"x": torch.zeros(4, 96)})
    views = program.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default)
    assert [node.args[1] for node in views] == [[-1, 6, 16]]
