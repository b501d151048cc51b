"""Proves that a written program computes what the PyTorch module computes.

The reference is the user's own module under its own autograd, not the captured graph. Noise is
drawn once and given to both. Every program runs in plain ONNX Runtime, and training and inference
also through ``protofleet.runtime``, the code that a device runs.

What is compared: loss, outputs, new state and every gradient, each by max |a - b| over the largest
entry of the reference tensor. A gradient that cancels to nothing (a bias before a normalisation, a
key's bias in attention) holds only rounding, of the size of single precision at the gradients that
cancel: gradients below a hundredth of the model's largest are measured against that hundredth.

An assignment to a prototype is a step: where two prototypes tie, two correct float orders choose
differently. Inputs are therefore drawn, from the reference alone, until no decision is closer than
``MIN_MARGIN``; whatever differs then is a failure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protofleet.errors import ExportError
from protofleet.export.alp_margin import alp_margins
from protofleet.export.capture import CapturedProgram, evaluate, model_tensors
from protofleet.export.noise import NoiseReplay, explicit_noise
from protofleet.wire.manifest import Port

TOLERANCE = 1e-4
MIN_MARGIN = 2e-5
_SMALL_GRADIENT = 1e-2
_TINY = 1e-12
_MAX_DRAWS = 50

Arrays = dict[str, NDArray[Any]]
Runner = Callable[[Arrays], Mapping[str, NDArray[Any]]]
"""Runs a program: inputs by port name → outputs by port name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRecord:
    """How well one program agrees with PyTorch.

    Attributes:
        program: its name in the bundle.
        tensors: number of output tensors compared.
        worst_error: largest relative difference over tensors, batch sizes and runners.
        worst_tensor: port where it occurred.
        program_bytes: size of the file.
    """

    program: str
    tensors: int
    worst_error: float
    worst_tensor: str
    program_bytes: int


