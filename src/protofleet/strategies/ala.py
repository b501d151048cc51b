"""Adaptive local aggregation: a client learns how much of each received entry it takes over.

Source: Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation for Personalized
Federated Learning", AAAI 2023 (arXiv:2212.01197v5), section 3 and algorithm 1, and the authors'
published code. ``fedala.py`` is FedAvg with it; every strategy that shares a model takes it as
``local_init``.

| symbol | name | shape | dtype |
|---|---|---|---|
| Θ_i^{t-1} | ``own`` | the shared tensors' | float32 |
| Θ^{t-1} | the shared tensors of ``received`` | the same | float32 |
| W_i^p | ``weights``, kept as ``ala/<name>`` | the upper tensors' | float32 |
| Θ̂_i^t | ``Merged.network`` | the model's | float32 |
| p | ``layer_idx``, in tensors | () | int |
| s | ``sample_percent`` | () | float |
| η | ``eta`` | () | float |

The last ``layer_idx`` shared tensors are the upper ones; all others are taken over as received. One
call draws a contiguous part of the client's examples and goes through it in order. W starts as ones
at a client's first call, which passes over the part until the losses settle; W is kept for ever
after, and a later call makes exactly one pass.

Deviations:
    - ``layer_idx`` counts tensors, as the authors' code; the paper counts layers.
    - The start phase ends after ``max_passes`` at the latest; the authors' may go on for ever. Its
      threshold is that of the authors' runs (their README); their code's default is 0.1.
    - The part has at least one example, or as many as the programs take.
    - A strategy that trains with another objective than the task's loss learns W with that one; a
      proximal term has no part in it.
    - What programs do to the model's buffers meanwhile is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from protofleet.kernels import ala_step
from protofleet.strategies.bounds import Bounded, Bounds, Count, LearningRate, Passes, Weight
from protofleet.strategies.training import DivergedError, ExampleRows, LocalObjective, spans
from protofleet.strategies.types import Batch, Step, TrainTools
from protofleet.tensors import Layout, Network, TensorMap, Tensors


class Ala(Bounded, frozen=True, kw_only=True, tag_field="kind", tag="ala"):
    """How a client mixes its own model with the received one; in TOML ``kind = "ala"``.

    Attributes:
        layer_idx: the last so many shared tensors are mixed (weight and bias are two), of which the
            head's are the last; 0: all.
        sample_percent: part of the client's examples that a call looks at.
        eta: learning rate of the weights.
        threshold: the first call ends when the last losses' standard deviation is below it.
        window: how many losses that are; one more pass is made at least.
        max_passes: most passes of the first call.
    """

    place: ClassVar[str] = "local_init."

    layer_idx: Annotated[int, Bounds(0)] = 2
    sample_percent: Annotated[float, Bounds(0, 100)] = 80.0
    eta: LearningRate = 1.0
    threshold: Weight = 0.01
    window: Count = 10
    max_passes: Passes = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """With what a client measures its loss.

    Attributes:
        tools: examples, programs and randomness.
        batch_size: examples per step.
        objective: whose gradient it gives.
    """

    tools: TrainTools
    batch_size: int
    objective: LocalObjective

    def __call__(self, network: Network, rows: ExampleRows) -> Step:
        """Loss and gradients of the examples of these numbers.

        Raises:
            DivergedError: the loss is NaN or infinite.
        """
        tools, objective = self.tools, self.objective
        batch: Batch = {"x": tools.x[rows], "y": tools.y[rows], **objective.inputs(rows)}
        step = tools.grad_fns[objective.loss](network, batch, tools.rng)
        if not math.isfinite(step.loss):
            raise DivergedError(
                f"{tools.name}: expected a finite loss of '{objective.loss}' of the "
                f"mixed model, got {step.loss}; lower the learning rate or check the data"
            )
        return step


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A model made of a client's own and the received one.

    Attributes:
        network: all parameters, in memory of their own, and the received model's buffers.
        weights: of the upper tensors, by their names.
    """

    network: Network
    weights: TensorMap


def local_aggregation(
    ala: Ala, own: Tensors, received: Network, weights: Tensors, probe: Probe
) -> Merged:
    """One call of adaptive local aggregation.

    Args:
        ala: settings.
        own: the client's own shared tensors, by the names of parameters; the last ones are mixed.
        received: the model with the received tensors in their place; not changed.
        weights: those of an earlier call; empty at the first.
        probe: the client's loss; there must be examples enough for a step.

    Raises:
        InputError: kept weights of other tensors, or a loss that is not finite.
    """
    upper = Layout.of({name: own[name].shape for name in list(own)[-ala.layer_idx :]})
    mixture = _Mixture(upper, own, received.params, weights, ala.eta)
    network = replace(received, params=mixture.params)
    part = tuple(_part(ala, probe))
    losses: list[float] = []
    # Eqs. 5 and 6, until the losses settle at the first call and once later.
    while True:
        for rows in part:
            loss = mixture.step(probe(network, rows))
        losses.append(loss)
        if weights or _settled(ala, losses):
            return Merged(network=network, weights=mixture.weights)


class _Mixture:
    """The model in between, and its weights."""

    def __init__(
        self, upper: Layout, own: Tensors, params: TensorMap, weights: Tensors, eta: float
    ) -> None:
        self._own = TensorMap.pack({name: own[name] for name in upper.shapes}, upper)
        self._received = params
        self._eta = eta
        self.params = params.copy()
        if weights:
            self.weights = TensorMap.pack(weights, upper)
        else:
            self.weights = TensorMap.zeros(upper)
            self.weights.buffer[...] = 1
        for name, w in self.weights.items():
            local = self._own[name]
            self.params[name][...] = local + (params[name] - local) * w

    def step(self, step: Step) -> float:
        """Move the weights by the gradient at the mixed model, and mix anew."""
        for name, weights in self.weights.items():
            ala_step(
                weights.reshape(-1),
                self._own[name].reshape(-1),
                self._received[name].reshape(-1),
                step.grads[name].reshape(-1),
                self.params[name].reshape(-1),
                eta=self._eta,
            )
        return step.loss


def _part(ala: Ala, probe: Probe) -> Iterator[ExampleRows]:
    """Batches of the examples that this call looks at, in order."""
    count = len(probe.tools.y)
    least = probe.tools.min_batch
    length = max(least, int(ala.sample_percent / 100 * count))
    start = int(probe.tools.rng.integers(0, count - length, endpoint=True))
    rows = np.arange(start, start + length)
    return (rows[part] for part in spans(length, probe.batch_size, least))


def _settled(ala: Ala, losses: Sequence[float]) -> bool:
    """Whether the start phase is over; ``losses`` has the last batch's of every pass."""
    last = losses[-ala.window :]
    enough = len(losses) > ala.window
    return (enough and float(np.std(last)) < ala.threshold) or len(losses) >= ala.max_passes
