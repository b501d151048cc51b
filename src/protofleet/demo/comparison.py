"""The other methods on the run's data, trained by the engine without a broker.

Data, seed, rounds and settings are the run's; a method of the run's network starts from its bundle,
the others from one of their own network, pretrained in the same way. The engine gives the bits that
device processes give over MQTT.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from protofleet.bundle import Bundle
from protofleet.datasets import load_device_data, load_pooled
from protofleet.demo.methods import NETWORKS, Network, methods_of
from protofleet.demo.recipes import DemoData, settings_of
from protofleet.demo.settings import DemoSettings
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.experiments.config import DataSource, Method, ModelSettings, ScoreSettings, alone
from protofleet.experiments.local import run_local
from protofleet.experiments.prepare import ClientFiles, PreparedData
from protofleet.experiments.processes import processes
from protofleet.experiments.run import Job
from protofleet.experiments.runner import run_job
from protofleet.experiments.store import MethodResult, run_folder
from protofleet.federation.outcomes.scores import round_scores
from protofleet.federation.records import RunRecord, Scores, load_record
from protofleet.report import ComparedMethod
from protofleet.runtime import open_programs
from protofleet.strategies.types import Evaluation, Score
from protofleet.tensors import Network as TensorNetwork

_LOCALLY = "processes, no broker"


def compare(
    settings: DemoSettings,
    prepared: DemoData,
    bundles: Mapping[Network, Path],
    coordinator: Path,
    console: Console,
) -> tuple[ComparedMethod, ...]:
    """Train the methods beside the run's own, or go on; put all of them together.

    Args:
        settings: of the demonstration.
        prepared: its data.
        bundles: by network, each in the folder where its methods keep their things.
        coordinator: the folder with what came out of the run itself.
        console: progress goes here.

    Raises:
        ProtofleetError: a worker died; nothing that was finished is lost.
    """
    run = load_record(coordinator / "result.json", RunRecord)
    methods = methods_of(run.strategy)
    starts = {network: start_evaluations(bundle, prepared) for network, bundle in bundles.items()}
    results: dict[str, RunRecord | MethodResult] = {run.strategy: run}
    with processes(os.cpu_count() or 1) as opened:
        for strategy in (name for name in methods if name != run.strategy):
            job = make_job(strategy, settings, prepared, bundles[methods[strategy].network])
            results[strategy] = run_job(
                job,
                "local",
                lambda job, watch: run_local(job, opened=opened, watch=watch, keep=True),
                console,
            )
    return tuple(
        ComparedMethod(
            label=method.label,
            strategy=strategy,
            network=NETWORKS[method.network],
            trained="devices, over MQTT" if strategy == run.strategy else _LOCALLY,
            start=scores_of(starts[method.network]),
            rounds=tuple(one.scores for one in results[strategy].rounds),
            last=results[strategy].last,
            outcome=results[strategy].outcome,
        )
        for strategy, method in methods.items()
    )


def make_job(strategy: str, settings: DemoSettings, prepared: DemoData, bundle: Path) -> Job:
    """A method on the data of every device, as the engine without a broker takes it."""
    shown = methods_of(strategy)[strategy]
    model = prepared.models[shown.network]
    method = Method(label=shown.label, strategy=strategy)
    experiment = alone(
        method,
        title=prepared.title,
        rounds=settings.rounds,
        seed=settings.seed,
        data=(DataSource(name=settings.data),),
        model=ModelSettings(name=model.name, settings=model.settings),
        training=settings_of(strategy, prepared),
        score=ScoreSettings(metric="accuracy"),
    )
    return Job(
        experiment=experiment,
        method=method,
        seed=settings.seed,
        rounds=settings.rounds,
        bundle=bundle,
        data=_data(settings, prepared),
        folder=run_folder(bundle.parent / "methods", method, settings.seed).resolve(),
        name="demonstration",
        finds_rate=True,
    )


def _data(settings: DemoSettings, prepared: DemoData) -> PreparedData:
    """The devices' files; the folder holds one demonstration, so its settings tell them apart.

    It may go on with another broker, on which nothing of this depends.
    """
    decisive = msgspec.structs.replace(settings, broker=None)
    return PreparedData(
        clients={name: ClientFiles(own=path.resolve()) for name, path in prepared.own.items()},
        merged=prepared.central.resolve(),
        pooled=prepared.pooled.resolve(),
        classes=prepared.classes,
        input_shape=prepared.preprocessing.input_shape,
        key=msgspec.json.encode(decisive, enc_hook=str).decode(),
    )


def start_evaluations(path: Path, prepared: DemoData) -> dict[str, Evaluation]:
    """A bundle's own model on every device's test part, and on all of them together.

    They are taken as a device takes those of its model, by the same programs and batches.
    """
    bundle = Bundle.open(path, any_signer=True)
    network = bundle.model().network
    found = _evaluations(bundle, prepared, dict.fromkeys(prepared.own, (network, None)))
    # One model: on everybody's test parts it scores the same on every device.
    pooled = next(iter(found.values())).pooled
    return {name: replace(one, pooled=pooled) for name, one in found.items()}


def scores_of(found: Mapping[str, Evaluation]) -> Scores:
    """Scores of the model that all devices start from."""
    return round_scores(found.values(), next(iter(found.values())).pooled)


def _evaluations(
    bundle: Bundle, prepared: DemoData, models: Mapping[str, tuple[TensorNetwork, Score | None]]
) -> dict[str, Evaluation]:
    """Models by device; the first one on everybody's test parts, too."""
    programs, pooled = open_programs(bundle, threads=1), load_pooled(prepared.pooled)
    found: dict[str, Evaluation] = {}
    for name, (network, score) in models.items():
        parts = LocalData(
            own=load_device_data(prepared.own[name]), pooled=None if found else pooled
        )
        learner = Learner(bundle, programs, parts, Meter(), name)
        found[name] = learner.evaluate(network, score=score)
    return found
