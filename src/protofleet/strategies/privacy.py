"""Differential privacy of devices: a strategy whose server half sees one noised update per round.

Sources: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language
Models" (arXiv:1710.06963), with a denominator that is fixed beforehand; Andrew, Thakkar, McMahan
and Ramaswamy, "Differentially Private Learning with Adaptive Clipping" (arXiv:1905.03871).

| symbol | name | shape | dtype |
|---|---|---|---|
| Δ_i | a client's difference to what it received | all tensors of an update | float64 |
| S | ``clip`` | () | float |
| z, z_Δ | ``noise_multiplier``, ``sum_noise`` | () | float |
| m | ``devices`` | () | int |

A round: of each client's Δ_i, clipped as a whole to the norm S, the sum is made; noise of the
standard deviation z_Δ S goes on every number of it; the sum divided by m, added to what was sent,
is the one update that the strategy aggregates. Everything behind it is post-processing, so whatever
a strategy makes of one update has the same guarantee. Clients count alike; one without examples, or
one that does not answer, adds nothing, and nobody adds more than the norm S.

Where rows belong to classes (prototypes), a client's rows of classes that it lacks add nothing. How
many clients have a class is counted with noise of its own, and a row's sum is divided by that; a
class whose count drowns in its noise keeps its prototype.

The noises of a round, of the sum and of the counts, together have the μ of z alone:
1/z² = 1/z_Δ² + 1/z_counts² + 1/z_clip².
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.aggregation import MEAN
from protofleet.strategies.common import ordered
from protofleet.strategies.strategy import PrivacySupport, Strategy
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Payload,
    Score,
    ServerState,
    ServerTools,
    Update,
    Updates,
)
from protofleet.tensors import Model, Network, Tensors

CLIP = "privacy/clip"
"""Name of the adaptive norm in a server's state; no payload holds it."""
_CLIENT = "noised"
_COUNTS_BUDGET = 0.1
"""Part of the noise's μ² that the numbers of clients by class cost, where there are any."""
_CLEAR = 2.0
"""A count by class is used from so many of its standard deviations on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """How an adaptive norm follows the clients' norms; fields as in ``AdaptiveClip``."""

    quantile: float
    rate: float
    budget: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """How a round's sum is made private.

    Attributes:
        noise_multiplier: z, of everything that a round releases.
        clip: S, of the first round where it is adaptive.
        devices: m.
        adaptive: how S follows; None: it stays.
    """

    noise_multiplier: float
    clip: float
    devices: int
    adaptive: Quantile | None = None

    def clip_of(self, state: ServerState) -> float:
        """S of the round that follows on ``state``."""
        return float(state.tensors[CLIP]) if CLIP in state.tensors else self.clip

    def sum_noise(self, form: PrivacySupport) -> float:
        """z_Δ, of the sum, beside the noise of the counts."""
        counts = _COUNTS_BUDGET if form.by_class else 0.0
        share = self.adaptive.budget if self.adaptive else 0.0
        return self.noise_multiplier / math.sqrt((1 - counts) * (1 - share))


class PrivateStrategy(Strategy):
    """A strategy with a noised server half; devices run it unchanged.

    Args:
        inner: of the federation.
        form: ``inner.private``.
        mechanism: how much noise.
    """

    def __init__(self, inner: Strategy, form: PrivacySupport, mechanism: Mechanism) -> None:
        super().__init__(inner.settings, inner.model)
        self._inner, self._form, self._mechanism = inner, form, mechanism
        self.description, self.carried = inner.description, inner.carried
        self.payload, self.uplink = inner.payload, inner.uplink
        self.private, self.mean, self.rank = inner.private, inner.mean, inner.rank

    def server_init(self, model: Model, rng: np.random.Generator) -> ServerState:
        """The inner strategy's, with the first norm where it is adaptive."""
        state, mechanism = self._inner.server_init(model, rng), self._mechanism
        return _with_clip(state, mechanism.clip) if mechanism.adaptive else state

    def downlink(self, state: ServerState, client_id: str) -> Payload:
        """Of the inner strategy."""
        return self._inner.downlink(_inner(state), client_id)

    def client_init(self, model: Model) -> ClientState:
        """Of the inner strategy."""
        return self._inner.client_init(model)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        """Of the inner strategy."""
        return self._inner.client_update(state, payload, tools)

    def client_model(self, state: ClientState) -> Network:
        """Of the inner strategy."""
        return self._inner.client_model(state)

    def client_score(self, state: ClientState) -> Score | None:
        """Of the inner strategy."""
        return self._inner.client_score(state)

    def check(self, update: Update) -> None:
        """Of the inner strategy."""
        self._inner.check(update)

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        """What the inner strategy makes of the noised update that stands for all."""
        mechanism, form = self._mechanism, self._form
        clip = mechanism.clip_of(state)
        total = _Sum(form.baseline(_inner(state)), form.by_class, clip)
        for update in ordered(updates):
            total.add(update)
        released = _release(total, form, mechanism, tools)
        released = replace(released, round_id=state.round_id + 1)
        after = self._inner.aggregate(_inner(state), [released], replace(tools, aggregator=MEAN))
        if mechanism.adaptive is None:
            return after
        return _with_clip(after, _followed(total, mechanism, mechanism.adaptive, tools))

    def server_model(self, state: ServerState) -> Network | None:
        """Of the inner strategy."""
        return self._inner.server_model(_inner(state))


