"""A bundle's model as a classifier of its own, at a precision and with the bundle's own values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._backend import BackendName, ProgramSource, open_backend
from protofleet.runtime._infer import InferProgram
from protofleet.runtime._program import Source
from protofleet.wire.manifest import Precision
from protofleet.wire.tensors import Layout, Model, TensorMap


class ModelSource(ProgramSource, Protocol):
    """What a classifier needs of a bundle."""

    def model(self) -> Model:
        """The bundle's initial values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """Logits of examples by the bundle's own parameters and state.

    Attributes:
        backend: who runs it.
        precision: of its weights.
    """

    backend: Literal["onnx", "litert"]
    precision: Precision
    _program: InferProgram
    _values: tuple[TensorMap, TensorMap]

    def predict(self, x: NDArray[np.float32], *, batch_size: int = 1) -> NDArray[np.float32]:
        """Logits ``(n, C) float32`` of ``x``, ``(n, …) float32``.

        Batches are consecutive rows, the last one partial.

        Raises:
            InputError: ``x`` does not fit the program, or ``batch_size`` is below 1.
            ProvisionError: the program failed or does not fit its manifest.
        """
        return self._program(*self._values, x, batch_size)


def open_classifier(
    bundle: ModelSource,
    *,
    precision: Precision = "float32",
    backend: BackendName = "auto",
    threads: int = 1,
) -> Classifier:
    """Prepare the bundle's classifier of a precision; it is loaded at its first call.

    Args:
        bundle: a verified bundle.
        precision: ``float32`` is the program ``infer`` with the bundle's parameters; the others
            have values of their own: ``infer_float16``, ``infer_int8``.
        backend: who runs it.
        threads: threads of the runtime.

    Raises:
        InputError: ``threads`` below 1, or a backend that is not installed.
        ProvisionError: the bundle has no such program, or its ports contradict the manifest.
    """
    if threads < 1:
        raise InputError(f"threads: expected at least 1, got {threads}")
    baked = precision != "float32"
    name = f"infer_{precision}" if baked else "infer"
    program = bundle.manifest.programs.get(name)
    if program is None or program.precision != precision:
        raise ProvisionError(
            f"bundle '{bundle.manifest.name}': has no {precision} program '{name}', only "
            f"{sorted(bundle.manifest.programs)}"
        )
    opened = open_backend(backend, bundle, {name: program}, threads=threads, kernels="auto")
    values = _none() if baked else _own(bundle)
    source = Source(name, program, (values[0].layout, values[1].layout), opened)
    return Classifier(
        backend=opened.name,
        precision=precision,
        _program=InferProgram(source, "logits"),
        _values=values,
    )


def _own(bundle: ModelSource) -> tuple[TensorMap, TensorMap]:
    model = bundle.model()
    return model.params, model.state


def _none() -> tuple[TensorMap, TensorMap]:
    empty = Layout(())
    return TensorMap.zeros(empty), TensorMap.zeros(empty)
