"""Which runtime a bundle's programs are opened with."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Literal

from protofleet.bundle.manifest import Program
from protofleet.errors import InputError
from protofleet.runtime._backend import Backend, Kernels, ProgramSource

BackendName = Literal["auto", "onnx", "litert"]
"""Who runs programs: ONNX Runtime, LiteRT, or ``auto``: ONNX Runtime where it is installed and the
bundle has ONNX files, else LiteRT (docs/predictions.md says why)."""

PACKAGES = {
    "onnx": (
        "onnxruntime",
        "pip install 'protofleet[edge]', or on 32-bit ARM: sudo apt install python3-onnxruntime",
    ),
    "litert": ("ai_edge_litert", "pip install 'protofleet[litert]'"),
}
"""The module of each, and where it comes from."""


def open_backend(
    name: BackendName,
    bundle: ProgramSource,
    programs: Mapping[str, Program],
    *,
    threads: int,
    kernels: Kernels,
) -> Backend:
    """Read the files of ``programs`` for the runtime ``name``; none is loaded yet.

    Raises:
        InputError: that runtime is not installed, or ``kernels`` is not to be had.
        ProvisionError: the bundle holds nothing for that runtime.
    """
    chosen = choose_backend(name, programs)
    if chosen == "litert":
        from protofleet.runtime._litert import LiteRtBackend  # noqa: PLC0415 one runtime is loaded

        return LiteRtBackend(bundle, programs, threads=threads, kernels=kernels)
    from protofleet.runtime._onnx import OnnxBackend  # noqa: PLC0415 as above

    return OnnxBackend(bundle, programs, threads=threads, kernels=kernels)


def choose_backend(name: BackendName, programs: Mapping[str, Program]) -> Literal["onnx", "litert"]:
    """Who runs ``programs`` here.

    Raises:
        InputError: that runtime is not installed, or there is no such.
    """
    if name == "auto":
        has_onnx = all(program.file is not None for program in programs.values())
        has_tflite = all(program.tflite is not None for program in programs.values())
        if has_onnx != has_tflite:
            name = "onnx" if has_onnx else "litert"
        else:
            name = "onnx" if _installed("onnx") or not _installed("litert") else "litert"
    if name not in PACKAGES:
        raise InputError(f"backend: expected auto, onnx or litert, got '{name}'")
    if not _installed(name):
        package, remedy = PACKAGES[name]
        raise InputError(f"backend '{name}': {package} is not installed: {remedy}")
    return name


def _installed(name: Literal["onnx", "litert"]) -> bool:
    return importlib.util.find_spec(PACKAGES[name][0]) is not None
