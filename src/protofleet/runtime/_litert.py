"""Programs in LiteRT, which is TensorFlow Lite under its present name."""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import numpy as np

from protofleet.bundle.manifest import MAX_TFLITE_BATCH, Program
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._arrays import Arrays
from protofleet.runtime._backend import Feed, Kernels, ProgramSource
from protofleet.runtime._ports import Tensor, check_ports

SUM = base64.b64decode(
    "GAAAAFRGTDMAAA4AFAAQAAwACAAAAAQADgAAABAAAAAYAAAA8AAAAAMAAAABAAAABAAAABj///8BAAAAFAAAAAAA"
    "DgAYABQAEAAMAAgABAAOAAAAFAAAABgAAABYAAAAXAAAAGAAAAABAAAAZwAAAAEAAAAUAAAAAAAOABQAAAAQAAwA"
    "CwAEAA4AAAAQAAAAAAAACwwAAAAQAAAAgP///wEAAAABAAAAAgAAAAAAAAAAAAAAAQAAAAEAAAABAAAAAAAAAAIA"
    "AAAwAAAABAAAAOT///8IAAAADAAAAAEAAAB5AAAAAQAAAAEAAAAMAAwACAAAAAAABAAMAAAACAAAAAwAAAABAAAA"
    "eAAAAAEAAAABAAAAAQAAAAgAAAAEAAQABAAAAA=="
)
"""A TFLite file of x + x for one float32; ``tests/runtime/test_litert.py`` says how it was made."""
_BANNER = b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n"


class LiteRtBackend:
    """An interpreter for each program (``_backend.Backend``); all read one copy of the file.

    An interpreter of its own lets programs run in different threads, and only the signature in use
    holds activations. ALP nodes are part of the graph.
    """

    name: Literal["onnx", "litert"] = "litert"
    uses_kernels = False

    def __init__(
        self,
        bundle: ProgramSource,
        programs: Mapping[str, Program],
        *,
        threads: int,
        kernels: Kernels,
    ) -> None:
        if kernels == "custom":
            raise InputError("kernels 'custom': LiteRT cannot call them; choose backend 'onnx'")
        self._programs = programs
        self._threads = threads
        self._paths = {name: _path(bundle, name, program) for name, program in programs.items()}
        self._files = {path: bundle.read(path) for path in set(self._paths.values())}

    def where(self, program: str) -> str:
        """The file and the signature in it."""
        return f"{self._paths[program]}:{program}"

    def open(self, program: str) -> LiteRtRunner:
        """A runner with a new interpreter."""
        where = self.where(program)
        signature = _signature(self._files[self._paths[program]], program, where, self._threads)
        check_ports(
            where,
            self._programs[program],
            _tensors(signature.get_input_details()),
            _tensors(signature.get_output_details()),
        )
        return LiteRtRunner(signature, self._programs[program], where)


class LiteRtRunner:
    """Runs one signature; LiteRT copies inputs in and outputs out.

    The interpreter plans its memory anew only when a shape differs from the call before.
    """

    def __init__(self, signature: Any, program: Program, where: str) -> None:
        self._signature = signature
        self._where = where
        self._batched = [port.name for port in program.inputs if port.shape[:1] == ("batch",)]

    def run(self, _key: tuple[int, ...], feed: Feed) -> None:
        """As ``_backend.Runner.run``."""
        inputs, outputs = feed()
        size = max((inputs[name].shape[0] for name in self._batched), default=1)
        if size > MAX_TFLITE_BATCH:
            raise InputError(
                f"program '{self._where}': expected at most {MAX_TFLITE_BATCH} examples in a "
                f"batch, got {size}; choose a smaller batch, or backend 'onnx'"
            )
        try:
            found = self._signature(**inputs)
        except (RuntimeError, ValueError) as error:
            raise ProvisionError(f"program '{self._where}': {_line(error)}") from error
        self._copy(found, outputs)

    def _copy(self, found: Arrays, outputs: Arrays) -> None:
        for name, into in outputs.items():
            if found[name].shape != into.shape:
                raise ProvisionError(
                    f"program '{self._where}', output '{name}': expected {into.shape}, "
                    f"got {found[name].shape}"
                )
            np.copyto(into, found[name])


def _path(bundle: ProgramSource, name: str, program: Program) -> str:
    if program.tflite is None:
        raise ProvisionError(
            f"bundle '{bundle.manifest.name}': its program '{name}' has no TFLite file; export the "
            "model anew, or choose backend 'onnx'"
        )
    return program.tflite


def _signature(model: bytes, name: str, where: str, threads: int) -> Any:
    """The signature ``name`` of a new interpreter.

    Raises:
        ProvisionError: the file does not load, or has no such signature.
    """
    try:
        interpreter = open_interpreter(model, threads=threads)
        names = sorted(interpreter.get_signature_list())
        if name in names:
            return interpreter.get_signature_runner(name)
    except (RuntimeError, ValueError) as error:
        raise ProvisionError(f"program '{where}': does not load: {_line(error)}") from error
    raise ProvisionError(f"program '{where}': the file has the signatures {names} only")


def open_interpreter(model: bytes, *, threads: int = 1, delegates: bool = True) -> Any:
    """LiteRT's interpreter of a TFLite file.

    Args:
        model: the file.
        threads: that compute.
        delegates: leave operators to XNNPACK, which is faster but names none that fails.

    Raises:
        ValueError, RuntimeError: LiteRT's own, where the file does not load.
    """
    from ai_edge_litert.interpreter import (  # noqa: PLC0415 only who runs it pays for it
        Interpreter,
        OpResolverType,
    )

    _say_banner()
    resolver = (
        OpResolverType.AUTO if delegates else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )
    return Interpreter(
        model_content=model, num_threads=threads, experimental_op_resolver_type=resolver
    )


@cache
def _say_banner() -> None:
    """Let LiteRT say its line about XNNPACK, once per process, where nobody hears it.

    No setting silences it. It comes with the first program that is opened: a sum is opened first,
    and what else is said meanwhile is passed on. The programs of bundles keep their stderr.
    """
    from ai_edge_litert.interpreter import Interpreter  # noqa: PLC0415 - as below

    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            Interpreter(model_content=SUM, num_threads=1).allocate_tensors()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        os.write(2, said.read().replace(_BANNER, b""))


def _tensors(details: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    return {
        name: Tensor(
            np.dtype(one["dtype"]).name,
            [int(dim) if dim >= 0 else None for dim in one["shape_signature"]],
        )
        for name, one in details.items()
    }


def _line(error: Exception) -> str:
    """LiteRT's message on one line."""
    return " ".join(str(error).split())
