"""Opens a bundle's programs on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._backend import Kernels, ProgramSource
from protofleet.runtime._choice import BackendName, open_backend
from protofleet.runtime._infer import LAYERS, InferProgram
from protofleet.runtime._program import LazyProgram
from protofleet.runtime._train import TrainProgram
from protofleet.strategies.tasks import TASKS
from protofleet.strategies.types import TASK_LOSS, GradFn
from protofleet.tensors import Layout, Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """A bundle's programs, ready to run.

    A program is loaded at its first call. Calls of one program exclude each other; different
    programs may run in different threads.

    Attributes:
        backend: who runs them.
        grad_fns: training programs by objective; that of the task's own loss also as
            ``TASK_LOSS``.
        eval_batch: examples evaluated together unless a call says otherwise. ALP couples the
            examples of a batch, so the number belongs to the result.
        min_batch: fewest examples that all training programs take at once.
        uses_kernels: whether ``protofleet.kernels`` computes ALP nodes.
    """

    backend: Literal["onnx", "litert"]
    grad_fns: Mapping[str, GradFn]
    eval_batch: int
    min_batch: int
    uses_kernels: bool
    _name: str
    _infer: InferProgram | None
    _features: InferProgram | None

    def predict(
        self,
        network: Network,
        x: NDArray[np.float32],
        *,
        batch_size: int | None = None,
    ) -> NDArray[np.float32]:
        """Logits ``(n, C) float32`` of ``x``, ``(n, …) float32``; a regression's values ``(n, T)``.

        Batches are consecutive rows, the last one partial; ``batch_size=1`` scores every example
        on its own.

        Raises:
            InputError: parameters, buffers or ``x`` do not fit the program.
            ProvisionError: the bundle has no such program, or it failed.
        """
        program = _required(self._infer, self._name, "infer")
        return program(network, x, self.eval_batch if batch_size is None else batch_size)

    def features(
        self,
        network: Network,
        x: NDArray[np.float32],
        *,
        batch_size: int | None = None,
    ) -> NDArray[np.float32]:
        """Features ``(n, …) float32`` of ``x``; batches and errors as in ``predict``."""
        program = _required(self._features, self._name, "features")
        return program(network, x, self.eval_batch if batch_size is None else batch_size)

    def into_last_layer(
        self,
        network: Network,
        x: NDArray[np.float32],
        *,
        batch_size: int | None = None,
    ) -> NDArray[np.float32]:
        """What the last dense layer makes the outputs of, ``(n, d) float32``.

        Features, but of a head of several layers the activations before the last one. Batches and
        errors as in ``predict``.
        """
        program = _required(self._features, self._name, "features")
        size = self.eval_batch if batch_size is None else batch_size
        return (program.penultimate if program.tells_penultimate else program)(network, x, size)

    def layers(
        self,
        network: Network,
        x: NDArray[np.float32],
        *,
        batch_size: int | None = None,
    ) -> dict[str, NDArray[np.float32]]:
        """Activations ``(n, units) float32`` of the hidden layers after their ReLU.

        Keys are the layers' names: ``<name>.weight`` and ``<name>.bias`` are their parameters.
        Batches and errors as in ``predict``.

        Raises:
            ProvisionError: also where the bundle's model does not tell its layers.
        """
        program = _required(self._features, self._name, "features")
        if not program.layers:
            raise ProvisionError(
                f"{self._name}: its program 'features' has no outputs '{LAYERS}<name>'; export it "
                "with --strategy fedsub, which finds them"
            )
        size = self.eval_batch if batch_size is None else batch_size
        found = program.activations(network, x, size)
        return {key.removeprefix(LAYERS): values for key, values in found.items()}


def open_programs(
    bundle: ProgramSource,
    *,
    threads: int = 1,
    eval_batch: int = 32,
    kernels: Kernels = "auto",
    backend: BackendName = "auto",
) -> Programs:
    """Prepare the programs of ``bundle``.

    Args:
        bundle: a verified bundle.
        threads: threads of the runtime and of the kernels.
        eval_batch: examples evaluated together by default.
        kernels: who computes ALP nodes.
        backend: who runs the programs.

    Raises:
        InputError: ``threads`` or ``eval_batch`` below 1, a backend that is not installed, or
            ``kernels="custom"`` where they cannot be had.
        ProvisionError: a program's ports contradict the manifest, or the bundle holds nothing for
            the backend.
    """
    for name, value in (("threads", threads), ("eval_batch", eval_batch)):
        if value < 1:
            raise InputError(f"{name}: expected at least 1, got {value}")
    manifest = bundle.manifest
    layouts = (
        Layout.of({tensor.name: tensor.shape for tensor in manifest.params}),
        Layout.of({tensor.name: tensor.shape for tensor in manifest.state}),
    )
    programs = {name: p for name, p in manifest.programs.items() if p.precision == "float32"}
    opened = open_backend(backend, bundle, programs, threads=threads, kernels=kernels)
    sources = {
        name: LazyProgram(name, program, layouts, opened) for name, program in programs.items()
    }
    inference = {
        name: InferProgram(sources[name], output)
        for name, output in (("infer", "logits"), ("features", "features"))
        if name in sources
    }
    grad_fns: dict[str, GradFn] = {
        source.program.objective: TrainProgram(source)
        for source in sources.values()
        if source.program.objective is not None
    }
    loss = TASKS[manifest.task].loss_of(grad_fns)
    if loss in grad_fns:
        grad_fns[TASK_LOSS] = grad_fns[loss]
    return Programs(
        backend=opened.name,
        grad_fns=grad_fns,
        eval_batch=eval_batch,
        min_batch=max((program.min_batch for program in programs.values()), default=1),
        uses_kernels=opened.uses_kernels,
        _name=f"bundle '{manifest.name}'",
        _infer=inference.get("infer"),
        _features=inference.get("features"),
    )


def _required(program: InferProgram | None, bundle: str, name: str) -> InferProgram:
    if program is None:
        raise ProvisionError(f"{bundle}: has no program '{name}'; export the model anew")
    return program
