"""The engine of the real wire: a broker, a coordinator and one process for each client."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from protofleet.coordinator.ledger.queries import counted_updates, opened_ledger
from protofleet.errors import InputError, UnavailableError
from protofleet.experiments.run import Job, Watch
from protofleet.experiments.store import MethodResult, save_result
from protofleet.federation.outcomes.calibration import lacks_rate, with_rate
from protofleet.federation.plan import Plan
from protofleet.federation.records import ClientCosts, RoundRecord, RunRecord, load_record
from protofleet.federation.settings import FederationConfig, StrategySettings
from protofleet.firmware_sim.broker import local_broker
from protofleet.firmware_sim.profile import DeviceProfile, FleetFile, VirtualDevice
from protofleet.firmware_sim.rehearsal import OnEvent, rehearse
from protofleet.settings import to_toml
from protofleet.wire.mqtt.broker_access import BrokerAccess

_CONNECT_S = 5.0
_COMPILED = {"PROTOFLEET_NUMBA": "1"}
"""The coordinator computes with the kernels of the local engine."""


def run_mqtt(job: Job, *, broker: BrokerAccess | None, watch: Watch) -> MethodResult:
    """Run, or go on with, one method with one seed.

    Args:
        job: what to run.
        broker: which, and the credentials for it; None starts one for the run.
        watch: told of every round.

    Raises:
        InputError: the method has hostile clients, or diagnostics are asked for.
        UnavailableError: no broker, or no device is left.
        ProtofleetError: the coordinator ended early; its message is quoted.
    """
    if job.method.hostile:
        raise InputError(
            f"method '{job.method.label}': liars are played by the engines local and ray; use "
            "one of these"
        )
    if job.experiment.diagnostics:
        raise InputError("`diagnostics`: computed by the engines local and ray; use one of these")
    with _broker(broker) as reached:
        plan = job.plan(reached)
        run_dir = plan.config.run_dir
        config = msgspec.structs.replace(
            plan.config, federation=_federation_name(job), strategy=_strategy(plan)
        )
        file = job.folder / "federation.toml"
        file.write_bytes(to_toml(_values(config)))
        fleet = _fleet(job, config, plan.bundle.signer)
        rehearse(file, fleet, run_dir, _on_rounds(watch), env=_COMPILED)
    spent = _training(run_dir)
    found = load_record(run_dir / "result.json", RunRecord)
    rounds = tuple(
        msgspec.structs.replace(one, costs=spent.get(one.round_id)) for one in found.rounds
    )
    result = msgspec.structs.replace(
        job.result(plan, "mqtt", rounds, finished=True),
        outcome=found.outcome,
        early_end=found.early_end,
        calibration=found.calibration,
    )
    save_result(job.folder, result)
    return result


def _training(run_dir: Path) -> dict[int, ClientCosts]:
    """What the updates that count in a round tell of their devices' training, by the round.

    An update is complete before it is encoded: what it tells of that is of the round before.
    Devices that tell nothing are left out.
    """
    told: dict[int, list[float]] = {}
    with opened_ledger(run_dir) as db:
        for number, record in counted_updates(db):
            spent = record.costs.cpu_s
            if "train" in spent:
                told.setdefault(number, []).append(spent["train"] + spent.get("encode", 0.0))
    return {number: ClientCosts(train_s=round(fmean(each), 6)) for number, each in told.items()}


@contextmanager
def _broker(given: BrokerAccess | None) -> Iterator[BrokerAccess]:
    if given is not None:
        _reach(given)
        yield given
        return
    with local_broker() as started:
        yield BrokerAccess(url=started)


def _reach(broker: BrokerAccess) -> None:
    """Devices and coordinator would wait for a lost broker; one that never was is a mistake."""
    place = broker.address()
    try:
        socket.create_connection((place.host, place.port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise UnavailableError(
            f"broker {broker}: {error}; expected mqtt://host:port of a running broker"
        ) from error


def _federation_name(job: Job) -> str:
    """A name that topics allow; it tells runs on one broker apart."""
    name = f"{job.name}-{job.method.label}-{job.seed}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-64:].strip("-")


def _strategy(plan: Plan) -> StrategySettings:
    """The method's, with the rate that it has: what nobody has set a coordinator leaves open."""
    chosen = plan.config.strategy
    optimiser = msgspec.to_builtins(plan.strategy.settings).get("optimiser")
    if plan.rates or not optimiser or not lacks_rate(plan.settings):
        return chosen
    named = {"kind": optimiser["kind"], **chosen.settings.get("optimiser", {})}
    settings = with_rate({**chosen.settings, "optimiser": named}, optimiser["lr"])
    return msgspec.structs.replace(chosen, settings=settings)


def _values(config: FederationConfig) -> dict[str, Any]:
    """What the federation file says; TOML knows no empty values."""
    pooled = config.evaluation.pooled
    placed = msgspec.structs.replace(
        config,
        bundle=config.bundle.resolve(),
        run_dir=config.run_dir.resolve(),
        evaluation=msgspec.structs.replace(
            config.evaluation, pooled=None if pooled is None else pooled.resolve()
        ),
    )
    return _without_none(msgspec.to_builtins(placed, enc_hook=str))


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _fleet(job: Job, config: FederationConfig, signer: str) -> FleetFile:
    slow, profiles = job.experiment.slow, {}
    named = slow.names(job.clients) if slow else frozenset()
    if slow is not None:
        profiles["slow"] = DeviceProfile(slowdown=slow.slowdown)
    return FleetFile(
        federation=config.federation,
        broker=config.broker,
        bundle=job.bundle.resolve(),
        folder=job.folder / "devices",
        seed=job.seed,
        trust=(signer,),
        profiles=profiles,
        devices=tuple(
            VirtualDevice(
                id=name,
                profile="slow" if name in named else "default",
                data=files.own,
                later=files.later,
                pooled=job.data.pooled,
            )
            for name, files in job.clients.items()
        ),
    )


def _on_rounds(watch: Watch) -> OnEvent:
    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "round_closed":
            watch(msgspec.convert(event, RoundRecord))

    return on_event
