"""Every program of every registered model against PyTorch, in every runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
_SHAPES: Mapping[str, tuple[int, ...]] = {
    "autoencoder": (128, 6),
    "cnn": (1, 28, 28),
    "cnn_prototypes": (1, 28, 28),
    "fasttext": (64,),
    "hart": (128, 6),
    "hart_alp": (128, 6),
    "mlp": (561,),
    "mlp_prototypes": (561,),
    "resnet18": (3, 32, 32),
    "resnet50": (3, 64, 64),  # at half of that, batch statistics of 3 numbers decide
    "vit": (3, 32, 32),
    "vit_digits": (1, 8, 8),
}
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fasttext": {"vocabulary": 2000},
    "mlp": {"inputs": 561},
    "mlp_prototypes": {"inputs": 561},
}


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
    model = build_model(name, classes=_CLASSES, **_SETTINGS.get(name, {}))
    spec = BundleSpec(
        name=name,
        strategy="fedavg",
        classes=tuple(map(str, range(_CLASSES))),
        preprocessing=Preprocessing(input_shape=_SHAPES[name]),
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
    return [name for name in OBJECTIVES if name not in without]


def _two_digits(value: float) -> float:
    return 0.0 if value == 0 else round(value, 1 - math.floor(math.log10(value)))
