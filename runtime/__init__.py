"""Runs a bundle's programs on tensor maps with ONNX Runtime."""

from protofleet.runtime._alp import KernelError
from protofleet.runtime.programs import Kernels, Programs, open_programs

__all__ = ["KernelError", "Kernels", "Programs", "open_programs"]
