"""Named arrays: maps over one buffer, safetensors blobs, and JSON that is read strictly."""

from protofleet.tensors.tensors import (
    Layout,
    Model,
    Network,
    TaskName,
    TensorMap,
    Tensors,
    TensorSpec,
    check_names,
)

__all__ = [
    "Layout",
    "Model",
    "Network",
    "TaskName",
    "TensorMap",
    "TensorSpec",
    "Tensors",
    "check_names",
]