def check_parity(  # noqa: PLR0913 - options by keyword
    model: nn.Module,
    program: CapturedProgram,
    data: bytes,
    *,
    name: str,
    runners: Mapping[str, Runner] | None = None,
    batch_sizes: Sequence[int] = (3, 8),
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> ParityRecord:
    """Compare ``data`` with ``model``.

    Args:
        model: the module that was captured; left as it is.
        program: its capture, for the ports.
        data: the ONNX file.
        name: the program's name, for messages.
        runners: further ways to run the program, by name; plain ONNX Runtime is always one.
        batch_sizes: batches to compare.
        tolerance: largest relative difference allowed.
        seed: of parameters near the initial ones, inputs and noise.

    Raises:
        ExportError: a tensor differs by more than ``tolerance``, is not finite, or has another
            shape; the message names it.
    """
    rng = np.random.default_rng(seed)
    reference = _Reference(model, program)
    every = {"ONNX Runtime": stock_runner(data), **(runners or {})}
    worst = (0.0, program.outputs[0].name)
    for size in batch_sizes:
        feed, expected = _generic_case(reference, program, size, rng)
        for runner_name, run in every.items():
            got = run(feed)
            errors = _errors(expected, got, f"program '{name}' in {runner_name}, batch {size}")
            tensor, error = max(errors.items(), key=lambda item: item[1])
            if not error <= tolerance:
                raise ExportError(
                    f"program '{name}', tensor '{tensor}': {runner_name} differs from PyTorch by "
                    f"{error:.2e} of the tensor's largest entry at batch size {size}, expected at "
                    f"most {tolerance:.0e}"
                )
            worst = max(worst, (error, tensor))
    return ParityRecord(
        program=name,
        tensors=len(program.outputs),
        worst_error=worst[0],
        worst_tensor=worst[1],
        program_bytes=len(data),
    )


def stock_runner(data: bytes) -> Runner:
    """Plain ONNX Runtime: ALP nodes run by the definition that the model carries."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(feed: Arrays) -> Mapping[str, NDArray[Any]]:
        return dict(zip(names, session.run(None, feed), strict=True))

    return run


class _Reference:
    """The user's module, on a copy of its own, as a function of the program's inputs."""

    def __init__(self, model: nn.Module, program: CapturedProgram) -> None:
        self._model = copy.deepcopy(model).train(program.objective is not None)
        self._program = program
        tensors = model_tensors(self._model)
        # Views into the copy: writing to them sets the module's tensors.
        self._tensors = tensors.params | tensors.state
        self.initial = {key: value.numpy().copy() for key, value in self._tensors.items()}

    def __call__(self, feed: Arrays) -> tuple[Arrays, float]:
        """Expected outputs by port name, and the closest decision of an ALP layer."""
        program, batch, noise = self._program, {}, []
        for port in program.inputs:
            if port.role in ("param", "state"):
                self._tensors[port.key].copy_(torch.from_numpy(feed[port.name]))
            elif port.role == "input":
                batch[port.key] = torch.from_numpy(feed[port.name])
            else:
                noise.append(torch.from_numpy(feed[port.name]))
        self._model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(program.objective is not None):
            with explicit_noise(NoiseReplay(noise)), alp_margins() as margins:
                loss, outputs = evaluate(
                    self._model, program.objective, batch, features=program.features
                )
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call]
        return self._results(loss, outputs), min(margins, default=1.0)

    def _results(self, loss: Tensor | None, outputs: Mapping[str, Tensor]) -> Arrays:
        params = dict(self._model.named_parameters())
        results: Arrays = {}
        for port in self._program.outputs:
            if port.role == "loss" and loss is not None:
                value: Tensor | None = loss
            elif port.role == "grad":
                value = params[port.key].grad
                value = torch.zeros_like(params[port.key]) if value is None else value
            else:
                value = self._tensors[port.key] if port.role == "state" else outputs[port.key]
            if value is not None:
                results[port.name] = value.detach().numpy().copy()
        return results


def _generic_case(
    reference: _Reference, program: CapturedProgram, size: int, rng: np.random.Generator
) -> tuple[Arrays, Arrays]:
    """Inputs whose every ALP decision is clear, and the reference's results."""
    for _ in range(_MAX_DRAWS):
        feed = {port.name: _draw(port, reference.initial, size, rng) for port in program.inputs}
        expected, margin = reference(feed)
        if margin >= MIN_MARGIN:
            return feed, expected
    raise ExportError(
        f"parity: no input among {_MAX_DRAWS} has clear prototype assignments (plan values apart "
        f"by {MIN_MARGIN:.0e}): are prototypes equal?"
    )


def _draw(
    port: Port, initial: Mapping[str, NDArray[Any]], size: int, rng: np.random.Generator
) -> NDArray[Any]:
    shape = tuple(
        d if isinstance(d, int) else size * int(d.removeprefix("batch").removeprefix("*") or 1)
        for d in port.shape
    )
    if port.role == "param":
        value = initial[port.key]
        near: NDArray[Any] = value + rng.normal(0, 0.1 * value.std() + 0.01, shape)
    elif port.role == "state":
        # Variances must stay positive.
        near = initial[port.key] * (1 + 0.1 * rng.random(shape))
    elif port.dtype == "int64":
        # Two classes exist in every model that can be trained.
        return np.asarray(rng.integers(0, 2, shape))
    elif port.distribution == "uniform":
        near = rng.random(shape, dtype=np.float32)
    else:
        near = rng.standard_normal(shape)
    return np.asarray(near, np.float32)


def _errors(expected: Arrays, got: Mapping[str, NDArray[Any]], what: str) -> dict[str, float]:
    largest = {name: float(np.abs(value).max(initial=0.0)) for name, value in expected.items()}
    gradients = [value for name, value in largest.items() if name.startswith("grad.")]
    least = _SMALL_GRADIENT * max(gradients, default=0.0)
    errors = {}
    for name, value in got.items():
        if value.shape != expected[name].shape or not np.isfinite(value).all():
            raise ExportError(
                f"{what}, tensor '{name}': expected finite {expected[name].shape}, "
                f"got {value.shape} with {int((~np.isfinite(value)).sum())} not finite"
            )
        scale = max(largest[name], least if name.startswith("grad.") else 0.0, _TINY)
        errors[name] = float(np.abs(value - expected[name]).max(initial=0.0)) / scale
    return errors
