"""Stored runs of chosen scores, as data sets of the overview."""

from __future__ import annotations

import msgspec

from protofleet.experiments import _overview_text
from protofleet.experiments.config import Experiment, digest
from protofleet.experiments.overview import Overview, data_set
from protofleet.experiments.store import EvaluationData, MethodResult
from protofleet.federation.records import ClientCosts, RoundRecord, Scores, Spread

METHODS = [
    {"label": "FedAvg", "strategy": "fedavg"},
    {"label": "Dear", "strategy": "scaffold"},
    {"label": "Cheap", "strategy": "fedproto"},
    {"label": "Cheap, long", "strategy": "fedproto", "rounds": 8},
    {"label": "Fitted", "strategy": "fedavg_c"},
    {"label": "Alone", "strategy": "local"},
    {"label": "Central", "strategy": "local", "merged": True},
]


def an_experiment(title="Digits", kind="iid", seeds=(1, 2, 3), methods=METHODS) -> Experiment:
    partition = {"kind": kind, "clients": 2} | ({"alpha": 0.1} if kind == "dirichlet" else {})
    return msgspec.convert(
        {
            "title": title,
            "paper": "choosing",
            "table": title,
            "data": [{"name": "digits"}],
            "partition": partition,
            "model": {"name": "mlp"},
            "rounds": 4,
            "seeds": seeds,
            "methods": methods,
            "score": {"metric": "accuracy", "select": "last"},
        },
        Experiment,
    )


def scores(own, server=None, std=0.1):
    found = {"personalisation": {"accuracy": {"mean": own, "std": std, "n": 9}}}
    if server is not None:
        found["global"] = {"accuracy": {"mean": server, "std": 0, "n": 1}}
    return msgspec.convert(found, Scores)


def rests_on(pooled, frequent):
    """Test examples of all, and what always naming the most frequent class scores."""
    most_frequent = {"accuracy": Spread(mean=frequent, std=0.1, n=9)}
    return EvaluationData(pooled=pooled, most_frequent=most_frequent)


def a_run(experiment, label, own, *, seed=1, size=100, fit=None, train_s=0.5, peak=None, **more):
    """A round for each of ``own``; two clients that move ``size`` bytes each in a round."""
    method = next(one for one in experiment.methods if one.label == label)
    rounds = [(score, False) for score in own] + ([(fit, True)] if fit is not None else [])
    return MethodResult(
        experiment="x",
        label=label,
        strategy=method.strategy,
        seed=seed,
        identity="",
        engine="local",
        finished=True,
        rounds=tuple(
            RoundRecord(
                round_id=number + 1,
                final=final,
                seconds=1,
                participants=2,
                bytes_up=size,
                bytes_down=size,
                scores=scores(score, server=None if final else score - 0.1),
                # What a first round costs is no measure.
                costs=ClientCosts(train_s=train_s if number else 99.0, kept_bytes=size * 10),
            )
            for number, (score, final) in enumerate(rounds)
        ),
        clients=2,
        peak_bytes=peak,
        digest=digest(experiment, method),
        **more,
    )


def found(experiment, *runs, name="x", diverged=None):
    by_label = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    return data_set(name, experiment, by_label, diverged or {})


def entry_of(table, label):
    return next(one for one in table.entries if one.label == label)


def page_of(*data_sets):
    return _overview_text.page(Overview(data_sets=data_sets, missing=(), runs={}), "x", None)
