"""Draws the inputs of a program so that every term of it shows in the comparison with PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Port
from protofleet.export.capture import CapturedProgram

Arrays = dict[str, NDArray[Any]]

Runner = Callable[[Arrays], Mapping[str, NDArray[Any]]]
"""Runs a program: inputs by port name → outputs by port name."""

_SMALLEST_NUMBER = 0.1


def draw_inputs(
    program: CapturedProgram,
    initial: Mapping[str, NDArray[Any]],
    size: int,
    rng: np.random.Generator,
    *,
    vocabulary: int | None = None,
) -> Arrays:
    """Arrays by port name.

    Args:
        program: its ports, and its objective for what their values mean.
        initial: parameters and state by key; drawn are values near them.
        size: the batch size.
        rng: draws.
        vocabulary: examples are whole numbers from 0 to below this; None: any numbers.
    """
    return {
        port.name: _draw(port, program, _shape(port, size), rng, vocabulary)
        if port.role in ("input", "noise")
        else _near(port, initial[port.key], rng)
        for port in program.inputs
    }


def _shape(port: Port, batch: int) -> tuple[int, ...]:
    return tuple(
        d if isinstance(d, int) else batch * int(d.removeprefix("batch").removeprefix("*") or 1)
        for d in port.shape
    )


def _near(port: Port, value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    if port.role == "param":
        near = value + rng.normal(0, 0.1 * value.std() + 0.01, value.shape)
    else:
        # Variances must stay positive, and means that start at zero must not stay there; but of
        # activations that are smaller than their mean a ReLU leaves nothing to compare.
        least = max(float(np.abs(value).mean()), _SMALLEST_NUMBER) if value.size else 0.0
        near = value * (1 + 0.1 * rng.random(value.shape)) + 0.1 * least * rng.random(value.shape)
    return np.asarray(near, np.float32)


def _draw(
    port: Port,
    program: CapturedProgram,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    vocabulary: int | None,
) -> NDArray[Any]:
    declared = program.objective.inputs.get(port.key) if program.objective else None
    of_examples = port.role == "input" and (declared is None or declared.shape is None)
    if vocabulary is not None and of_examples:
        # Small numbers often: repeated ones, and 0 for padding.
        return np.floor(vocabulary * rng.random(shape) ** 4).astype(port.dtype)
    if port.dtype == "int64":
        # Two classes exist in every model that can be trained.
        return _both(shape, rng)
    if declared is not None and declared.flags:
        return _both(shape, rng).astype(np.float32)
    if port.role == "input" and not shape:
        return np.asarray(rng.uniform(_SMALLEST_NUMBER, 1), np.float32)
    if port.distribution == "uniform":
        return rng.random(shape, dtype=np.float32)
    return rng.standard_normal(shape).astype(np.float32)


def _both(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    """Zeros and ones in turns: both occur."""
    turns = np.arange(math.prod(shape)) + rng.integers(2)
    return np.asarray(turns % 2, np.int64).reshape(shape)
