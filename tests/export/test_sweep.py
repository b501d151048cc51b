"""The sweep's cases: a classifier around any operator, which gradients reach from both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from protofleet.cli.main import main
from protofleet.errors import InputError
from protofleet.export.sweep import (
    activities,
    brains,
    images,
    mixers,
    patches,
    sequences,
    series,
    sounds,
    tables,
    texts,
    vision,
)
from protofleet.export.sweep.cases import CLASSES, SweepCase, classifier, function
from protofleet.export.sweep.collect import all_cases
from protofleet.export.sweep.prove import Proof, SweepRow, prove
from protofleet.export.sweep.run import run
from protofleet.export.sweep.table import page, summary


def test_an_operator_is_classified_between_trained_tensors() -> None:
    model = classifier(function("sin", "numbers", torch.sin, (4, 6)))
    logits = model(torch.randn(5, 4, 6))
    assert logits.shape == (5, CLASSES)
    logits.sum().backward()
    assert all(value.grad is not None for value in model.parameters())


def test_tokens_reach_the_operator_as_they_are() -> None:
    case = SweepCase(
        name="Embedding",
        group="layers",
        build=lambda: nn.Embedding(9, 2),
        input_shape=(7,),
        tokens=9,
    )
    assert classifier(case)(torch.full((2, 7), 8)).shape == (2, CLASSES)


def test_an_architecture_is_taken_whole() -> None:
    build = lambda: nn.Linear(4, CLASSES)  # noqa: E731 - a factory, as a user writes it
    case = SweepCase(name="line", group="architectures", build=build, input_shape=(4,), whole=True)
    assert type(classifier(case)) is nn.Linear


_NETWORKS = (
    *(
        images,
        sequences,
        series,
        activities,
        brains,
        sounds,
        vision,
        patches,
        texts,
        mixers,
        tables,
    ),
)
_ARCHITECTURES = [case for module in _NETWORKS for case in module.CASES]


@pytest.mark.parametrize("case", _ARCHITECTURES, ids=lambda case: case.name)
def test_an_architecture_is_a_classifier_of_its_input(case: SweepCase) -> None:
    model = classifier(case).train()
    x = torch.rand(4, *case.input_shape)
    if case.tokens is not None:
        x = torch.randint(0, case.tokens, x.shape)
    assert model(x).shape == (4, CLASSES)


class _Beside(nn.Module):
    """Several operators on the same example: one export proves them all."""

    def __init__(self, cases: list[SweepCase]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(case.build() for case in cases)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x).flatten(1).float() for part in self.parts], 1)


_REPRESENTATIVE = {
    "planes": (
        "F.pad, reflect, 2-d",
        "F.pad, circular, 2-d",
        "interpolate, nearest, 2-d, size",
        "interpolate, bilinear, scale 2",
        "interpolate, bicubic",
        "AdaptiveAvgPool2d",
        "AdaptiveMaxPool2d",
        "AvgPool2d, ceil_mode, padding not counted",
        "MaxPool2d, dilation",
        "F.fold",
    ),
    "rows": (
        "x[:, [2, 0], 1:4]",
        "x[:, [0, 1], [2, 3]]",
        "gather by the data",
        "take_along_dim",
        "scatter",
        "slice assignment",
        "roll, 2 axes",
        "repeat",
        "sort, descending, axis 1",
        "topk, axis 1, smallest",
        "cumsum",
        "cumprod",
        "cummax",
        "max over an axis",
        "median over an axis",
        "quantile",
    ),
}


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, id=name, marks=[pytest.mark.full_size] if name == "planes" else [])
        for name, names in _REPRESENTATIVE.items()
    ],
)
def test_representative_operators_train_in_both_runtimes(names: tuple[str, ...]) -> None:
    found = {case.name: case for case in all_cases()}
    cases = [found[name] for name in names]
    (shape,) = {case.input_shape for case in cases}
    beside = SweepCase(name="beside", group="all", build=lambda: _Beside(cases), input_shape=shape)
    proofs = prove(beside).proofs
    assert {one: type(proof) for one, proof in proofs.items()} == {"onnx": Proof, "tflite": Proof}


def test_names_are_told_apart() -> None:
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases) >= 120


def test_a_pattern_chooses_by_name_or_group() -> None:
    assert {case.group for case in all_cases("padding")} >= {"padding"}
    assert [case.name for case in all_cases("ROLL, *")] == ["roll, 2 axes"]
    with pytest.raises(InputError, match="no case is called that; the groups are padding, "):
        all_cases("Convolve")


def test_what_cannot_be_exported_is_told_in_its_row() -> None:
    row = prove(function("nonzero", "parts", lambda x: x[x > 0].sum() * x))
    assert set(row.proofs) == {"onnx", "tflite"}
    for message in row.proofs.values():
        assert isinstance(message, str)
        assert "tests/export/test_sweep.py" in message
        assert "use torch.where" in message


@pytest.mark.full_size
def test_a_process_that_ends_costs_one_case() -> None:
    unknown = SweepCase(name="unknown", group="none", build=nn.Identity, input_shape=(4,))
    first, second = run([unknown, *all_cases("movedim")])
    assert "ended" in str(first.proofs["onnx"])
    assert isinstance(second.proofs["onnx"], Proof)


def _row(name: str, *, good: bool = True, step: float | None = None) -> SweepRow:
    proof = Proof(error=2.4e-7, kilobytes=4.6, step=step)
    return SweepRow(
        name=name,
        group="padding",
        proofs={"onnx": proof, "tflite": proof if good else "module 'a', b.py:3: no form"},
        seconds=1.26,
    )


def test_a_page_keeps_the_lines_of_cases_that_were_not_run() -> None:
    cases = [function(name, "padding", torch.sin) for name in ("one | two", "three", "four")]
    first = page([_row("three", good=False), _row("one | two")], "", cases)
    assert "| `one \\| two` | trains | trains | 2e-07 | 1.3 | 5 | 5 |" in first
    assert "| `three` | trains | no | 2e-07 | 1.3 | 5 |  |" in first
    assert "- `three`, LiteRT: module 'a', b.py:3: no form" in first
    second = page([_row("four")], first, cases)
    assert second.replace("| `four` | trains | trains | 2e-07 | 1.3 | 5 | 5 |\n", "") == first
    assert "no form" not in page([_row("three")], second, cases)
    assert "`three`" not in page([], second, cases[:1])


def test_a_page_gives_the_step_of_an_architecture() -> None:
    build = lambda: nn.Linear(4, CLASSES)  # noqa: E731 - a factory
    case = SweepCase(name="line", group="padding", build=build, input_shape=(4,), whole=True)
    text = page([_row("line", step=0.731)], "", [case])
    assert "step ONNX | step LiteRT |" in text
    assert "| 0.73 | 0.73 |" in text


def test_rows_are_counted() -> None:
    told = summary([_row("one"), _row("two", good=False)])
    assert told == "2 cases: 2 train in ONNX Runtime, 1 train in LiteRT"


def test_the_command_lists_operators_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["export", "--list-operators", "--only", "roll*"])
    assert "shapes (2)\n  roll\n  roll, 2 axes\n" in capsys.readouterr().out


def test_the_page_has_a_line_for_every_case_and_no_other() -> None:
    lines = Path("docs/results/operators.md").read_text(encoding="utf-8").splitlines()
    found = {line.split("`")[1].replace("\\|", "|") for line in lines if line.startswith("| `")}
    assert found == {case.name for case in all_cases()}, (
        "run protofleet export --list-operators --only … --out docs/results/operators.md"
    )
