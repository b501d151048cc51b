"""``python -m protofleet.doctor.tiny_program onnx|litert``: run x + x, and print the version.

In a process of its own, because a runtime that was built for another processor ends it.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import numpy as np

from protofleet.runtime import SUM, open_interpreter

_ONNX_SUM = base64.b64decode(
    "CAgSADo1Cg4KAXgKAXgSAXkiA0FkZBIBZ1oPCgF4EgoKCAgBEgQKAggBYg8KAXkSCgoICAESBAoCCAFCBAoAEBI="
)
"""An ONNX file (opset 18) of y = x + x for one float32, from ``onnx.helper.make_model``."""


def _onnx(x: Any) -> Any:
    import onnxruntime  # noqa: PLC0415 - one of the two is run

    session = onnxruntime.InferenceSession(_ONNX_SUM, providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x})[0]


def _litert(x: Any) -> Any:
    interpreter = open_interpreter(SUM)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


_RUNTIMES: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "onnx": (_onnx, "onnxruntime"),
    "litert": (_litert, "ai-edge-litert"),
}


def _main(name: str) -> None:
    run, package = _RUNTIMES[name]
    y = run(np.array([1.5], np.float32))
    if y.tolist() != [3.0]:
        sys.exit(f"1.5 + 1.5: expected 3.0, got {y.tolist()}")
    try:
        sys.stdout.write(metadata.version(package))
    except metadata.PackageNotFoundError:  # built by a distribution
        sys.stdout.write("of unknown version")


if __name__ == "__main__":
    _main(sys.argv[1])
