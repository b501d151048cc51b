from __future__ import annotations

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle, trust_in_tests

from protofleet.bundle import Bundle, write_bundle
from protofleet.errors import InputError
from protofleet.federation.plan import make_plan
from protofleet.federation.settings import (
    AggregationSettings,
    CohortSettings,
    EvaluationSettings,
    PrivacySettings,
    StragglerSettings,
    StrategySettings,
)
from protofleet.strategies.aggregation import MEAN
from protofleet.strategies.optimisers import LADDERS, Adam, Sgd
from protofleet.strategies.tasks import TASKS

_ALONE = EvaluationSettings(baseline="local")


def test_the_file_s_settings_go_over_the_bundle_s(tiny, tmp_path):
    """What is in force is what the strategy has, what travels and what identifies the run."""
    brought = {"epochs": 2, "optimiser": {"kind": "adam", "lr": 0.1, "beta1": 0.8}}
    bundle = tiny_bundle(tmp_path / "other.pfb", Ed25519PrivateKey.generate(), settings=brought)
    mine = StrategySettings(settings={"optimiser": {"lr": 0.5}})
    plan = make_plan(msgspec.structs.replace(tiny.plan.config, bundle=bundle, strategy=mine))
    assert plan.settings == {"epochs": 2, "optimiser": {"kind": "adam", "lr": 0.5, "beta1": 0.8}}
    assert plan.strategy.settings.optimiser == Adam(lr=0.5, beta1=0.8)
    assert '"lr":0.5' in plan.identity["settings"]


def test_a_rate_that_devices_choose_stands_in_the_run_s_identity(tiny):
    """Chosen, it is the plan with that number; noise hides no rate."""
    auto = StrategySettings(settings={"optimiser": {"lr": "auto"}})
    config = msgspec.structs.replace(tiny.plan.config, strategy=auto)
    plan = make_plan(config)
    assert plan.rates == LADDERS[plan.settings["optimiser"]["kind"]]
    assert '"lr":"auto"' in plan.identity["settings"]
    assert plan.own_lr == tiny.plan.strategy.settings.optimiser.lr
    chosen = plan.calibrated(0.03)
    assert (chosen.rates, chosen.strategy.settings.optimiser.lr) == ((), 0.03)
    noise = PrivacySettings(noise_multiplier=1.0, devices=3)
    with pytest.raises(InputError, match=r"not covered by the noise of \[privacy\]; give a number"):
        make_plan(msgspec.structs.replace(config, privacy=noise))


def test_without_scores_nothing_is_asked_of_losses(tiny):
    quiet = PrivacySettings(scores=False)
    bare = StrategySettings(name="local", settings={})
    config = msgspec.structs.replace(tiny.plan.config, privacy=quiet, strategy=bare)
    assert make_plan(config).rates == ()
    auto = StrategySettings(name="local", settings={"optimiser": {"lr": "auto"}})
    with pytest.raises(InputError, match=r"privacy\.scores is false; give a number"):
        make_plan(msgspec.structs.replace(config, strategy=auto))


def test_the_optimiser_of_a_paper_is_named_and_not_copied(tiny):
    def planned(name):
        chosen = StrategySettings(name=name, settings={"optimiser": "published"})
        return make_plan(msgspec.structs.replace(tiny.plan.config, strategy=chosen))

    plan = planned("fedala")
    assert (plan.rates, plan.strategy.settings.optimiser) == ((), Sgd(lr=0.005))
    with pytest.raises(InputError, match=r"'scaffold' leave it open; .* cdfl, fedala, fedali"):
        planned("scaffold")


