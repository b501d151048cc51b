"""What is the same at every start of a run: bundle, strategy, settings, schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from protofleet.bundle import Bundle
from protofleet.errors import InputError
from protofleet.federation.outcomes.alone import LOCAL, settings_alone
from protofleet.federation.outcomes.calibration import (
    AUTO,
    is_auto,
    lacks_rate,
    ladder_of,
    with_rate,
)
from protofleet.federation.privacy import Privacy, make_private, sends_of
from protofleet.federation.randomness import server_rng
from protofleet.federation.records import Sends
from protofleet.federation.schedules.buffered import BufferedSchedule
from protofleet.federation.schedules.schedule import Schedule
from protofleet.federation.schedules.staleness import Mixing
from protofleet.federation.schedules.synchronous import SynchronousSchedule
from protofleet.federation.settings import (
    AggregationSettings,
    CohortSettings,
    FederationConfig,
    StrategySettings,
)
from protofleet.federation.suitability import build_for
from protofleet.strategies import DESCRIPTIONS
from protofleet.strategies.aggregation import Aggregator
from protofleet.strategies.aggregation import build as build_aggregator
from protofleet.strategies.optimisers import LADDERS
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.training import check_batch_sizes
from protofleet.strategies.types import Description, ServerState
from protofleet.tensors import Model

PUBLISHED = "published"
"""In the place of ``optimiser``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is the same at every start of a run.

    Attributes:
        config: the federation file.
        bundle: verified.
        model: the bundle's initial values.
        strategy: built with ``settings``.
        settings: the bundle's, overridden by the file's; they travel with every task. A learning
            rate that nobody has set is "auto".
        given: the settings without that.
        rates: of which a calibration has to choose one before ``strategy`` can train; empty: the
            settings have one. Until then it is built with the smallest.
        own_lr: the strategy's own rate, where no device can try any.
        aggregator: how the clients' vectors become one.
        sends: what devices tell beside their tensors.
        privacy: of the noise in ``strategy``; None: there is none.
    """

    config: FederationConfig
    bundle: Bundle
    model: Model
    strategy: Strategy
    settings: dict[str, Any]
    given: dict[str, Any]
    rates: tuple[float, ...] = ()
    own_lr: float = 0.0
    aggregator: Aggregator
    sends: Sends = field(default_factory=Sends)
    privacy: Privacy | None = None

    def server_init(self) -> ServerState:
        """The server's state before round 1, the same at every start."""
        return self.strategy.server_init(self.model, server_rng(self.config.seed, 0))

    def schedule(self, server_state: Callable[[], ServerState]) -> Schedule:
        """The rules of the federation file, and what the strategy wants.

        Args:
            server_state: the committed one, by which the strategy may rank candidates.
        """
        config, rank = self.config, self.strategy.rank
        synchronous = SynchronousSchedule(
            rounds=config.rounds,
            seed=config.seed,
            size=config.cohort.size,
            minimum=config.cohort.minimum,
            wait_s=config.cohort.wait_s,
            deadline_s=config.round.deadline_s,
            quorum=config.round.quorum,
            every_s=config.round.every_s,
            grace_s=config.liveness.grace_s,
            final_fit=self.strategy.description.final_fit,
            is_drawn=self.privacy.draw if self.privacy else None,
            over_selection=config.cohort.over_selection,
            selection=config.cohort.selection,
            rank=None if rank is None else lambda candidates: rank(server_state(), candidates),
            patience=config.schedule.patience,
        )
        if config.schedule.buffer is None:
            return synchronous
        return BufferedSchedule(
            rules=synchronous,
            buffer=config.schedule.buffer,
            concurrency=config.schedule.concurrency,
        )

    def calibrated(self, lr: float) -> Plan:
        """The same with a learning rate that was chosen.

        Raises:
            InputError: the strategy takes no such rate.
        """
        chosen = StrategySettings(
            name=self.strategy.description.name, settings=with_rate(self.settings, lr)
        )
        return make_plan(msgspec.structs.replace(self.config, strategy=chosen))

    def with_rounds(self, rounds: int) -> Plan:
        """The same with another number of rounds."""
        return replace(self, config=msgspec.structs.replace(self.config, rounds=rounds))

    @property
    def mixing(self) -> Mixing | None:
        """How updates of earlier rounds count; None: they do not."""
        chosen = self.config.schedule
        return Mixing(chosen) if chosen.takes_older else None

    @property
    def identity(self) -> dict[str, str]:
        """What two starts of the same run have in common."""
        return {
            "federation": self.config.federation,
            "bundle": self.bundle.digest,
            "strategy": self.strategy.description.name,
            "settings": msgspec.json.encode(self.given, order="sorted").decode(),
            "seed": str(self.config.seed),
            "codec": self.config.codec.identity,
            "schedule": self.config.schedule.identity,
            "aggregation": self.config.aggregation.identity,
            "privacy": self.config.privacy.identity,
        }