class _Sum:
    """The clipped differences of a round's clients, added up in float64."""

    def __init__(self, baseline: Tensors, by_class: frozenset[str], clip: float) -> None:
        self.baseline, self.clip = baseline, clip
        self.tensors = {name: np.zeros(value.shape) for name, value in baseline.items()}
        self.having = np.zeros(len(baseline[min(by_class)]) if by_class else 0)
        self.within = 0.0
        self._by_class = by_class

    def add(self, update: Update) -> None:
        """Add a client's; one without examples or tensors adds nothing."""
        if not update.num_examples or not update.tensors:
            return
        has = None if update.class_counts is None else update.class_counts > 0
        deltas = {}
        for name, old in self.baseline.items():
            deltas[name] = update.tensors[name].astype(np.float64) - old
            if name in self._by_class and has is not None:
                deltas[name][~has] = 0.0
        norm = math.sqrt(sum(float(np.vdot(delta, delta)) for delta in deltas.values()))
        scale = 1.0 if norm <= self.clip else self.clip / norm
        for name, delta in deltas.items():
            self.tensors[name] += scale * delta
        if self._by_class and has is not None:
            self.having += has
        # Half is taken off, so that a client moves this sum by a half instead of a whole.
        self.within += 0.5 if norm <= self.clip else -0.5


def _release(total: _Sum, form: PrivacySupport, mechanism: Mechanism, tools: ServerTools) -> Update:
    """The noised update, in the order in which noise is drawn: tensors by name, then counts."""
    deviation = mechanism.sum_noise(form) * total.clip
    noised = {
        name: value + deviation * tools.noise(value.size).reshape(value.shape)
        for name, value in sorted(total.tensors.items())
    }
    counts: NDArray[np.int64] | None = None
    if form.by_class:
        having, least = _noised_counts(total, mechanism, tools)
        counts = (having >= least).astype(np.int64)
        for name in form.by_class:
            per_device = mechanism.devices / np.maximum(having, 1.0)
            noised[name] *= per_device.reshape(-1, *[1] * (noised[name].ndim - 1))
    tensors = {
        name: (total.baseline[name] + value / mechanism.devices).astype(np.float32)
        for name, value in noised.items()
    }
    return Update(
        client_id=_CLIENT,
        round_id=0,
        num_examples=1 if counts is None else max(int(counts.sum()), 1),
        tensors=tensors,
        class_counts=counts,
    )


def _noised_counts(
    total: _Sum, mechanism: Mechanism, tools: ServerTools
) -> tuple[NDArray[np.float64], float]:
    """How many clients have each class, and from what count on that says something.

    A client changes all C counts by 1 at most, a vector of norm √C.
    """
    having = total.having
    share = mechanism.adaptive.budget if mechanism.adaptive else 0.0
    multiplier = mechanism.noise_multiplier / math.sqrt(_COUNTS_BUDGET * (1 - share))
    deviation = multiplier * math.sqrt(len(having))
    return having + deviation * tools.noise(len(having)), max(_CLEAR * deviation, 1.0)


def _followed(total: _Sum, mechanism: Mechanism, adaptive: Quantile, tools: ServerTools) -> float:
    """The next S."""
    deviation = 0.5 * mechanism.noise_multiplier / math.sqrt(adaptive.budget)
    noised = total.within + deviation * float(tools.noise(1)[0])
    within = min(max(noised / mechanism.devices + 0.5, 0.0), 1.0)
    return total.clip * math.exp(adaptive.rate * (adaptive.quantile - within))


def _inner(state: ServerState) -> ServerState:
    """The state as the strategy itself knows it."""
    if CLIP not in state.tensors:
        return state
    tensors: Mapping[str, NDArray[Any]] = {
        name: value for name, value in state.tensors.items() if name != CLIP
    }
    return replace(state, tensors=tensors)


def _with_clip(state: ServerState, clip: float) -> ServerState:
    return replace(state, tensors={**state.tensors, CLIP: np.array(clip, np.float64)})
