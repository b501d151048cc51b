"""Runs a bundle's programs on tensor maps, with ONNX Runtime or with LiteRT."""

from protofleet.runtime._alp import KernelError
from protofleet.runtime._backend import Kernels
from protofleet.runtime._choice import PACKAGES, BackendName, choose_backend
from protofleet.runtime._footprint import release, return_large_blocks
from protofleet.runtime._litert import SUM, open_interpreter
from protofleet.runtime.classifier import Classifier, open_classifier
from protofleet.runtime.plain import FORMATS, plain_model
from protofleet.runtime.programs import Programs, open_programs

__all__ = [
    "FORMATS",
    "PACKAGES",
    "SUM",
    "BackendName",
    "Classifier",
    "KernelError",
    "Kernels",
    "Programs",
    "choose_backend",
    "open_classifier",
    "open_interpreter",
    "open_programs",
    "plain_model",
    "release",
    "return_large_blocks",
]
