"""A bundle's model as a classifier with fixed values, at a precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Precision
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._backend import ProgramSource
from protofleet.runtime._choice import BackendName, open_backend
from protofleet.runtime._freeze import Frozen
from protofleet.runtime._infer import InferProgram
from protofleet.runtime._program import LazyProgram
from protofleet.strategies.types import Score
from protofleet.tensors import Layout, Model, Network, TensorMap

_PROGRAMS = {"logits": "infer", "features": "features"}
_NO_TENSORS = TensorMap.zeros(Layout(()))
_NOTHING = Network(params=_NO_TENSORS, buffers=_NO_TENSORS)


class ModelSource(ProgramSource, Protocol):
    """What a classifier needs of a bundle."""

    def model(self) -> Model:
        """The bundle's initial values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """Scores of examples by parameters and buffers that do not change.

    Attributes:
        backend: who runs it.
        precision: of its weights.
    """

    backend: Literal["onnx", "litert"]
    precision: Precision
    _program: InferProgram
    _score: Score | None

    def predict(self, x: NDArray[np.float32], *, batch_size: int = 1) -> NDArray[np.float32]:
        """Logits ``(n, C) float32`` of ``x``, ``(n, …) float32``, or what a ``score`` makes.

        Batches are consecutive rows, the last one partial.

        Raises:
            InputError: ``x`` does not fit the program, or ``batch_size`` is below 1.
            ProvisionError: the program failed or does not fit its manifest.
        """
        found = self._program(_NOTHING, x, batch_size)
        return found if self._score is None else self._score(found)


def open_classifier(  # noqa: PLR0913 - what a caller chooses, each by keyword
    bundle: ModelSource,
    *,
    precision: Precision = "float32",
    model: Network | None = None,
    score: Score | None = None,
    backend: BackendName = "auto",
    threads: int = 1,
) -> Classifier:
    """Prepare a classifier with fixed values; it is loaded at its first call.

    It answers faster than ``Programs.predict``, which reads a network where it lies at the time,
    and it holds a copy of the network.

    Args:
        bundle: a verified bundle.
        precision: ``float32`` is the program ``infer``; the others, ``infer_float16`` and
            ``infer_int8``, have the bundle's values in their files.
        model: parameters and buffers, copied; None: the bundle's own.
        score: classifies features ``(n, d)`` in place of the model's head.
        backend: who runs it.
        threads: threads of the runtime.

    Raises:
        InputError: ``threads`` below 1, a backend that is not installed, ``model`` does not fit
            the bundle, or ``model`` or ``score`` with another precision than ``float32``.
        ProvisionError: the bundle has no such program, or its ports contradict the manifest.
    """
    if threads < 1:
        raise InputError(f"threads: expected at least 1, got {threads}")
    fixed = precision != "float32"
    if fixed and not (model is None and score is None):
        raise InputError(
            f"precision '{precision}': its program has values and a head of its own; leave out "
            "model and score, or make it of that model: protofleet bundle quantise --store"
        )
    output = "logits" if score is None else "features"
    name = f"infer_{precision}" if fixed else _PROGRAMS[output]
    program = bundle.manifest.programs.get(name)
    if program is None or program.precision != precision:
        raise ProvisionError(
            f"bundle '{bundle.manifest.name}': has no {precision} program '{name}', only "
            f"{sorted(bundle.manifest.programs)}"
        )
    source: ProgramSource = bundle
    if not fixed:
        source = frozen = Frozen(bundle, name, bundle.model().network if model is None else model)
        program = frozen.program
    # Of an ALP layer's graph, the runtime computes once what fixed prototypes decide.
    opened = open_backend(backend, source, {name: program}, threads=threads, kernels="graph")
    layouts = (_NO_TENSORS.layout, _NO_TENSORS.layout)
    return Classifier(
        backend=opened.name,
        precision=precision,
        _program=InferProgram(LazyProgram(name, program, layouts, opened), output),
        _score=score,
    )
