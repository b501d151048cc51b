"""Lookups and assignments by known places: the backward pass looks nothing up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from protofleet.errors import ExportError
from protofleet.export.capture import CapturedProgram, capture
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.parity.reference import Reference, run_in_double
from protofleet.export.sweep.cases import classifier, function
from protofleet.export.tflite import to_tflite

_GENERAL = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.gather.default,
    torch.ops.aten.scatter_add.default,
}


class _Held(nn.Module):
    """Places in a buffer, and worked out from them."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor([4, 1, 1]))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x[:, :, self.places % 4 + 1] * x[:, [[0], [2], [1], [1]], self.places]
        return found


def _assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, [3, 0]] = x[:, 1:3] * 2
    y[:, :, [1, 1]] = 0.5
    return y


@pytest.mark.parametrize(
    "apply",
    [
        lambda x: x[:, :, [0, 5, 2]],
        lambda x: x[:, [-1, 0]],
        lambda x: x[:, [[0, 1], [3, 3]]],
        lambda x: x[:, [0, 1, 3], [2, 3, 2]],
        lambda x: x[:, torch.tensor([2, 0])[:, None], torch.tensor([1, 5, 5])],
        lambda x: x.index_select(1, torch.tensor([3, 3])),
        lambda x: x.index_add(2, torch.tensor([1, 1]), x[:, :, :2]),
        lambda x: x.index_fill(1, torch.tensor([2]), 1.5),
        lambda x: x.index_copy(1, torch.tensor([2, 0]), x[:, 2:]),
        lambda x: x.gather(1, torch.tensor([[[2], [0]]]).expand(x.shape[0], 2, 6)),
        _assigned,
        _Held(),
    ],
)
def test_places_become_fixed_maps(apply: Callable[[Tensor], Tensor]) -> None:
    program = _checked(apply)
    from_loss = {torch.ops.aten.gather.default, torch.ops.aten.scatter.value}
    assert not _used(program) & (_GENERAL - from_loss)


def _of_each(x: Tensor) -> Tensor:
    """Every example's own places."""
    return x.detach().mean(2).argsort(1)[:, 2:] - 2


def _assigned_each(x: Tensor) -> Tensor:
    y = x.clone()
    y[torch.arange(x.shape[0]), _of_each(x)[:, 0]] = x[:, 0] * 2
    return y


@pytest.mark.parametrize(
    "apply",
    [
        lambda x: x[torch.arange(x.shape[0]), _of_each(x)[:, 0]],
        lambda x: x[torch.arange(x.shape[0]), :2][torch.arange(x.size(0)), 1],
        lambda x: x[torch.arange(x.shape[0]).unsqueeze(1), _of_each(x)],
        lambda x: x[torch.arange(x.shape[0]).view(-1, 1).expand(-1, 2), _of_each(x)],
        _assigned_each,
    ],
)
def test_places_of_each_example_are_gathered(apply: Callable[[Tensor], Tensor]) -> None:
    """Such as the last of its samples that count; negative places count from the end."""
    program = _checked(apply)
    assert not _used(program) & {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default}
    assert to_tflite({"train": program})


class _ByBuffer(nn.Module):
    """Examples by the number that each of them holds, which is no range."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x[(x[:, 0, 0] * 0).long()]
        return found


def test_examples_by_other_numbers_stay_lookups() -> None:
    program = capture(_ByBuffer(), None, {"x": torch.zeros(4, 4, 6)})
    assert torch.ops.aten.index.Tensor in _used(program)
    with pytest.raises(ExportError, match=r"index\.Tensor"):
        to_tflite({"infer": program})


def _used(program: CapturedProgram) -> set[Any]:
    return {node.target for node in program.graph.graph.nodes}


def _checked(apply: Callable[[Tensor], Tensor]) -> CapturedProgram:
    """A classifier with the function in it, which computes what PyTorch does."""
    model = classifier(function("lookup", "lookups", apply))
    example = {"x": torch.zeros(4, 4, 6), "y": torch.zeros(4, dtype=torch.int64)}
    program = capture(model, OBJECTIVES["cross_entropy"], example)
    reference = Reference(model, program, dtype=torch.float64)
    feed = reference.draw(5, np.random.default_rng(0))
    expected, _ = reference(feed)
    for name, value in run_in_double(program, feed).items():
        torch.testing.assert_close(
            torch.from_numpy(value), torch.from_numpy(expected[name]), check_dtype=False
        )
    return program
