"""The sweep's cases: a classifier around any operator, which gradients reach from both sides."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protofleet.export.sweep import images, sequences
from protofleet.export.sweep.cases import CLASSES, Case, classifier, function


def test_an_operator_is_classified_between_trained_tensors() -> None:
    model = classifier(function("sin", "numbers", torch.sin, (4, 6)))
    logits = model(torch.randn(5, 4, 6))
    assert logits.shape == (5, CLASSES)
    logits.sum().backward()
    assert all(value.grad is not None for value in model.parameters())


def test_tokens_reach_the_operator_as_they_are() -> None:
    case = Case(
        name="Embedding",
        group="layers",
        build=lambda: nn.Embedding(9, 2),
        input_shape=(7,),
        tokens=9,
    )
    assert classifier(case)(torch.full((2, 7), 8)).shape == (2, CLASSES)


def test_an_architecture_is_taken_whole() -> None:
    build = lambda: nn.Linear(4, CLASSES)  # noqa: E731 - a factory, as a user writes it
    case = Case(name="line", group="architectures", build=build, input_shape=(4,), whole=True)
    assert type(classifier(case)) is nn.Linear


@pytest.mark.parametrize("case", [*images.CASES, *sequences.CASES], ids=lambda case: case.name)
def test_an_architecture_is_a_classifier_of_its_input(case: Case) -> None:
    model = classifier(case).train()
    x = torch.rand(4, *case.input_shape)
    if case.tokens is not None:
        x = torch.randint(0, case.tokens, x.shape)
    assert model(x).shape == (4, CLASSES)
