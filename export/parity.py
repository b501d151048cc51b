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

ReLU and max pooling make the gradient a step too, and in a deep network some unit always lies
within rounding of its step. So a difference counts if the reference stands still: if changing its
parameters by a few roundings moves a tensor of the reference itself by more than the tolerance, the
inputs say nothing and others are drawn. No program passes without agreeing in every tensor.
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
from protofleet.export.parity_inputs import draw_inputs

TOLERANCE = 1e-4
MIN_MARGIN = 2e-5
_SMALL_GRADIENT = 1e-2
_TINY = 1e-12
_MAX_DRAWS = 50
# What rounding adds up to in a deep network; a unit near its step crosses it in half of the trials.
_NUDGE = 2e-6
_NUDGES = 8

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
        worst = max(worst, _compare(reference, every, name, size, tolerance, rng))
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
        self.params = [port.name for port in program.inputs if port.role == "param"]
        self._initial = {key: value.numpy().copy() for key, value in self._tensors.items()}

    def draw(self, size: int, rng: np.random.Generator) -> Arrays:
        """Inputs by port name."""
        words = getattr(self._model, "vocabulary", None)
        return draw_inputs(self._program, self._initial, size, rng, vocabulary=words)

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


def _compare(  # noqa: PLR0913, PLR0917 - parts of one comparison
    reference: _Reference,
    runners: Mapping[str, Runner],
    name: str,
    size: int,
    tolerance: float,
    rng: np.random.Generator,
) -> tuple[float, str]:
    """The largest error and its tensor, at inputs on which every runner agrees.

    Raises:
        ExportError: a runner differs although the reference stands still.
    """
    for _ in range(_MAX_DRAWS):
        feed, expected = _generic_case(reference, size, rng)
        worst, where = (0.0, next(iter(expected))), ""
        for runner, run in runners.items():
            errors = _errors(expected, run(feed), f"program '{name}' in {runner}, batch {size}")
            largest = max((error, tensor) for tensor, error in errors.items())
            worst, where = max((worst, where), (largest, runner))
        if worst[0] <= tolerance:
            return worst
        if _stands_still(reference, feed, expected, tolerance, rng):
            raise ExportError(
                f"program '{name}', tensor '{worst[1]}': {where} differs from PyTorch by "
                f"{worst[0]:.2e} of the tensor's largest entry at batch size {size}, expected at "
                f"most {tolerance:.0e}"
            )
    raise ExportError(
        f"program '{name}': at none of {_MAX_DRAWS} inputs of batch size {size} does it agree with "
        f"PyTorch, and PyTorch's own result moves by more than {tolerance:.0e} when parameters "
        f"do by {_NUDGE:.0e}: nothing can be concluded"
    )


def _stands_still(
    reference: _Reference,
    feed: Arrays,
    expected: Arrays,
    tolerance: float,
    rng: np.random.Generator,
) -> bool:
    """Whether the reference stays where it is when its parameters move by a few roundings."""

    def nudged(value: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(value * (1 + _NUDGE * rng.standard_normal(value.shape)), np.float32)

    for _ in range(_NUDGES):
        params = {name: nudged(feed[name]) for name in reference.params}
        moved, _ = reference({**feed, **params})
        if max(_errors(expected, moved, "reference").values()) > tolerance:
            return False
    return True


def _generic_case(
    reference: _Reference, size: int, rng: np.random.Generator
) -> tuple[Arrays, Arrays]:
    """Inputs whose every ALP decision is clear, and the reference's results."""
    for _ in range(_MAX_DRAWS):
        feed = reference.draw(size, rng)
        expected, margin = reference(feed)
        if margin >= MIN_MARGIN:
            return feed, expected
    raise ExportError(
        f"parity: no input among {_MAX_DRAWS} has clear prototype assignments (plan values apart "
        f"by {MIN_MARGIN:.0e}): are prototypes equal?"
    )


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
