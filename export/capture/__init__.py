"""From a model and an objective to one graph of ATen operators, forward and backward."""

from protofleet.export.capture.program import (
    CapturedProgram,
    ModelTensors,
    capture,
    evaluate,
    model_tensors,
)

__all__ = ["CapturedProgram", "ModelTensors", "capture", "evaluate", "model_tensors"]
