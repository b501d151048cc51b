"""Variants of a bundle's ``infer`` with the weights inside, in half precision or in 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Manifest, Precision, Program
from protofleet.errors import InputError
from protofleet.export.quantise import onnx as quantise_onnx
from protofleet.export.quantise import tflite as quantise_tflite
from protofleet.tensors import Model, Tensors
from protofleet.tensors.blobs import encode

Backend = Literal["onnx", "litert"]

PRECISIONS: tuple[Precision, ...] = ("float16", "int8")

_PARAMS, _STATE = "params.safetensors", "state.safetensors"
_CALIBRATION_BATCH = 32

_Writer = Callable[[Any, str, Sequence[Tensors]], bytes]

_ONNX: Mapping[Precision, _Writer] = {
    "float16": lambda model, name, _: quantise_onnx.to_float16(model, name),
    "int8": quantise_onnx.to_int8,
}
_TFLITE: Mapping[Precision, _Writer] = {
    "float16": lambda graph, name, _: quantise_tflite.to_float16(graph, name),
    "int8": quantise_tflite.to_int8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A bundle that is not signed yet.

    Attributes:
        manifest: as it will be signed, but for ``files``.
        files: content by path.
        values: parameters and state, which are the quantised programs' own.
        float_bytes: size of ``infer`` with float32 weights inside, by backend.
    """

    manifest: Manifest
    files: Mapping[str, bytes]
    values: Model
    float_bytes: Mapping[Backend, int]

    def read(self, name: str, /) -> bytes:
        """One file's bytes."""
        return self.files[name]

    def model(self) -> Model:
        """The values."""
        return self.values


def quantise(
    bundle: Bundle,
    values: Model,
    calibration: NDArray[np.float32],
    precisions: Iterable[Precision] = PRECISIONS,
) -> Draft:
    """Add programs ``infer_<precision>`` with ``values`` inside to the content of ``bundle``.

    Quantised programs that the bundle has already are left out: they hold other values.

    Args:
        bundle: has a program ``infer``.
        values: parameters and state, which become the new bundle's.
        calibration: windows (n, …) that show how large activations become.
        precisions: of the programs to add.

    Raises:
        InputError: the bundle has no float32 program ``infer``, or there are no windows.
        ExportError: the program has nothing to quantise.
    """
    infer = bundle.manifest.programs.get("infer")
    if infer is None or infer.precision != "float32":
        raise InputError(f"bundle '{bundle.manifest.name}': has no float32 program 'infer'")
    if not len(calibration):
        raise InputError("calibration: expected at least one window, got none")
    batches = _batches(infer, calibration)
    inputs = _by_port(infer, values)
    files = _kept_files(bundle) | _value_files(values)
    programs = {n: p for n, p in bundle.manifest.programs.items() if p.precision == "float32"}
    float_bytes: dict[Backend, int] = {}
    if infer.file is not None:
        float_bytes["onnx"] = len(_onnx(bundle, infer, inputs).SerializeToString())
    if infer.tflite is not None:
        float_bytes["litert"] = len(_tflite(bundle, infer, inputs).pack("infer"))
    for precision in precisions:
        name = f"infer_{precision}"
        file, tflite = f"programs/{name}.onnx", f"programs/{name}.tflite"
        if infer.file is not None:
            files[file] = _ONNX[precision](_onnx(bundle, infer, inputs), name, batches)
        if infer.tflite is not None:
            files[tflite] = _TFLITE[precision](_tflite(bundle, infer, inputs), name, batches)
        programs[name] = Program(
            file=None if infer.file is None else file,
            inputs=tuple(port for port in infer.inputs if port.role == "input"),
            outputs=infer.outputs,
            tflite=None if infer.tflite is None else tflite,
            precision=precision,
        )
    manifest = msgspec.structs.replace(
        bundle.manifest,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        programs=programs,
        provenance={**bundle.manifest.provenance, "quantised from": bundle.digest},
    )
    return Draft(manifest=manifest, files=files, values=values, float_bytes=float_bytes)


def _onnx(bundle: Bundle, infer: Program, inputs: Tensors) -> Any:
    return quantise_onnx.bake(bundle.read(str(infer.file)), inputs)


def _tflite(bundle: Bundle, infer: Program, inputs: Tensors) -> Any:
    return quantise_tflite.bake(bundle.read(str(infer.tflite)), "infer", inputs)


def _by_port(infer: Program, values: Model) -> dict[str, NDArray[np.float32]]:
    """Values by the names of the program's inputs."""
    tensors = {"param": values.params, "state": values.buffers}
    return {p.name: tensors[p.role][p.key] for p in infer.inputs if p.role in tensors}


def _batches(infer: Program, windows: NDArray[np.float32]) -> list[Tensors]:
    ((name, dtype),) = ((p.name, p.dtype) for p in infer.inputs if p.role == "input")
    starts = range(0, len(windows), _CALIBRATION_BATCH)
    return [
        {name: np.ascontiguousarray(windows[i : i + _CALIBRATION_BATCH], dtype)} for i in starts
    ]


def _kept_files(bundle: Bundle) -> dict[str, bytes]:
    """What the float32 programs need."""
    programs = [p for p in bundle.manifest.programs.values() if p.precision == "float32"]
    named = {file for p in programs for file in (p.file, p.tflite) if file is not None}
    return {file: bundle.read(file) for file in sorted(named)}


def _value_files(values: Model) -> dict[str, bytes]:
    files = {_PARAMS: encode(values.params)}
    return files | ({_STATE: encode(values.buffers)} if len(values.buffers) else {})
