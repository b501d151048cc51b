"""A learning rate that fits: devices try a ladder of rates, and the server chooses one of them.

Each device trains one local round with every rate, with the strategy's own client half and without
a quarter of its training examples, and tells by how much that changes the loss on that quarter.
What travels is a ratio for each rate and nothing of a model; ``docs/calibration.md`` has more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, RefusedError
from protofleet.strategies.optimisers import LADDERS, OptimiserKind
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.training import DivergedError
from protofleet.strategies.types import (
    ClientState,
    Evaluation,
    Payload,
    Score,
    TensorSchema,
    TensorSchemas,
    Update,
)
from protofleet.tensors import Model, Network

AUTO = "auto"
"""In the place of ``optimiser.lr``."""
WORST = 10.0
"""Ratio of a rate with which training has made the loss so much larger, or has diverged."""
RATIOS = "ratios"
"""The only tensor that travels."""
MOST_DEVICES = 8
"""That calibrate at a time, drawn by the seed: of more the mean hardly changes."""
_HELD_OUT = 4
"""Of so many training examples of a class one is held out."""
_ENOUGH_WORSE = 2
"""After so many rates in a row that do worse than the best one the larger ones are not tried."""
_ENOUGH = 0.9
"""Of what the best rate gains in one round: the smallest rate that brings as much is chosen. Many
rounds want a smaller rate than one, and it is farther from where a later one diverges."""
_ERRORS, _LEAST = 2.0, 0.5
"""Standard errors: a smaller rate that is no more of them worse than the best is as good as that,
as far as the devices can tell, if it brings this share of the gain. With few examples they can tell
little, and large rates harm."""
_RUNG = 3.0
"""Times that a rate of the ladder is the one below it, about."""
_TRIM = 0.1
"""Share of the devices that is left out at either end, for each rate."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How a run's learning rate was chosen.

    Attributes:
        kind: of the optimiser.
        rates: that were tried, ascending.
        ratios: over the devices, of each: loss on held-out examples after a local round divided
            by the loss before; a trimmed mean. Empty: no device has tried any.
        devices: of how many.
        lr: the one that was chosen (``choose``); without any ratios, the strategy's own.
    """

    kind: OptimiserKind
    rates: tuple[float, ...]
    ratios: tuple[float, ...]
    devices: int
    lr: float

    @property
    def at_edge(self) -> bool:
        """Whether a rate beyond the ladder may be better still."""
        return bool(self.ratios) and self.lr in (self.rates[0], self.rates[-1])

    @property
    def text(self) -> str:
        """For people, in a line."""
        if not self.ratios:
            return (
                f"learning rate {self.lr:g} ({self.kind}), the strategy's own: no device could try "
                f"those between {self.rates[0]:g} and {self.rates[-1]:g}"
            )
        devices = "1 device" if self.devices == 1 else f"{self.devices} devices"
        ratio = self.ratios[self.rates.index(self.lr)]
        return (
            f"learning rate {self.lr:g} ({self.kind}), chosen by {devices} from "
            f"{len(self.rates)} between {self.rates[0]:g} and {self.rates[-1]:g}: a local round "
            f"makes the loss on held-out examples {ratio:.2g} times what it was"
        )


class CalibrationProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration that devices take part in.

    Attributes:
        asked: devices that are, or were, to try.
        told: ratios by device; empty: it could not.
        chosen: what came of them; None: nothing as yet.
    """

    asked: tuple[str, ...] = ()
    told: dict[str, tuple[float, ...]] = {}
    chosen: Calibration | None = None

    @property
    def text(self) -> str:
        """For people, in a line."""
        if self.chosen is not None:
            return self.chosen.text
        awaited = [name for name in self.asked if name not in self.told]
        return f"learning rates are being tried by {', '.join(awaited)}"

    @property
    def ratios(self) -> list[NDArray[np.float64]]:
        """What there is to choose by, in the order of the devices' names."""
        return [np.array(self.told[name]) for name in sorted(self.told) if self.told[name]]


class RateTester(Protocol):
    """A learner that has held out training examples (``edge.learning.training.Learner``)."""

    @property
    def model(self) -> Model:
        """The bundle's initial values, from which a first round starts."""
        ...

    def strategy(self, name: str, settings: Mapping[str, Any]) -> Strategy:
        """The strategy ``name`` for the bundle's model."""
        ...

    def train(
        self,
        strategy: Strategy,
        state: ClientState | None,
        payload: Payload,
        *,
        seed: int,
        work: float = 1.0,
    ) -> tuple[ClientState, Update]:
        """One local round without the held-out examples."""
        ...

    def evaluate(self, network: Network, *, score: Score | None = None) -> Evaluation:
        """Statistics and loss on the held-out examples."""
        ...


