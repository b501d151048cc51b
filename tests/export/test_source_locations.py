"""Whose lines messages name."""

from __future__ import annotations

import torch
from torch import nn

from protofleet import cli
from protofleet.export.capture import capture
from protofleet.export.capture.source import place_of
from protofleet.export.classifier import find_parts
from protofleet.export.models import build_model
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.source_locations import is_users, line_here
from protofleet.export.sweep import sequences
from protofleet.nn import align


def _places(model: nn.Module) -> set[str]:
    """Of every operator of a training program with an alignment layer and features."""
    x = torch.zeros(2, 5)
    align(model, after=["0"], prototypes=[4])
    example = {"x": x, "y": torch.zeros(2, dtype=torch.int64)}
    program = capture(model, OBJECTIVES["cross_entropy"], example, parts=find_parts(model, x))
    nodes = [node for node in program.graph.graph.nodes if node.op == "call_function"]
    return {place_of(node) for node in nodes}


class _Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


def test_modules_of_pytorch_name_themselves_and_own_ones_their_line() -> None:
    """No line is Protofleet's, be it of the alignment, the objective or the capture."""
    places = _places(nn.Sequential(nn.Linear(5, 8), _Own(), nn.Linear(8, 3)))
    assert "module '2' (torch.nn.modules.linear.Linear)" in places
    assert "module '0.align' (protofleet.export.classifier.align.AlignedOutput)" in places
    lines = {place for place in places if ".py:" in place}
    assert [place.rpartition(", ")[2].rpartition(":")[0] for place in lines] == [__file__]


def test_a_model_that_is_ours_is_named_by_its_modules() -> None:
    example = {"x": torch.zeros(2, 64), "y": torch.zeros(2, dtype=torch.int64)}
    program = capture(build_model("mlp"), OBJECTIVES["cross_entropy"], example)
    nodes = [node for node in program.graph.graph.nodes if node.op == "call_function"]
    assert not [place_of(node) for node in nodes if ".py:" in place_of(node)]


def test_lines_of_the_sweep_are_told_as_a_users_are() -> None:
    """Also where the package is reached by links."""
    assert is_users(sequences.__file__)
    assert not is_users(cli.__file__)


def test_who_calls_is_named_where_no_model_runs() -> None:
    file, _, number = line_here().rpartition(":")
    assert file == __file__
    assert number.isdecimal()