def make_plan(config: FederationConfig, *, finds_rate: bool = True) -> Plan:
    """Open the bundle and build the strategy.

    Args:
        config: the federation file.
        finds_rate: whether devices find a learning rate that nobody has set; else, and where they
            cannot (beside noise, and in cells), it is the strategy's own.

    Raises:
        InputError: no such bundle, strategy or aggregation rule, a setting that it does not know,
            an optimiser that nobody has published, a learning rate that devices are to choose
            beside noise, a batch size that the bundle's
            programs do not take, a rule for a strategy that takes none, noise (``make_private``)
            that the rest does not go with, or a bundle that lacks what the strategy needs.
        RefusedError: the bundle breaks a rule, or its signer is not trusted.
    """
    bundle = Bundle.open(config.bundle, trusted=_keys(config.trusted))
    model = bundle.model()
    declared = bundle.manifest.strategy
    name = config.strategy.name or declared.name
    settings = config.strategy.over(declared.name, declared.settings)
    if settings.get("optimiser") == PUBLISHED:
        settings = {**settings, "optimiser": _published(name)}
    given, default = settings, partial(build_for, bundle.manifest, model, name)
    hidden = _hides_ratios(config)
    settings, rates, own_lr = _calibrated(given, default, finds_rate=finds_rate and not hidden)
    if rates and hidden:
        raise InputError(f'optimiser.lr = "{AUTO}": {hidden}; give a number')
    started = with_rate(settings, rates[0]) if rates else settings
    strategy = build_for(bundle.manifest, model, name, started)
    min_batch = max((program.min_batch for program in bundle.manifest.programs.values()), default=1)
    check_batch_sizes(strategy.settings, min_batch)
    aggregator = _aggregator(config.aggregation, strategy.description)
    _check_participation(config, strategy)
    _check_schedule(config, strategy.description, aggregator)
    sends = sends_of(config, strategy)
    if config.evaluation.baseline == LOCAL:
        _check_baseline(bundle, model, strategy, sends)
    strategy, privacy = make_private(config, bundle, strategy)
    return Plan(
        config=config,
        bundle=bundle,
        model=model,
        strategy=strategy,
        settings=settings,
        given=given,
        rates=rates,
        own_lr=own_lr,
        aggregator=aggregator,
        sends=sends,
        privacy=privacy,
    )


def _hides_ratios(config: FederationConfig) -> str:
    """Why devices must not tell what becomes of their losses; empty: they may."""
    if config.privacy.noise_multiplier is not None:
        return (
            "what devices tell of the rates that they try is not covered by the noise of [privacy]"
        )
    if config.privacy.scores is False:
        return "devices tell nothing of their losses, as privacy.scores is false"
    return ""


def _published(name: str) -> dict[str, Any]:
    """The optimiser of the authors' experiments."""
    found = dict(DESCRIPTIONS[name].published) if name in DESCRIPTIONS else {}
    if not found:
        known = sorted(one for one, its in DESCRIPTIONS.items() if its.published)
        raise InputError(
            f"optimiser = \"{PUBLISHED}\": the authors of strategy '{name}' leave it open; leave "
            f"optimiser out, so that devices find a rate, or use one of {', '.join(known)}"
        )
    return found


def _calibrated(
    given: dict[str, Any], build: Callable[[dict[str, Any]], Strategy], *, finds_rate: bool
) -> tuple[dict[str, Any], tuple[float, ...], float]:
    """Settings with the optimiser's kind, the rates to choose from, and the strategy's own.

    No rates: the settings have one, or the strategy has no such optimiser.
    """
    asked = is_auto(given)
    if not asked and not (finds_rate and lacks_rate(given)):
        return given, (), 0.0
    optimiser = {key: value for key, value in given.get("optimiser", {}).items() if key != "lr"}
    other = {key: value for key, value in given.items() if key != "optimiser"}
    default = build(other | ({"optimiser": optimiser} if "kind" in optimiser else {}))
    own = msgspec.to_builtins(default.settings).get("optimiser") or {}
    if not asked and own.get("kind") not in LADDERS:
        return given, (), 0.0
    settings = with_rate({**other, "optimiser": {"kind": own.get("kind"), **optimiser}}, AUTO)
    _, rates = ladder_of(settings)
    return settings, rates, own["lr"]