def is_auto(settings: Mapping[str, Any]) -> bool:
    """Whether a strategy's settings leave the learning rate to a calibration."""
    optimiser = settings.get("optimiser")
    return isinstance(optimiser, Mapping) and optimiser.get("lr") == AUTO


def lacks_rate(settings: Mapping[str, Any]) -> bool:
    """Whether a strategy's settings say nothing of the learning rate."""
    optimiser = settings.get("optimiser", {})
    return isinstance(optimiser, Mapping) and "lr" not in optimiser


def with_rate(settings: Mapping[str, Any], rate: float | str) -> dict[str, Any]:
    """The settings with a number, or ``AUTO``, in the place of the optimiser's rate."""
    return {**settings, "optimiser": {**settings.get("optimiser", {}), "lr": rate}}


def ladder_of(settings: Mapping[str, Any]) -> tuple[OptimiserKind, tuple[float, ...]]:
    """The kind of the optimiser, and the rates that are tried for it.

    Raises:
        InputError: there is no ladder for such an optimiser.
    """
    kind = settings["optimiser"].get("kind")
    if kind not in LADDERS:
        raise InputError(
            f'optimiser: expected a kind of {", ".join(LADDERS)} beside lr = "{AUTO}", got {kind}'
        )
    return kind, LADDERS[kind]


def drawn(candidates: Collection[str], seed: int) -> tuple[str, ...]:
    """Who calibrates, by name: at most ``MOST_DEVICES``, the same for the same seed."""
    names = sorted(candidates)
    chosen = np.random.default_rng([seed, 0]).permutation(len(names))[:MOST_DEVICES]
    return tuple(sorted(names[index] for index in chosen))


def schemas_of(rates: Sequence[float]) -> TensorSchemas:
    """What the update of a calibration holds; without it its device abstains."""
    return TensorSchemas(optional={RATIOS: TensorSchema((len(rates),), "float64")})


