"""What ``[privacy]`` makes of a plan: a noised strategy, what devices send, what rounds spend."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from protofleet.bundle import Bundle
from protofleet.errors import InputError
from protofleet.federation.accounting import epsilon_of, noise_for, rounds_within, sampled_epsilon
from protofleet.federation.noise import SeedFn, repeated_seed
from protofleet.federation.records import PrivacyRecord, Sends
from protofleet.federation.settings import (
    AdaptiveClip,
    AggregationSettings,
    FederationConfig,
    PrivacySettings,
)
from protofleet.federation.suitability import build_for, why_not
from protofleet.strategies.privacy import Mechanism, PrivateStrategy, Quantile
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import ServerState

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """Differential privacy of a run.

    Attributes:
        settings: ``[privacy]``.
        rounds: of the federation file.
        rate: probability with which a device is drawn, where only the coordinator knows whom.
        mechanism: what a round's sum goes through.
        deviation: of the noise on the sum, in clips (z_Δ).
    """

    settings: PrivacySettings
    rounds: int
    rate: float | None
    mechanism: Mechanism
    deviation: float

    @property
    def draw(self) -> Callable[[], bool] | None:
        """Whether the next device is drawn; None: cohorts are drawn by the federation's seed."""
        rate = self.rate
        if rate is None:
            return None
        number = secrets.SystemRandom().random
        return lambda: number() < rate

    def seed_of(self, round_id: int, drawn: SeedFn) -> bytes:
        """The seed of a round's noise: ``drawn``, unless the file has one."""
        fixed = self.settings.noise_seed
        return drawn(round_id) if fixed is None else repeated_seed(fixed, round_id)

    def epsilon(self, rounds: int, participations: int) -> float:
        """ε after so many rounds of the device that was invited to most, ``participations``."""
        noise, delta = float(self.mechanism.noise_multiplier), self.settings.delta
        if self.rate is None:
            return epsilon_of(noise, participations, delta)
        return sampled_epsilon(noise, self.rate, rounds, delta)

    def record(self, before: ServerState, participations: int) -> PrivacyRecord:
        """What a round has spent, with all before it.

        Args:
            before: the server's state at its opening.
            participations: rounds to which the device was invited that was to most, this one
                included.
        """
        clip = self.mechanism.clip_of(before)
        return PrivacyRecord(
            epsilon=self.epsilon(before.round_id + 1, participations),
            delta=self.settings.delta,
            participations=participations,
            clip=clip,
            noise=self.deviation * clip / self.mechanism.devices,
            repeatable=self.settings.noise_seed is not None,
        )


def sends_of(config: FederationConfig, strategy: Strategy) -> Sends:
    """What devices are to tell.

    Raises:
        InputError: the strategy needs what is switched off.
    """
    chosen, needed = config.privacy, strategy.description.class_counts
    quiet = chosen.noise_multiplier is not None
    if chosen.counts is False and needed:
        raise InputError(
            f"privacy.counts: strategy '{strategy.description.name}' needs how many examples of "
            "each class a device has; leave it out, or use a strategy that does not say 'devices "
            "register' in 'protofleet strategies'"
        )
    return Sends(
        scores=not quiet if chosen.scores is None else chosen.scores,
        counts=(needed or not quiet) if chosen.counts is None else chosen.counts,
    )


