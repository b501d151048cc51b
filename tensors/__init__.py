"""Named arrays: maps over one buffer, safetensors blobs, and JSON that is read strictly."""

from protofleet.tensors.tensors import (
    Layout,
    Model,
    ModelLayer,
    Network,
    TensorMap,
    Tensors,
    TensorSpec,
    check_names,
)

__all__ = [
    "Layout",
    "Model",
    "ModelLayer",
    "Network",
    "TensorMap",
    "TensorSpec",
    "Tensors",
    "check_names",
]
