"""Local training: passes over a client's examples through one training program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import WeightedMean
from protofleet.strategies.bounds import MOST_BATCH, Bounded, Bounds, Passes
from protofleet.strategies.optimisers import Adam, Group, Optimiser, Sgd
from protofleet.strategies.types import TASK_LOSS, Batch, TrainTools, UnsuitableModelError
from protofleet.tensors import Model, Network, TensorMap, Tensors

ExampleRows = NDArray[np.int64]
"""Numbers of examples."""

REWRITTEN = "_rewritten"
"""A program cannot write a parameter. A buffer of a parameter's name with this behind it, of its
shape, holds after a training call what the call has set the parameter to: a step puts it there
before the optimiser moves it."""


class Training(Bounded, frozen=True, kw_only=True):
    """Local training of one round; the optimiser starts anew each round unless a strategy keeps it.

    Attributes:
        epochs: passes over the local training part.
        batch_size: examples per step; a last batch of fewer than the programs take
            (``TrainTools.min_batch``) is joined to the one before it.
        drop_last: leave out the last batch of an epoch if it is not full. A client with fewer
            examples than ``batch_size`` then does not train.
        clip_norm: largest Euclidean norm of a step's gradient, over all tensors that move; absent:
            no limit.
        optimiser: ``{kind = "adam", …}`` or ``{kind = "sgd", …}``.
    """

    epochs: Passes = 5
    batch_size: Annotated[int, Bounds(1, MOST_BATCH)] = 16
    drop_last: bool = False
    clip_norm: Annotated[float, Bounds(1e-12)] | None = None
    optimiser: Adam | Sgd = Adam()


def _nothing(_rows: ExampleRows) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalObjective:
    """What a client minimises, and by which steps: what a strategy changes about training.

    Attributes:
        loss: name of the training program; the task's own loss unless the method has another.
        inputs: its further inputs for the examples of these numbers.
        groups: what moves, and how; empty: every parameter by ``Training.optimiser``.
        moments: of an earlier round (``Trained.moments``); None: fresh ones.
        proximal: mu and w: ``mu (params - w)`` is added to the gradient.
        correction: added to the gradient.
        max_norm: largest Euclidean norm of a step's gradient with the correction in it; None: no
            limit.
    """

    loss: str = TASK_LOSS
    inputs: Callable[[ExampleRows], Mapping[str, Any]] = _nothing
    groups: Sequence[Group] = field(default_factory=tuple)
    moments: Tensors | None = None
    proximal: tuple[float, TensorMap] | None = None
    correction: TensorMap | None = None
    max_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model after local training.

    Attributes:
        network: the one that was given, where it lies.
        loss: mean over the examples of the last epoch; NaN if no step was made.
        moments: gives those of the optimiser, for a strategy that keeps it.
        steps: how many were made.
    """

    network: Network
    loss: float
    moments: Callable[[], Mapping[str, NDArray[Any]]]
    steps: int


class DivergedError(InputError):
    """A loss became NaN or infinite."""


class Trainer:
    """One network in training, in the memory that it is given in.

    Args:
        network: where it starts. It is the trainer's from here on: every step writes its
            parameters, ``trained`` its buffers. Who needs it as it was passes a copy.
        tools: examples, programs and randomness.
        training: clipping, and the optimiser unless ``objective`` names groups.
        objective: what differs from the task's loss alone on all parameters.
    """

    def __init__(
        self,
        network: Network,
        tools: TrainTools,
        training: Training,
        objective: LocalObjective | None = None,
    ) -> None:
        self._objective = objective or LocalObjective()
        self._tools = tools
        self._clip_norm = training.clip_norm
        groups = self._objective.groups or (Group(optimiser=training.optimiser),)
        self._optimiser = Optimiser(network.params.layout, groups, self._objective.moments)
        self._grad_fn = tools.grad_fns[self._objective.loss]
        self._network = self._now = network
        self._rewritten = [one for one in network.params if one + REWRITTEN in network.buffers]
        self._steps = 0

    @property
    def network(self) -> Network:
        """The network as it is now; the next step overwrites it."""
        return self._now

    def step(self, rows: ExampleRows) -> float:
        """Train on the examples of these numbers; the mean loss before the step.

        Raises:
            DivergedError: the loss became NaN or infinite.
        """
        tools, objective = self._tools, self._objective
        batch: Batch = {"x": tools.x[rows], "y": tools.y[rows], **objective.inputs(rows)}
        step = self._grad_fn(self._now, batch, tools.rng)
        if not math.isfinite(step.loss):
            raise DivergedError(
                f"{tools.name}: expected a finite loss of '{objective.loss}', got {step.loss}; "
                "lower the learning rate or check the data"
            )
        for parameter in self._rewritten:
            self._network.params[parameter][...] = step.buffers[parameter + REWRITTEN]
        if self._clip_norm is not None:
            self._optimiser.clip(step.grads, self._clip_norm)
        correction = objective.correction
        if objective.max_norm is not None:
            if correction is not None:
                step.grads.buffer += correction.buffer
                correction = None
            self._optimiser.clip(step.grads, objective.max_norm)
        self._optimiser.step(
            self._network.params, step.grads, proximal=objective.proximal, correction=correction
        )
        if step.buffers is not self._now.buffers:
            self._now = replace(self._network, buffers=step.buffers)
        self._steps += 1
        return step.loss

    def trained(self, loss: float) -> Trained:
        """The network as it is now, all of it in the memory that was given."""
        # A program writes the new buffers into memory of its own.
        self._network.buffers.buffer[...] = self._now.buffers.buffer
        return Trained(
            network=self._network, loss=loss, moments=self._optimiser.moments, steps=self._steps
        )


