"""Optimisers on packed buffers: settings as they stand in a file, and moments that may be kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import is_
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import EpsForm, bound_adam, bound_sgd, clip_by_norm
from protofleet.strategies.bounds import Bounded, Bounds, LearningRate, Share, Weight
from protofleet.tensors import Layout, TensorMap, Tensors

_PREFIX = "optimiser/"


OptimiserKind = Literal["adam", "sgd"]
LADDERS: Mapping[OptimiserKind, tuple[float, ...]] = {
    "adam": (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1),
    "sgd": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0),
}
"""Rates that are tried where one is to be found, ascending, half a power of ten apart.

Steps of gradient descent grow with the numbers that a model predicts, Adam's do not."""


_BelowOne = Annotated[float, Bounds(0, math.nextafter(1, 0))]


class _Record(Bounded, frozen=True, kw_only=True, tag_field="kind"):
    place: ClassVar[str] = "optimiser."


class Sgd(_Record, frozen=True, tag="sgd"):
    """Stochastic gradient descent as in ``torch.optim.SGD``; in TOML ``kind = "sgd"``.

    Attributes:
        lr: learning rate.
        momentum: share of the velocity that stays, in [0, 1].
        weight_decay: factor of the parameters added to their gradient.
    """

    lr: LearningRate = 0.1
    momentum: Share = 0.0
    weight_decay: Weight = 0.0


