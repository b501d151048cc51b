"""An experiment of two methods with a claim about them, and stored runs of chosen scores."""

import msgspec

from protofleet.experiments.config import digest, load_experiment
from protofleet.experiments.store import MethodResult, run_folder, save_result
from protofleet.federation.records import RoundRecord, Scores

EXPERIMENT = """
title = "Digits"
paper = "fedx"
table = "1"
rounds = 3
seeds = [1, 2, 3]
partition = {kind = "iid", clients = 2}
model = {name = "mlp", settings = {hidden = [8]}}
training = {epochs = 1, optimiser = {kind = "sgd", lr = 0.1}}
data = [{name = "digits"}]
score = {metric = "accuracy", sections = ["personalisation", "loss"]}
methods = [{label = "A", strategy = "fedavg"}, {label = "B", strategy = "local"}]
"""
CLAIMS = """
paper = "FedX"
reference = "Nobody, FedX"

[[claims]]
id = "fedx-better"
claim = "A scores higher than B."
printed = "Table 1: +2"
experiment = "one.toml"
setting = "digits"
remarks = "As expected."

[[claims.comparisons]]
method = "A"
against = "B"
sections = ["personalisation"]
paper = 2.0
elsewhere = {elsewhere = 5.0}

[[claims.comparisons]]
method = "A"
against = "B"
sections = ["loss"]
expect = "less"
detail = true

[[claims.comparisons]]
method = "A"
against = "B"
measures = ["bytes"]
expect = "less"
detail = true
"""


def write_files(folder):
    """``one.toml`` and ``papers/fedx.toml``; returns the experiment."""
    (folder / "one.toml").write_text(EXPERIMENT, encoding="utf-8")
    (folder / "papers").mkdir()
    (folder / "papers" / "fedx.toml").write_text(CLAIMS, encoding="utf-8")
    return load_experiment(folder / "one.toml")


def a_round(number, score, *, up=1000, down=1000, final=False, loss=None):
    """A round of two clients; ``up`` and ``down`` are bytes of both."""
    metrics = {"accuracy": {"mean": score, "std": 0.0, "n": 2}}
    scores = {"personalisation": metrics}
    if loss is not None:
        scores["own_loss"] = {"mean": loss, "std": 0.0, "n": 2}
    return RoundRecord(
        round_id=number,
        final=final,
        seconds=2.0,
        participants=2,
        bytes_up=up,
        bytes_down=down,
        scores=msgspec.convert(scores, Scores),
    )


def a_run(label, seed, scores, *, up=1000, down=1000, final=None, finished=True, key="", loss=None):
    """A run with these scores, from 0 to 1, in its rounds."""
    rounds = [a_round(k, s, up=up, down=down, loss=loss) for k, s in enumerate(scores, start=1)]
    if final is not None:
        rounds.append(a_round(len(rounds) + 1, final, up=0, down=0, final=True))
    return MethodResult(
        experiment="one",
        label=label,
        strategy="fedavg",
        seed=seed,
        identity="",
        engine="local",
        finished=finished,
        rounds=tuple(rounds),
        clients=2,
        digest=key,
    )


def store_runs(folder, experiment, *runs):
    """As ``run`` leaves them; those without a digest get that of the experiment."""
    methods = {method.label: method for method in experiment.methods}
    for run in runs:
        method = methods[run.label]
        key = run.digest or digest(experiment, method)
        stored = msgspec.structs.replace(run, digest=key)
        save_result(run_folder(folder, method, run.seed), stored)
