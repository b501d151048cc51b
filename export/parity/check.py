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
within rounding of its step. So a difference counts if the reference stands still: if moving its
parameters by a few roundings moves the reference itself by more than the tolerance, the inputs say
nothing and others are drawn. Where none of a few draws stands still, as in ResNet-50, the proof
takes two halves. In double precision, where steps are not met by chance, the captured graph has to
agree with the module in every tensor; in single precision the written program has to agree in the
loss, the state and the outputs, and its gradients may be ``LEEWAY`` times as far from the double
ones as PyTorch's own. The record says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import nn

from protofleet.errors import ExportError
from protofleet.export.batch_of_one import where_one_differs
from protofleet.export.capture import CapturedProgram
from protofleet.export.parity.failures import failures_told, told
from protofleet.export.parity.inputs import Arrays, Runner
from protofleet.export.parity.reference import Reference, run_in_double

TOLERANCE = 1e-4
_STOCK = "ONNX Runtime"
MIN_MARGIN = 2e-5
LEEWAY = 10
_SMALL_GRADIENT = 1e-2
_TINY = 1e-12
_MARGIN_DRAWS = 25
_GROWTHS = (1, 4, 16)
# A network's own rounding before its alignment layers, sharpened by the plan, may pass the least
# margin; it does not pass this one.
_CLEAR_MARGIN = 1e-3
_STEADY_DRAWS = 4
# What rounding adds up to in a deep network; a unit near its step crosses it in half of the trials.
_NUDGE = 2e-6
_NUDGES = 8

Worst = tuple[float, str]
"""The largest error of several tensors, and whose it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRecord:
    """How well one program agrees with PyTorch.

    Attributes:
        program: its name in the bundle.
        tensors: number of output tensors compared.
        worst_error: largest relative difference over tensors, batch sizes and runners.
        worst_tensor: port where it occurred.
        program_bytes: size of the ONNX file; 0 where there is none.
        by_runner: the largest difference in each way of running it, e.g. ``LiteRT``.
        gradient_noise: 0 where everything was compared in single precision. Else gradients in
            ``worst_error`` are the captured graph's in double precision, and this is the largest
            difference of the written program's, within ``LEEWAY`` times PyTorch's own.
    """

    program: str
    tensors: int
    worst_error: float
    worst_tensor: str
    program_bytes: int
    by_runner: Mapping[str, float]
    gradient_noise: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is compared, the same for all batch sizes."""

    name: str
    model: nn.Module
    program: CapturedProgram
    runners: Mapping[str, Runner]
    reference: Reference
    tolerance: float
    rng: np.random.Generator


