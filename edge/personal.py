"""On-device inference with the personal model that a store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protofleet.bundle import Bundle
from protofleet.edge.join import open_learner
from protofleet.edge.store import read_personal
from protofleet.edge.training import LocalData
from protofleet.errors import InputError, ProvisionError
from protofleet.federation.records import Percentiles, percentiles
from protofleet.runtime import BackendName, open_classifier
from protofleet.strategies.scores import MetricValues
from protofleet.strategies.tasks import TASKS, defined
from protofleet.tensors import TaskName


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalScores:
    """How well and how fast the personal model infers.

    Attributes:
        round_id: the last delivered round, whose model this is.
        examples: size of the test part.
        task: of the bundle; it says which scores there are.
        scores: on the test part, in batches of 32; those that are defined.
        targets: those of each target or label by name; empty where the task has classes.
        infer_ms: percentiles of the latency of one window, with the model inside the program.
    """

    round_id: int
    examples: int
    task: TaskName
    scores: MetricValues
    targets: Mapping[str, MetricValues]
    infer_ms: Percentiles


def score_personal(
    store: Path,
    bundle: Bundle,
    data: LocalData,
    *,
    threads: int = 1,
    backend: BackendName = "auto",
) -> PersonalScores:
    """Score and time the personal model on the test part; a device may be running meanwhile.

    Raises:
        InputError: no store, no finished round, no test examples, or no such backend.
        ProvisionError: the store belongs to another bundle, or the backend cannot run it.
    """
    journal, state = read_personal(store)
    if journal.binding is None or journal.binding.bundle != bundle.digest:
        raise ProvisionError(f"device store '{store}': belongs to another bundle than this one")
    learner = open_learner(bundle, data, threads=threads, device_id="", backend=backend)
    learner.enter(state.round_id)
    strategy = learner.strategy(journal.strategy, journal.settings)
    model, rule = strategy.client_model(state), strategy.client_score(state)
    statistics = learner.statistics(model, score=rule)
    if statistics is None:
        raise InputError("device data: expected test examples to infer on, got none")
    classifier = open_classifier(bundle, model=model, score=rule, backend=backend, threads=threads)
    learner.measure_inference(classifier.predict)
    manifest = bundle.manifest
    task = TASKS[manifest.task]
    each = zip(manifest.targets, task.score_each(statistics), strict=True)
    return PersonalScores(
        round_id=state.round_id,
        examples=len(data.at(state.round_id).y_test),
        task=manifest.task,
        scores=defined(task.score(statistics)),
        targets={target: defined(values) for target, values in each},
        infer_ms=percentiles(learner.meter.take().infer_ms, 50, 95, 99),
    )
