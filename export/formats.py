"""A bundle's programs in the formats of the runtimes: ONNX for ONNX Runtime, TFLite for LiteRT.

Both come from the same graphs. Where an operator has no form in one of them, that format is left
out as a whole, since a device that runs it must be able to run every program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from protofleet.errors import ExportError
from protofleet.export.capture import CapturedProgram
from protofleet.export.onnx import to_onnx
from protofleet.export.tflite import to_tflite

Format = Literal["onnx", "tflite"]
FORMATS: tuple[Format, ...] = get_args(Format)

_TFLITE = "programs/programs.tflite"
_REMEDY = "docs/results/operators.md lists what works in its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPrograms:
    """Program files.

    Attributes:
        onnx: a file's content by program; empty where there are none.
        tflite: the one file of all programs, a signature each; None where there is none.
        left_out: why a format is absent.
    """

    onnx: Mapping[str, bytes] = field(default_factory=dict)
    tflite: bytes | None = None
    left_out: Mapping[Format, str] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        """Contents by path in the bundle."""
        files = {f"programs/{name}.onnx": data for name, data in self.onnx.items()}
        return files if self.tflite is None else {**files, _TFLITE: self.tflite}

    def paths(self, program: str) -> dict[str, str | None]:
        """The fields ``file`` and ``tflite`` of a program's declaration."""
        return {
            "file": f"programs/{program}.onnx" if self.onnx else None,
            "tflite": None if self.tflite is None else _TFLITE,
        }


def write_programs(
    captured: Mapping[str, CapturedProgram], asked: tuple[Format, ...] | None = None
) -> WrittenPrograms:
    """Write all programs.

    Args:
        captured: by name.
        asked: formats that must be written; None: both, or the one that can be.

    Raises:
        ExportError: a format that was asked for, or neither of them, can be written; the message
            names operator, module and line.
    """
    onnx: dict[str, bytes] = {}
    tflite: bytes | None = None
    left_out: dict[Format, str] = {}
    for one in asked or FORMATS:
        try:
            if one == "onnx":
                onnx = {name: to_onnx(program, name=name) for name, program in captured.items()}
            else:
                tflite = to_tflite(captured)
        except ExportError as error:
            if asked is not None:
                raise ExportError(f"format '{one}': {error}; {_REMEDY}") from error
            left_out[one] = str(error)
    if not onnx and tflite is None:
        reasons = "; ".join(f"{one}: {why}" for one, why in left_out.items())
        raise ExportError(f"no format can be written: {reasons}; {_REMEDY}")
    return WrittenPrograms(onnx=onnx, tflite=tflite, left_out=left_out)
