"""Named arrays: maps over one buffer, safetensors blobs, and JSON that is read strictly."""

from protofleet.tensors.tensors import (
    Layout,
    Model,
    ModelLayer,
    Network,
    Packed,
    TaskName,
    TensorMap,
    Tensors,
    TensorSpec,
    address,
    check_names,
    kind_of,
    vector_of,
)

__all__ = [
    "Layout",
    "Model",
    "ModelLayer",
    "Network",
    "Packed",
    "TaskName",
    "TensorMap",
    "TensorSpec",
    "Tensors",
    "address",
    "check_names",
    "kind_of",
    "vector_of",
]