def check_parity(  # noqa: PLR0913 - options by keyword
    model: nn.Module,
    program: CapturedProgram,
    data: bytes | None,
    *,
    name: str,
    runners: Mapping[str, Runner] | None = None,
    tokens: int | None = None,
    batch_sizes: Sequence[int] = (),
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> ParityRecord:
    """Compare ``data`` with ``model``.

    Args:
        model: the module that was captured; left as it is.
        program: its capture, for the ports.
        data: the ONNX file, which plain ONNX Runtime runs; None where there is none.
        name: the program's name, for messages.
        runners: further ways to run the program, by name.
        tokens: examples are int64 numbers below this; None: float32.
        batch_sizes: batches to compare; none: 3 and 8, and of inference also 1, which PyTorch
            may compute by other operators than the captured ones.
        tolerance: largest relative difference allowed.
        seed: of parameters near the initial ones, inputs and noise.

    Raises:
        ExportError: a tensor differs by more than ``tolerance``, is not finite, or has another
            shape; the message names it. Or a runtime fails; the message names the model's line.
    """
    all_runners = dict(runners or {})
    if data is not None:
        with failures_told(program, name, _STOCK):
            all_runners = {_STOCK: stock_runner(data)} | all_runners
    case = _Case(
        name=name,
        model=model,
        program=program,
        runners={r: told(program, name, r, run) for r, run in all_runners.items()},
        reference=Reference(model, program, tokens=tokens),
        tolerance=tolerance,
        rng=np.random.default_rng(seed),
    )
    found = [_compared(case, size) for size in batch_sizes or _sizes(program)]
    by_runner = {r: max(errors[r] for errors, _ in found) for r in case.runners}
    worst, noise = max(by_runner.values()), max(noise for _, noise in found)
    return ParityRecord(
        program=name,
        tensors=len(program.outputs),
        worst_error=worst[0],
        worst_tensor=worst[1],
        program_bytes=0 if data is None else len(data),
        by_runner={runner: error for runner, (error, _) in by_runner.items()},
        gradient_noise=noise,
    )


def _sizes(program: CapturedProgram) -> Sequence[int]:
    return (3, 8) if program.objective is not None else (3, 8, 1)


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


def _compared(case: _Case, size: int) -> tuple[dict[str, Worst], float]:
    """As ``_compare``; what is wrong of one example only is told with the model's line."""
    try:
        return _compare(case, size)
    except ExportError as error:
        place = (
            where_one_differs(case.model, case.reference.examples(case.rng)) if size == 1 else ""
        )
        if not place:
            raise
        raise ExportError(
            f"{place}: one example is computed otherwise than several, but a program computes "
            f"every batch alike: let nothing depend on how many there are ({error})"
        ) from error


def _compare(case: _Case, size: int) -> tuple[dict[str, Worst], float]:
    """The largest error by runner at one batch size, and the noise as in ``ParityRecord``.

    Raises:
        ExportError: a runner differs although the reference stands still, or one half of the
            proof for a reference that does not fails.
    """
    for _ in range(_STEADY_DRAWS):
        feed, expected, margin = _generic_case(case, size)
        errors = {r: _worst(case, size, r, expected, feed) for r in case.runners}
        worst, runner = max((error, r) for r, error in errors.items())
        if worst[0] <= case.tolerance:
            return errors, 0.0
        movement = _movement(case, feed, expected)
        if movement <= case.tolerance and margin >= _CLEAR_MARGIN:
            raise _differs(case, size, f"{runner} differs from PyTorch", worst, case.tolerance)
    return _compare_halves(case, size, feed, expected, movement)


def _compare_halves(
    case: _Case, size: int, feed: Arrays, expected: Arrays, movement: float
) -> tuple[dict[str, Worst], float]:
    """The captured graph in double precision, then the written program in single precision."""
    exact, _ = Reference(case.model, case.program, dtype=torch.float64)(feed)
    own = max(movement, *_errors(exact, expected, "PyTorch").values())
    doubled = run_in_double(case.program, feed)
    worst = _largest(_errors(exact, doubled, f"program '{case.name}' in double precision"))
    if worst[0] > case.tolerance:
        what = "the captured graph differs from PyTorch in double precision"
        raise _differs(case, size, what, worst, case.tolerance)
    noise, by_runner = 0.0, {}
    for runner, run in case.runners.items():
        errors = _errors(exact, run(feed), f"program '{case.name}' in {runner}, batch {size}")
        gradients = _largest({t: e for t, e in errors.items() if t.startswith("grad.")})
        others = _largest({t: e for t, e in errors.items() if not t.startswith("grad.")})
        for found, allowed in ((others, case.tolerance), (gradients, LEEWAY * own)):
            if found[0] > allowed:
                raise _differs(case, size, f"{runner} differs from PyTorch", found, allowed)
        by_runner[runner] = max(worst, others)
        noise = max(noise, gradients[0])
    return by_runner, noise


def _worst(case: _Case, size: int, runner: str, expected: Arrays, feed: Arrays) -> Worst:
    got = case.runners[runner](feed)
    return _largest(_errors(expected, got, f"program '{case.name}' in {runner}, batch {size}"))


def _largest(errors: Mapping[str, float]) -> Worst:
    return max(((error, tensor) for tensor, error in errors.items()), default=(0.0, ""))


def _differs(case: _Case, size: int, what: str, worst: Worst, allowed: float) -> ExportError:
    return ExportError(
        f"program '{case.name}', tensor '{worst[1]}': {what} by {worst[0]:.2e} of the tensor's "
        f"largest entry at batch size {size}, expected at most {allowed:.0e}"
    )


def _movement(case: _Case, feed: Arrays, expected: Arrays) -> float:
    """How far the reference moves when its parameters do by a few roundings.

    The first movement beyond the tolerance is enough; without one, the largest of all trials.
    """

    def nudged(value: NDArray[Any]) -> NDArray[Any]:
        shift = 1 + _NUDGE * case.rng.standard_normal(value.shape)
        return np.asarray(value * shift, np.float32)

    largest = 0.0
    for _ in range(_NUDGES):
        params = {name: nudged(feed[name]) for name in case.reference.params}
        moved, _ = case.reference({**feed, **params})
        largest = max(largest, *_errors(expected, moved, "PyTorch").values())
        if largest > case.tolerance:
            break
    return largest


def _generic_case(case: _Case, size: int) -> tuple[Arrays, Arrays, float]:
    """Inputs whose every ALP decision is clear, the reference's results, and the margin.

    A few tokens may fill whole prototypes, which are then equally near to them; a larger batch has
    more of them.
    """
    for count in (size * growth for growth in _GROWTHS):
        for _ in range(_MARGIN_DRAWS):
            feed = case.reference.draw(count, case.rng)
            expected, margin = case.reference(feed)
            if margin >= MIN_MARGIN:
                return feed, expected, margin
    raise ExportError(
        f"parity: no input among {_MARGIN_DRAWS * len(_GROWTHS)} has clear prototype assignments "
        f"(plan values apart by {MIN_MARGIN:.0e}): are prototypes equal?"
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