def held_out(y: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Which training examples to hold out: the last quarter of each class, in their order.

    In order, as neighbouring windows of a stream overlap.

    Args:
        y: ``(n,)`` class indices, or ``(n, T)`` targets.

    Returns:
        ``(n,)``; None: there are too few examples to hold out one and to train on others.
    """
    labels = y if y.ndim == 1 else np.zeros(len(y), np.int64)
    chosen = np.zeros(len(y), np.bool_)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        chosen[of_class[len(of_class) - len(of_class) // _HELD_OUT :]] = True
    return chosen if chosen.any() else None


def try_rates(
    tester: RateTester, strategy: Strategy, payload: Payload, *, seed: int, rates: Sequence[float]
) -> NDArray[np.float64] | None:
    """What each rate does to the loss on held-out examples.

    A strategy of which a first round trains nothing (APPLE) tries them as if each device were
    alone.

    Args:
        tester: trains and scores.
        strategy: of the federation, with any rate.
        payload: of the round, from which a local round starts.
        seed: of the federation; every rate sees the same batches.
        rates: ascending.

    Returns:
        ``(len(rates),)`` the loss after a local round, divided by the loss before, at most
        ``WORST``. The middle rate is tried first, then larger ones, up to one that is hopeless or
        two in a row that do worse than the best; the others beyond have the largest ratio of those
        that were tried. Then smaller ones, down to one that does worse than the best; what is below
        has a third of the gain for a third of the rate. None: the loss before is no number above 0,
        so that nothing can be compared.
    """
    start = tester.evaluate(tester.model.network).own_loss
    if not 0 < start < math.inf:
        return None

    def tried(candidate: Strategy) -> list[float]:
        name, settings = candidate.description.name, msgspec.to_builtins(candidate.settings)
        return _searched(
            len(rates),
            lambda place: _ratio(
                tester,
                tester.strategy(name, with_rate(settings, rates[place])),
                payload,
                seed,
                start,
            ),
        )

    found = tried(strategy)
    if len(set(found)) == 1 and found[0] < WORST:
        found = tried(_plain(tester, strategy))
    return np.array(found)


def _searched(rates: int, ratio: Callable[[int], float]) -> list[float]:
    """Ratios of all rates, of which some are tried (``try_rates``).

    Args:
        rates: how many.
        ratio: tries one, by its place.
    """
    middle = rates // 2
    up: list[float] = []
    for place in range(middle, rates):
        up.append(ratio(place))
        worse = up[len(up) - _ENOUGH_WORSE :]
        if up[-1] >= WORST or (len(up) > _ENOUGH_WORSE and min(worse) > min(up)):
            break
    down: list[float] = []
    for place in range(middle - 1, -1, -1):
        best = min(*up, *down, WORST)
        down.append(ratio(place))
        if down[-1] > best and best < 1:
            break
    while len(down) < middle:
        down.append(1 - max(1 - down[-1], 0) / _RUNG)
    return [*reversed(down), *up, *[max(up)] * (rates - middle - len(up))]


def _plain(tester: RateTester, strategy: Strategy) -> Strategy:
    """Training alone, for a strategy that trains nothing in its first round."""
    known = tester.strategy("local", {}).settings.__struct_fields__
    own = msgspec.to_builtins(strategy.settings)
    return tester.strategy("local", {name: own[name] for name in known if name in own})


def _ratio(
    tester: RateTester, strategy: Strategy, payload: Payload, seed: int, start: float
) -> float:
    try:
        state, update = tester.train(strategy, None, payload, seed=seed)
        second = strategy.next_alone(payload, update)
        if second is not None:
            state, _ = tester.train(strategy, state, second, seed=seed)
    except DivergedError:
        return WORST
    loss = _loss(tester, strategy, state)
    return min(loss / start, WORST) if math.isfinite(loss) else WORST


def _loss(tester: RateTester, strategy: Strategy, state: ClientState) -> float:
    network, score = strategy.client_model(state), strategy.client_score(state)
    return tester.evaluate(network, score=score).own_loss


def check_ratios(ratios: NDArray[np.float64], rates: int) -> None:
    """Raise RefusedError, rule ``calibration``, for what no device measures of so many rates."""
    within = np.isfinite(ratios) & (ratios >= 0) & (ratios <= WORST)
    if ratios.shape != (rates,) or not within.all():
        raise RefusedError(
            "calibration",
            f"calibration: expected {rates} ratios from 0 to {WORST:g}, got {ratios.tolist()}",
        )


def choose(
    kind: OptimiserKind,
    rates: Sequence[float],
    told: Sequence[NDArray[np.float64]],
    *,
    otherwise: float,
) -> Calibration:
    """The smallest rate that gains nearly as much as the one with the least mean ratio.

    Or half as much, where the devices do not show that it gains less than the best: by the paired
    differences of their ratios, trimmed as the means are, with Yuen's standard error ("The
    two-sample trimmed t for unequal population variances", Biometrika 1974). The rule is that of
    one standard error (Breiman et al., "Classification and Regression Trees", 1984) with two.

    Args:
        kind: of the optimiser.
        rates: that were tried, ascending.
        told: each device's ratios, of ``try_rates``. Of each rate a tenth of the devices, at least
            one where there are five or more, is left out at either end, so that one that lies
            moves little.
        otherwise: the rate where no device has told any.
    """
    means: list[float] = []
    lr = otherwise
    if told:
        ratios = np.stack(told)
        means = [float(one) for one in _trimmed(ratios)[0]]
        lr = rates[_smallest_that_will_do(ratios, np.array(means))]
    return Calibration(
        kind=kind,
        rates=tuple(rates),
        ratios=tuple(round(one, 6) for one in means),
        devices=len(told),
        lr=lr,
    )


def _smallest_that_will_do(ratios: NDArray[np.float64], means: NDArray[np.float64]) -> int:
    best = int(means.argmin())
    gain = 1 - means[best]
    behind, error = _trimmed(ratios - ratios[:, [best]])
    enough = 1 - means >= min(_ENOUGH * gain, gain)
    alike = (1 - means >= max(_LEAST * gain, 0)) & (behind <= _ERRORS * error)
    return int(np.flatnonzero(enough | alike)[0])


def _trimmed(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means of columns without their extremes, and the standard errors; 0 of a single row."""
    count = len(values)
    cut = math.ceil(_TRIM * count) if count >= 5 else 0
    ordered = np.sort(values, axis=0)
    kept = ordered[cut : count - cut]
    means: NDArray[np.float64] = kept.mean(axis=0)
    if count == 1:
        return means, np.zeros_like(means)
    winsorised = np.clip(ordered, kept[0], kept[-1])
    return means, winsorised.std(axis=0, ddof=1) * math.sqrt(count) / len(kept)