def test_batches_that_the_programs_do_not_take_are_refused_at_the_start(tiny, tmp_path):
    """A model that normalises over the batch has no variance of one example."""
    key, bundle = Ed25519PrivateKey.generate(), tiny.plan.bundle
    programs = {
        name: msgspec.structs.replace(program, min_batch=1 if program.objective is None else 2)
        for name, program in bundle.manifest.programs.items()
    }
    manifest = msgspec.structs.replace(bundle.manifest, programs=programs)
    files = {path: bundle.read(path) for path in manifest.files}
    write_bundle(tmp_path / "normalising.pfb", manifest, files, key)
    trust_in_tests(key)

    def plan(**settings):
        mine = StrategySettings(settings=settings)
        changes = {"bundle": tmp_path / "normalising.pfb", "strategy": mine}
        return make_plan(msgspec.structs.replace(tiny.plan.config, **changes))

    assert plan(batch_size=2).bundle.manifest.programs["train"].min_batch == 2
    with pytest.raises(InputError, match=r"setting 'batch_size': expected at least 2, got 1"):
        plan(batch_size=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cohort": CohortSettings(size=1, selection="strategy")},
            "cohort.selection: strategy 'fedavg' does not say whom to invite first",
        ),
        (
            {
                "strategy": StrategySettings(name="feddyn"),
                "stragglers": StragglerSettings(budget_s=1.0),
            },
            "stragglers.budget_s: strategy 'feddyn' does not allow .*use one of ditto, .*fedprox",
        ),
        (
            {"strategy": StrategySettings(name="local"), "evaluation": _ALONE},
            "evaluation.baseline = \"local\": strategy 'local' is that already; leave it out",
        ),
        (
            {"privacy": PrivacySettings(scores=False), "evaluation": _ALONE},
            'evaluation.baseline = "local": devices send no scores',
        ),
    ],
)
def test_what_the_strategy_does_not_allow_is_refused_at_the_start(tiny, changes, message):
    with pytest.raises(InputError, match=message):
        make_plan(msgspec.structs.replace(tiny.plan.config, **changes))


def _with(tiny, strategy, **aggregation):
    chosen = AggregationSettings(**aggregation)
    mine = StrategySettings(name=strategy)
    config = msgspec.structs.replace(tiny.plan.config, strategy=mine, aggregation=chosen)
    return make_plan(config)


def test_the_aggregation_rule_is_the_file_s_and_part_of_the_run(tiny):
    assert tiny.plan.aggregator is MEAN
    plan = _with(tiny, "fedavg", kind="median", settings={"weighted": True})
    assert plan.aggregator.name == "median"
    limits = '"most_examples":10.0,"norm_clip":3.0'
    assert tiny.plan.identity["aggregation"] == f'{{"kind":"mean",{limits},"settings":{{}}}}'
    assert plan.identity["aggregation"] == (
        f'{{"kind":"median",{limits},"settings":{{"weighted":true}}}}'
    )


def test_a_rule_for_a_strategy_that_takes_none_is_refused_by_name(tiny):
    message = r"aggregation 'median': strategy 'local' .*; leave .*, or use one of .*fedavg,"
    with pytest.raises(InputError, match=message):
        _with(tiny, "local", kind="median")
    with pytest.raises(InputError, match=r"aggregation 'mean': strategy 'local' .* takes no other"):
        _with(tiny, "local", norm_clip=5.0)
    assert _with(tiny, "local", kind="mean", most_examples=3.0).aggregator is MEAN


def test_an_unknown_rule_is_refused_by_name(tiny):
    with pytest.raises(InputError, match=r"aggregation 'crum': unknown; expected one of .*mean"):
        _with(tiny, "fedavg", kind="crum")


def _without_classes(tmp_path, task):
    """The tiny bundle's manifest as that of a task with targets; its programs are not to be run."""
    key = Ed25519PrivateKey.generate()
    tiny = Bundle.open(tiny_bundle(tmp_path / "classes.pfb", key), any_signer=True)
    names, declared = tiny.manifest.classes, tiny.manifest.programs
    y = msgspec.structs.replace(
        declared["train"].inputs[-1], dtype="float32", shape=("batch", len(names))
    )
    train = msgspec.structs.replace(
        declared["train"],
        inputs=(*declared["train"].inputs[:-1], y),
        objective=next(iter(TASKS[task].losses)),
    )
    programs = {"infer": declared["infer"], "train": train}
    manifest = msgspec.structs.replace(
        tiny.manifest, task=task, classes=(), targets=names, programs=programs
    )
    kept = ("params.safetensors", *(program.file for program in programs.values()))
    write_bundle(tmp_path / "other.pfb", manifest, {path: tiny.read(path) for path in kept}, key)
    return tmp_path / "other.pfb"


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_a_strategy_that_looks_at_classes_is_refused_before_any_device_comes(tiny, tmp_path, task):
    config = msgspec.structs.replace(tiny.plan.config, bundle=_without_classes(tmp_path, task))
    plan = make_plan(config)
    assert (plan.model.task, plan.model.num_classes) == (task, 0)
    mine = StrategySettings(name="fedproto")
    with pytest.raises(InputError, match=f"'fedproto': .* got {task}; use one of .*ditto, "):
        make_plan(msgspec.structs.replace(config, strategy=mine))
