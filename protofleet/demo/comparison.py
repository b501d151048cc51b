"""The other methods on the run's data, trained by the engine without a broker.

Data, seed, rounds and settings are the run's; a method of the run's network starts from its bundle,
the others from one of their own network, pretrained in the same way. The engine gives the bits that
device processes give over MQTT.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from protofleet.bundle import Bundle
from protofleet.datasets import load_device_data, load_pooled
from protofleet.demo.methods import METHODS, NETWORKS, Network
from protofleet.demo.recipes import DemoData
from protofleet.demo.settings import DemoSettings
from protofleet.edge.meter import Meter
from protofleet.edge.training import Learner, LocalData
from protofleet.experiments.config import DataSource, Method, ModelSettings, alone
from protofleet.experiments.local import run_local
from protofleet.experiments.prepare import ClientFiles, PreparedData
from protofleet.experiments.processes import processes
from protofleet.experiments.run import Job
from protofleet.experiments.runner import run_job
from protofleet.experiments.store import MethodResult, run_folder
from protofleet.federation.records import RunRecord, Scores
from protofleet.federation.scores import round_scores
from protofleet.report import ComparedMethod
from protofleet.runtime import open_programs
from protofleet.strategies.types import Evaluation

_LOCALLY = "processes, no broker"


def compare(
    settings: DemoSettings,
    prepared: DemoData,
    bundles: Mapping[Network, Path],
    run: RunRecord,
    console: Console,
) -> tuple[ComparedMethod, ...]:
    """Train the methods beside the run's own, or go on; put all of them together.

    Args:
        settings: of the demonstration.
        prepared: its data.
        bundles: by network, each in the folder where its methods keep their things.
        run: what came out of the run itself.
        console: progress goes here.

    Raises:
        ProtofleetError: a worker died; nothing that was finished is lost.
    """
    starts = {network: start_scores(bundle, prepared) for network, bundle in bundles.items()}
    results: dict[str, RunRecord | MethodResult] = {run.strategy: run}
    with processes(os.cpu_count() or 1) as opened:
        for strategy in (name for name in METHODS if name != run.strategy):
            job = make_job(strategy, settings, prepared, bundles[METHODS[strategy].network])
            results[strategy] = run_job(
                job, "local", lambda job, watch: run_local(job, opened=opened, watch=watch), console
            )
    return tuple(
        ComparedMethod(
            label=method.label,
            strategy=strategy,
            network=NETWORKS[method.network],
            trained="devices, over MQTT" if strategy == run.strategy else _LOCALLY,
            start=starts[method.network],
            rounds=tuple(one.scores for one in results[strategy].rounds),
            last=results[strategy].last,
        )
        for strategy, method in METHODS.items()
    )


def make_job(strategy: str, settings: DemoSettings, prepared: DemoData, bundle: Path) -> Job:
    """A method on the data of every device, as the engine without a broker takes it."""
    shown = METHODS[strategy]
    model = prepared.models[shown.network]
    method = Method(label=shown.label, strategy=strategy)
    experiment = alone(
        method,
        title=prepared.title,
        rounds=settings.rounds,
        seed=settings.seed,
        data=(DataSource(name=settings.data),),
        model=ModelSettings(name=model.name, settings=model.settings),
        training=prepared.strategy_settings,
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


def start_scores(path: Path, prepared: DemoData) -> Scores:
    """Scores of a bundle's values, on every device's test part and on all of them together.

    They are taken as a device takes those of its model, by the same programs and batches.
    """
    bundle = Bundle.open(path, any_signer=True)
    programs = open_programs(bundle, threads=1)
    pooled = load_pooled(prepared.pooled)

    def evaluations() -> Iterator[Evaluation]:
        everybody = None
        for name, own in prepared.own.items():
            parts = LocalData(own=load_device_data(own), pooled=None if everybody else pooled)
            learner = Learner(bundle, programs, parts, Meter(), name)
            found = learner.evaluate(learner.model.network)
            everybody = everybody or found
            # One model: on everybody's test parts it scores the same on every device.
            yield replace(found, pooled=everybody.pooled)

    found = tuple(evaluations())
    return round_scores(found, found[0].pooled, task=bundle.manifest.task)
