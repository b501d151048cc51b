"""Every program of every registered model against PyTorch, in every runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from protofleet.benchmarks._models import matching
from protofleet.benchmarks._rows import Row
from protofleet.bundle.manifest import Preprocessing
from protofleet.export.build import BundleSpec, capture_programs
from protofleet.export.models import MODELS, build_model
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import TOLERANCE, check_parity
from protofleet.export.tflite import tflite_runner, to_tflite

_CLASSES = 6


def run(*, quick: bool, only: Sequence[str] = ()) -> Iterator[list[Row]]:
    """A row for each model and program: the largest relative difference in each runtime.

    Args:
        quick: two small models.
        only: models with one of these in their names; empty: all.

    Raises:
        ExportError: a program differs by more than the tolerance.
        InputError: there is no such model.
    """
    names = ("mlp", "vit_digits") if quick else tuple(sorted(MODELS))
    return (list(_rows(name)) for name in matching(names, only))


def _rows(name: str) -> Iterator[Row]:
    torch.manual_seed(0)
    known = MODELS[name]
    model = build_model(name, classes=_CLASSES, **known.parity_settings)
    spec = BundleSpec(
        name=name,
        strategy="fedavg",
        classes=tuple(map(str, range(_CLASSES))),
        preprocessing=Preprocessing(input_shape=known.parity_shape or known.input_shape),
        objectives=tuple(_objectives(model)),
    )
    programs = capture_programs(model, spec)
    tflite = to_tflite(programs)
    for program, captured in programs.items():
        onnx = to_onnx(captured, name=program)
        record = check_parity(
            model,
            captured,
            onnx,
            name=program,
            runners={"LiteRT": tflite_runner(tflite, program)},
        )
        errors = {f"{runner} error": error for runner, error in record.by_runner.items()}
        yield Row(
            bench="parity",
            case=f"{name}: {program}",
            threads=1,
            details={
                "tensors": record.tensors,
                **{what: _two_digits(error) for what, error in errors.items()},
                "tolerance": TOLERANCE,
                "gradient noise": _two_digits(record.gradient_noise),
                "onnx_bytes": record.program_bytes,
                "tflite_bytes_of_all": len(tflite),
            },
        )


def _objectives(model: nn.Module) -> list[str]:
    """Those that the model has what they need for; the plain one first."""
    without = set()
    if not hasattr(getattr(model, "head", None), "prototypes"):
        without |= {"prototype_distance"}
    if not hasattr(model, "decode"):
        without |= {"reconstruction", "head_cross_entropy"}
    whole = (name for name, one in OBJECTIVES.items() if one.labels != "classes of steps")
    return [name for name in whole if name not in without]


def _two_digits(value: float) -> float:
    return 0.0 if value == 0 else round(value, 1 - math.floor(math.log10(value)))