def _check_baseline(bundle: Bundle, model: Model, strategy: Strategy, sends: Sends) -> None:
    """Whether devices can train alone as well, and tell what comes of it."""
    what = f'evaluation.baseline = "{LOCAL}"'
    if strategy.description.name == LOCAL:
        raise InputError(f"{what}: strategy '{LOCAL}' is that already; leave it out")
    if not sends.scores:
        raise InputError(f"{what}: devices send no scores (privacy.scores), so nobody would know")
    try:
        build_for(bundle.manifest, model, LOCAL, settings_alone(strategy.settings))
    except InputError as error:
        raise InputError(f"{what}: {error}") from error


def _check_participation(config: FederationConfig, strategy: Strategy) -> None:
    name = strategy.description.name
    if config.cohort.selection == "strategy" and strategy.rank is None:
        raise InputError(
            f"cohort.selection: strategy '{name}' does not say whom to invite first; use 'random' "
            "or 'least_recent'"
        )
    if config.stragglers.budget_s is not None and not strategy.description.partial_work:
        takers = sorted(one for one, its in DESCRIPTIONS.items() if its.partial_work)
        raise InputError(
            f"stragglers.budget_s: strategy '{name}' does not allow a part of the local training; "
            f"leave it out, or use one of {', '.join(takers)}"
        )


def _check_schedule(
    config: FederationConfig, description: Description, aggregator: Aggregator
) -> None:
    """Updates of earlier rounds need a weighted mean, and buffers have no cohort."""
    chosen = config.schedule
    if not chosen.takes_older:
        return
    what = f'schedule.kind = "{chosen.kind}"' if chosen.buffer else 'schedule.late = "weighted"'
    if not description.takes_late:
        takers = sorted(name for name, one in DESCRIPTIONS.items() if one.takes_late)
        raise InputError(
            f"{what}: strategy '{description.name}' needs rounds, as its server does more with "
            f"updates than a weighted mean; leave [schedule] out, or use one of {', '.join(takers)}"
        )
    if not aggregator.incremental:
        raise InputError(
            f"{what}: aggregation '{config.aggregation.kind}' compares the updates of a round, and "
            "those of earlier states cannot be compared with others; leave one of the two out"
        )
    if config.privacy.noise_multiplier is not None:
        raise InputError(
            f"{what}: the noise of [privacy] is accounted by rounds in which each device counts at "
            "most once; leave one of the two out"
        )
    if chosen.buffer and config.round.every_s:
        raise InputError(
            "round.every_s: a buffered schedule has no rounds that wait for each other; leave one "
            f"of the two out, got {config.round.every_s:g}"
        )
    default, cohort = CohortSettings(), config.cohort
    for name in ("size", "over_selection") if chosen.buffer else ():
        if getattr(cohort, name) != getattr(default, name):
            raise InputError(
                f"cohort.{name}: a buffered schedule has no cohort, and how many devices train at "
                f"once is schedule.concurrency; leave it out, got {getattr(cohort, name)!r}"
            )


def _aggregator(chosen: AggregationSettings, description: Description) -> Aggregator:
    default = AggregationSettings()
    plain = (chosen.kind, chosen.settings) == (default.kind, default.settings)
    unclipped = chosen.norm_clip in (default.norm_clip, 0)
    if not (plain and unclipped) and not description.takes_rule:
        takers = sorted(
            name
            for name, one in DESCRIPTIONS.items()
            if one.takes_rule and name != description.name
        )
        raise InputError(
            f"aggregation '{chosen.kind}': strategy '{description.name}' with these settings has a "
            f"rule of its own and takes no other; leave [aggregation] out, or use one of "
            f"{', '.join(takers)}"
        )
    return build_aggregator(chosen.kind, chosen.settings)


def _keys(trusted: tuple[str, ...]) -> list[bytes]:
    try:
        return [bytes.fromhex(key) for key in trusted]
    except ValueError as error:
        raise InputError(f"trusted: expected public keys in hex: {error}") from error
