"""Named arrays: maps over one buffer, safetensors blobs, and JSON that is read strictly."""

from protofleet.tensors.tensors import (
    Layout,
    Model,
    Network,
    TensorMap,
    Tensors,
    TensorSpec,
    check_names,
)

__all__ = ["Layout", "Model", "Network", "TensorMap", "TensorSpec", "Tensors", "check_names"]
