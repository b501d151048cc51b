"""A model as programs of both formats, held against PyTorch."""

from __future__ import annotations

from torch import nn

from protofleet.export.capture import capture
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import check_parity
from protofleet.export.tflite import tflite_runner, to_tflite
from tests.export.toys import batch


def worst_error(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Of the training program with every gradient, and of ``infer``, in both runtimes.

    Args:
        model: takes (B, *shape) and gives three logits.
        shape: of one example.

    Raises:
        ExportError: there is no such program, or it differs by more than is allowed.
    """
    errors = []
    for objective in (OBJECTIVES["cross_entropy"], None):
        example = batch(shape) if objective else {"x": batch(shape)["x"]}
        program = capture(model, objective, example)
        runners = {"LiteRT": tflite_runner(to_tflite({"program": program}), "program")}
        onnx = to_onnx(program, name="program")
        record = check_parity(
            model, program, onnx, name="program", runners=runners, batch_sizes=(1, 5)
        )
        errors.append(record.worst_error)
    return max(errors)
