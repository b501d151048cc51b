"""What a run is, whichever engine runs it: one method with one seed."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec

from protofleet.bundle import Bundle
from protofleet.experiments.attacks import liars_among
from protofleet.experiments.config import Experiment, Method, digest
from protofleet.experiments.prepare import MERGED, ClientFiles, PreparedData
from protofleet.experiments.store import Engine, MethodResult
from protofleet.federation.outcomes.scores import last_scores, run_scores
from protofleet.federation.plan import Plan, make_plan
from protofleet.federation.records import RoundRecord
from protofleet.federation.schedules.early_stopping import NEVER, StopSettings
from protofleet.federation.schedules.schedule_settings import ScheduleSettings
from protofleet.federation.section import Amount
from protofleet.federation.settings import (
    AggregationSettings,
    CohortSettings,
    EvaluationSettings,
    FederationConfig,
    LivenessSettings,
    PrivacySettings,
    RoundSettings,
    StrategySettings,
)
from protofleet.strategies import build
from protofleet.wire.mqtt.broker_access import BrokerAccess

_HOUR_S = 3600.0
_NOWHERE = BrokerAccess(url="mqtt://127.0.0.1")  # the local engine connects to none

Watch = Callable[[RoundRecord], None]
"""Told of every finished round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One method with one seed.

    Attributes:
        experiment: its file's content.
        method: the row.
        seed: of values, data (unless fixed), cohorts and local training.
        rounds: how many.
        bundle: with the seed's initial values.
        data: the seed's files.
        folder: the run's own.
        name: of the experiment.
        stop: when it ends before its last round.
        finds_rate: whether clients find a learning rate that nobody has set.
    """

    experiment: Experiment
    method: Method
    seed: int
    rounds: int
    bundle: Path
    data: PreparedData
    folder: Path
    name: str
    stop: StopSettings = NEVER
    finds_rate: bool = False

    @property
    def clients(self) -> dict[str, ClientFiles]:
        """Files by client; central training has a single client."""
        if self.method.merged:
            return {MERGED: ClientFiles(own=self.data.merged)}
        return self.data.clients

    @property
    def liars(self) -> frozenset[str]:
        """Clients that lie."""
        hostile = self.method.hostile
        return liars_among(hostile, tuple(self.clients), self.seed) if hostile else frozenset()

    def settings(self, bundle: Bundle) -> dict[str, Any]:
        """The settings of the method's strategy.

        Where not all clients take part in every round, a strategy that asks for the size of the
        federation (``server.population``) is told their number, unless the method says another.

        Raises:
            InputError: a setting that the strategy does not know.
        """
        strategy = self.method.strategy
        known = build(strategy, {}, bundle.model()).settings
        chosen = self.experiment.settings_of(self.method, dict.fromkeys(known.__struct_fields__))
        asks = hasattr(getattr(known, "server", None), "population")
        if self._cohort == "all" or not asks:
            return chosen
        told = {"server": {"population": len(self.clients)}}
        return StrategySettings(settings=chosen).over(strategy, told)

    def plan(self, broker: BrokerAccess = _NOWHERE) -> Plan:
        """The federation that the run is."""
        bundle = Bundle.open(self.bundle, any_signer=True)
        config = FederationConfig(
            federation="experiment",
            broker=broker,
            bundle=self.bundle,
            trusted=(bundle.signer,),
            run_dir=self.folder / "coordinator",
            rounds=self.rounds,
            seed=self.seed,
            strategy=StrategySettings(name=self.method.strategy, settings=self.settings(bundle)),
            schedule=self.method.schedule,
            cohort=CohortSettings(size=self._cohort, minimum=len(self.clients)),
            round=RoundSettings(deadline_s=_HOUR_S, quorum=1.0),
            stop=self.stop,
            evaluation=EvaluationSettings(pooled=self.data.pooled),
            liveness=LivenessSettings(grace_s=_HOUR_S),
            codec=self.experiment.codec_of(self.method),
            aggregation=self.experiment.aggregation_of(self.method),
            privacy=self._privacy,
        )
        return make_plan(config, finds_rate=self.finds_rate)

    @property
    def _cohort(self) -> Literal["all"] | Amount:
        """Who takes part in a round; never more clients than there are."""
        size = self.experiment.cohort_of(self.method)
        return min(size, len(self.clients)) if isinstance(size, int) else size

    @property
    def _privacy(self) -> PrivacySettings:
        """The method's, repeatable; scores are what an experiment is for."""
        return msgspec.structs.replace(self.method.privacy, noise_seed=self.seed, scores=True)

    def identity(self, plan: Plan, engine: Engine) -> str:
        """Hash of everything that decides the numbers."""
        aggregation = self.experiment.aggregation_of(self.method)
        about = [
            engine,
            plan.strategy.description.name,
            plan.settings,
            self.seed,
            self.rounds,
            self.experiment.cohort_of(self.method),
            self.experiment.codec_of(self.method),
            *([] if aggregation == AggregationSettings() else [aggregation]),
            *([] if self.method.privacy == PrivacySettings() else [self.method.privacy]),
            *([] if self.method.hostile is None else [self.method.hostile]),
            *([] if self.method.schedule == ScheduleSettings() else [self.method.schedule]),
            *([] if self.experiment.slow is None else [self.experiment.slow]),
            *(["diagnostics"] if self.experiment.diagnostics else []),
            {name: entry.sha256 for name, entry in plan.bundle.manifest.files.items()},
            self.data.key,
            sorted(self.clients),
        ]
        return hashlib.sha256(msgspec.json.encode(about, order="sorted")).hexdigest()

    def result(
        self,
        plan: Plan,
        engine: Engine,
        rounds: tuple[RoundRecord, ...],
        *,
        finished: bool,
    ) -> MethodResult:
        """The result of the rounds so far."""
        final = next((one.scores for one in rounds if one.final), None)
        return MethodResult(
            experiment=self.name,
            label=self.method.label,
            strategy=plan.strategy.description.name,
            seed=self.seed,
            identity=self.identity(plan, engine),
            engine=engine,
            finished=finished,
            rounds=rounds,
            scores=run_scores(one.scores for one in rounds),
            last=last_scores((one.scores for one in rounds if not one.final), final),
            clients=len(self.clients),
            parameters=plan.model.params.layout.size,
            digest=digest(self.experiment, self.method),
            environment={
                "python": platform.python_version(),
                "machine": f"{platform.system()} {platform.machine()}",
                **{package: version(package) for package in ("numpy", "onnxruntime", "protofleet")},
            },
        )