class Adam(_Record, frozen=True, tag="adam"):
    """Adam with Keras' defaults; in TOML ``kind = "adam"``.

    Attributes:
        lr: learning rate.
        beta1: share of the gradients' moving mean that stays, in [0, 1).
        beta2: share of their squares' moving mean that stays, in [0, 1).
        eps: added to the root.
        eps_form: ``keras`` adds eps before the bias correction, ``torch`` after it.
        weight_decay: factor of the parameters added to their gradient (L2).
    """

    lr: LearningRate = 0.002
    beta1: _BelowOne = 0.9
    beta2: _BelowOne = 0.999
    eps: Annotated[float, Bounds(1e-20)] = 1e-7
    eps_form: EpsForm = "keras"
    weight_decay: Weight = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tensors that one optimiser moves.

    Attributes:
        names: of parameters; None: all.
        optimiser: its settings.
    """

    optimiser: Adam | Sgd
    names: Collection[str] | None = None


class Optimiser:
    """Moves the parameters of some groups; those of no group stay as they are.

    Args:
        layout: of the parameters.
        groups: no tensor in two of them.
        moments: what ``moments`` returned in an earlier round; None or without moments: fresh ones.

    Raises:
        InputError: a group names no tensor of the layout, or kept moments of other shapes.
    """

    def __init__(
        self, layout: Layout, groups: Sequence[Group], moments: Tensors | None = None
    ) -> None:
        self._parts = [
            _Part(f"{_PREFIX}{index}.", _runs(layout, group.names), group.optimiser)
            for index, group in enumerate(groups)
        ]
        moved = {name for g in groups for name in (layout.shapes if g.names is None else g.names)}
        self._frozen = _runs(layout, layout.shapes.keys() - moved)
        self._operands: tuple[object, ...] = (None, None, None, None)
        if moments is not None and any(name.startswith(_PREFIX) for name in moments):
            for part in self._parts:
                part.restore(moments)

    def step(
        self,
        params: TensorMap,
        grads: TensorMap,
        *,
        proximal: tuple[float, TensorMap] | None = None,
        correction: TensorMap | None = None,
    ) -> None:
        """Move ``params`` in place.

        Args:
            params: of the layout; written.
            grads: of the same layout.
            proximal: mu and w: ``mu (params - w)`` is added to the gradient.
            correction: added to the gradient (SCAFFOLD's ``c - c_i``).

        Steps on the very same arrays as the one before it are cheaper: those are not looked at
        again.
        """
        operands = (params, grads, proximal, correction)
        if not all(map(is_, operands, self._operands)):
            for part in self._parts:
                part.bind(params, grads, proximal, correction)
            self._operands = operands
        for part in self._parts:
            part.step()

    def clip(self, grads: TensorMap, max_norm: float) -> None:
        """Scale the gradients of all groups together, in place, to a norm of at most that."""
        for run in self._frozen:
            grads.buffer[run] = 0.0
        clip_by_norm(grads.buffer, max_norm)

    def moments(self) -> dict[str, NDArray[Any]]:
        """What a device must keep to go on in the next round."""
        return {name: value for part in self._parts for name, value in part.moments().items()}


class _Part:
    """One group: its runs of the buffer and their moments."""

    def __init__(self, prefix: str, runs: tuple[slice, ...], settings: Adam | Sgd) -> None:
        self._prefix = prefix
        self._runs = runs
        self._settings = msgspec.structs.asdict(settings)
        self._bind = _bind_sgd if isinstance(settings, Sgd) else _bind_adam
        self._count = 1 if isinstance(settings, Sgd) else 2
        self._size = sum(run.stop - run.start for run in runs)
        self._steps = 0
        self._moves: list[Callable[[int], None]] = []

    @cached_property
    def _moments(self) -> list[NDArray[np.float32]]:
        """Made when they are asked for: a client with too few examples makes no step."""
        return [np.zeros(self._size, np.float32) for _ in range(self._count)]

    def bind(
        self,
        params: TensorMap,
        grads: TensorMap,
        proximal: tuple[float, TensorMap] | None,
        correction: TensorMap | None,
    ) -> None:
        self._moves = []
        start = 0
        for run in self._runs:
            stop = start + run.stop - run.start
            extras = {
                "proximal": proximal and (proximal[0], proximal[1].buffer[run]),
                "correction": None if correction is None else correction.buffer[run],
            }
            moments = [moment[start:stop] for moment in self._moments]
            buffers = params.buffer[run], grads.buffer[run]
            self._moves.append(self._bind(buffers, moments, {**self._settings, **extras}))
            start = stop

    def step(self) -> None:
        self._steps += 1
        for move in self._moves:
            move(self._steps)

    def moments(self) -> dict[str, NDArray[Any]]:
        named: dict[str, NDArray[Any]] = {
            f"{self._prefix}{index}": moment for index, moment in enumerate(self._moments)
        }
        named[f"{self._prefix}steps"] = np.array(self._steps, np.int64)
        return named

    def restore(self, kept: Tensors) -> None:
        for name, fresh in self.moments().items():
            found = kept.get(name)
            if found is None or found.shape != fresh.shape or found.dtype != fresh.dtype:
                got = "nothing" if found is None else f"{found.shape} {found.dtype}"
                raise InputError(
                    f"kept moments '{name}': expected {fresh.shape} {fresh.dtype}, got {got}"
                )
        self._moments = [np.array(kept[f"{self._prefix}{index}"]) for index in range(self._count)]
        self._steps = int(kept[f"{self._prefix}steps"])


_Buffers = tuple[NDArray[np.float32], NDArray[np.float32]]


def _bind_sgd(
    buffers: _Buffers, moments: list[NDArray[np.float32]], options: dict[str, Any]
) -> Callable[[int], None]:
    move = bound_sgd(*buffers, *moments, **options)
    return lambda _step: move()


def _bind_adam(
    buffers: _Buffers, moments: list[NDArray[np.float32]], options: dict[str, Any]
) -> Callable[[int], None]:
    return bound_adam(*buffers, *moments, **options)


def _runs(layout: Layout, names: Collection[str] | None) -> tuple[slice, ...]:
    """Parts of the buffer that hold the named tensors, neighbours joined."""
    known = layout.shapes.keys()
    if names is None:
        return (slice(0, layout.size),)
    if unknown := set(names) - known:
        raise InputError(
            f"optimiser: expected names of parameters ({', '.join(known)}), got '{min(unknown)}'"
        )
    runs: list[slice] = []
    for spec in layout.specs:
        if spec.name not in names:
            continue
        start = spec.offset
        if runs and runs[-1].stop == start:
            start = runs.pop().start
        runs.append(slice(start, spec.offset + spec.size))
    return tuple(runs)