def train(
    network: Network, tools: TrainTools, training: Training, objective: LocalObjective | None = None
) -> Trained:
    """Train ``network``, in place, on the examples, shuffled every epoch.

    The caller hands the network over; who needs it as it was passes ``network.copy()``.

    Raises:
        DivergedError: the loss became NaN or infinite.
    """
    trainer = Trainer(network, tools, training, objective)
    return trainer.trained(passes(trainer.step, tools, training))


def mean_gradient(network: Network, tools: TrainTools, training: Training) -> TensorMap:
    """Gradient of the task's loss over all of the client's examples, enough of them to train."""
    mean = WeightedMean(network.params.layout.size)
    for rows in spans(len(tools.y), training.batch_size, tools.min_batch):
        batch: Batch = {"x": tools.x[rows], "y": tools.y[rows]}
        step = tools.grad_fns[TASK_LOSS](network, batch, tools.rng)
        mean.add(step.grads.buffer, len(batch["y"]))
    return TensorMap(network.params.layout, mean.result())


def passes(step: Callable[[ExampleRows], float], tools: TrainTools, training: Training) -> float:
    """Call ``step`` for every batch of every epoch, or for the first ones (``tools.work``).

    Returns:
        The mean loss over the examples of the last epoch, as far as it went; NaN if there was no
        batch: no examples, or fewer than the programs take.
    """
    loss, left = math.nan, _most_steps(tools, training)
    for _ in range(training.epochs):
        total, seen = 0.0, 0
        for rows in islice(batches(len(tools.y), training, tools), left):
            total += step(rows) * len(rows)
            seen += len(rows)
            left = None if left is None else left - 1
        loss = total / seen if seen else math.nan
        if left == 0:
            break
    return loss


def _most_steps(tools: TrainTools, training: Training) -> int | None:
    """Steps that the share of work allows, at least one; None: all of them."""
    if tools.work >= 1:
        return None
    per_epoch = len(list(_epoch_spans(len(tools.y), training, tools)))
    return max(1, math.ceil(tools.work * training.epochs * per_epoch - 1e-9))


def batches(count: int, training: Training, tools: TrainTools) -> Iterator[ExampleRows]:
    """One epoch in random order, in batches of ``spans``."""
    order = tools.rng.permutation(count)
    return (order[part] for part in _epoch_spans(count, training, tools))


def _epoch_spans(count: int, training: Training, tools: TrainTools) -> Iterator[slice]:
    stop = count - count % training.batch_size if training.drop_last else count
    return spans(stop, training.batch_size, tools.min_batch)


def spans(count: int, size: int, min_batch: int) -> Iterator[slice]:
    """Consecutive parts of ``size`` of so many examples, none of fewer than ``min_batch``.

    A last part that would be smaller belongs to the one before it; so few examples in all make no
    part.
    """
    starts = list(range(0, count, size)) if count >= min_batch else []
    if len(starts) > 1 and count - starts[-1] < min_batch:
        starts.pop()
    return (slice(a, b) for a, b in zip(starts, [*starts[1:], count], strict=False))


_WHY_NOT_ONE = "the model normalises over the batch, and one example has no variance"


def check_batch_sizes(settings: object, min_batch: int) -> None:
    """Raise InputError if a strategy's settings ask for smaller batches than the programs take."""
    for name in ("batch_size", "server_batch_size"):
        value = getattr(settings, name, min_batch)
        if value < min_batch:
            raise InputError(
                f"setting '{name}': expected at least {min_batch}, got {value}: {_WHY_NOT_ONE}"
            )


def uneven_batch(count: int, training: Training, min_batch: int) -> str:
    """What is done about a batch that is too small for the programs, for people; '' if none is."""
    if count and count < min_batch:
        return f"{count} training example is too few, nothing is trained: {_WHY_NOT_ONE}"
    rest = 0 if training.drop_last else count % training.batch_size
    if not 0 < rest < min_batch:
        return ""
    return f"a last batch of {rest} example is joined to the batch before it: {_WHY_NOT_ONE}"


def refuse_rewritten(strategy: str, model: Model) -> None:
    """Raise UnsuitableModelError for a model whose training calls set parameters (``REWRITTEN``).

    For a strategy that asks for gradients elsewhere than at the parameters that it moves, or takes
    the way that training has moved them for a sum of gradients.
    """
    for name in model.params:
        if name + REWRITTEN in model.buffers:
            raise UnsuitableModelError(
                f"strategy '{strategy}': expected a model whose training program sets no parameter "
                f"itself, got one that sets '{name}': take another strategy, or a model whose "
                'forward writes no weight (HART: light_convolution "softmax")'
            )