def make_private(
    config: FederationConfig, bundle: Bundle, strategy: Strategy
) -> tuple[Strategy, Privacy | None]:
    """The strategy as the server runs it, and what it spends; both as they are without noise.

    Raises:
        InputError: noise with a strategy, an aggregation rule, a cohort or a budget that it cannot
            go with.
    """
    chosen = config.privacy
    if chosen.noise_multiplier is None:
        return strategy, None
    form = strategy.private
    if form is None:
        raise InputError(
            f"privacy.noise_multiplier: strategy '{strategy.description.name}' with these settings "
            "needs more of each update than a sum; leave it out, or use one of "
            f"{', '.join(_private_strategies(bundle)) or 'another bundle'}"
        )
    if config.aggregation != AggregationSettings():
        raise InputError(
            f"aggregation '{config.aggregation.kind}' with its settings: the noise of [privacy] is "
            "that of a mean, in which the clip alone bounds a device's part; leave one of the two "
            "out"
        )
    _check_cohort(config)
    adaptive, clip = None, chosen.clip
    if isinstance(clip, AdaptiveClip):
        adaptive = Quantile(quantile=clip.quantile, rate=clip.rate, budget=clip.budget)
        clip = clip.initial
    mechanism = Mechanism(
        noise_multiplier=chosen.noise_multiplier,
        clip=clip,
        devices=_devices(config),
        adaptive=adaptive,
    )
    privacy = Privacy(
        settings=chosen,
        rounds=config.rounds,
        rate=_rate(config),
        mechanism=mechanism,
        deviation=mechanism.sum_noise(form),
    )
    _check_budget(privacy)
    return PrivateStrategy(strategy, form, mechanism), privacy


def _check_cohort(config: FederationConfig) -> None:
    """Which devices count must not depend on what other devices are or do."""
    cohort = config.cohort
    wrong: dict[str, object] = {
        "cohort.over_selection": cohort.over_selection if cohort.over_selection > 1 else None,
        "cohort.selection": cohort.selection if cohort.selection == "strategy" else None,
    }
    if config.privacy.sampling == "secret" and cohort.selection != "random":
        wrong["cohort.selection"] = cohort.selection
    for name, value in wrong.items():
        if value is not None:
            raise InputError(
                f"{name}: with the noise of [privacy] whether a device counts must not depend on "
                f"others, got {value!r}; leave it out"
            )


def _private_strategies(bundle: Bundle) -> list[str]:
    """Those that run on the bundle with noise."""
    manifest, model = bundle.manifest, bundle.model()
    fitting = [name for name, reason in why_not(bundle).items() if not reason]
    return [name for name in fitting if build_for(manifest, model, name, {}).private is not None]


def _devices(config: FederationConfig) -> int:
    size, devices = config.cohort.size, config.privacy.devices
    if devices is None and isinstance(size, int):
        devices = size
    if devices is None:
        raise InputError(
            "privacy.devices: expected how many devices a round has on average, by which the "
            f"noised sum is divided, as cohort.size is {size!r} and no count"
        )
    every = devices / (_rate(config) or 1)
    if config.privacy.delta >= 1 / every:
        raise InputError(
            f"privacy.delta: expected less than one device's share of all, {1 / every:g}, or a "
            f"device may be shown whole; got {config.privacy.delta:g}"
        )
    return devices


def _rate(config: FederationConfig) -> float | None:
    if config.privacy.sampling == "public":
        return None
    size = config.cohort.size
    if not isinstance(size, float):
        raise InputError(
            "privacy.sampling = 'secret': expected cohort.size as a fraction, the probability "
            f"with which each live device is drawn, got {size!r}"
        )
    return size


def _check_budget(privacy: Privacy) -> None:
    """Raise InputError if all rounds together would spend more than the budget.

    Every invitation may be any device's, so that of a device in every round counts.
    """
    budget, settings = privacy.settings.epsilon_budget, privacy.settings
    if budget is None:
        return
    spent = privacy.epsilon(privacy.rounds, privacy.rounds)
    if spent <= budget * (1 + _ROUNDING):
        return
    noise = privacy.mechanism.noise_multiplier
    if privacy.rate is None:
        allowed = rounds_within(budget, noise, settings.delta)
        least = math.ceil(100 * noise_for(budget, privacy.rounds, settings.delta)) / 100
        enough = f" or noise_multiplier {least:g}"
    else:
        allowed, enough = _rounds_within(privacy, budget), " or more noise"
    raise InputError(
        f"privacy.epsilon_budget: {privacy.rounds} rounds spend ε = {spent:.3g} at "
        f"δ = {settings.delta:g}, more than {budget:g}; expected at most {allowed} rounds{enough}"
    )


def _rounds_within(privacy: Privacy, budget: float) -> int:
    low, high = 0, privacy.rounds
    while high - low > 1:
        middle = (low + high) // 2
        fits = privacy.epsilon(middle, middle) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low
