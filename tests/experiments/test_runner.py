"""Whole runs on scikit-learn's digits: two engines, interruptions, data that change."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from rich.console import Console

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.rows import Accepted, ArrivedUpdate
from protofleet.datasets import load_device_data, load_pooled
from protofleet.durable import lock
from protofleet.errors import InputError, ProtofleetError, UnavailableError
from protofleet.experiments import local, mqtt, runner, server_side
from protofleet.experiments.config import Experiment, digest
from protofleet.experiments.prepare import Preparation
from protofleet.experiments.runner import RunOptions, run_experiment
from protofleet.experiments.store import load_results, load_run, run_folder, save_result
from protofleet.federation.records import ClientCosts, Costs, UpdateRecord
from protofleet.strategies.training import DivergedError

_MLP = {"name": "mlp", "settings": {"inputs": 64, "hidden": [16, 12]}}
_CODEC = {"up": "topk", "down": "int4"}
_BASE = {
    "title": "digits",
    "paper": "none",
    "table": "none",
    "data": [{"name": "digits"}],
    "partition": {"kind": "dirichlet", "clients": 3, "alpha": 1.0},
    "model": _MLP,
    "rounds": 2,
    "seeds": [1],
    "training": {"epochs": 1, "optimiser": {"kind": "sgd", "lr": 0.05}},
    "methods": [{"label": "FedAvg", "strategy": "fedavg"}],
}


def experiment(**changes) -> Experiment:
    return msgspec.convert({**_BASE, **changes}, Experiment)


@pytest.fixture
def run(tmp_path):
    def go(chosen, **options):
        console = Console(quiet=True)
        given = RunOptions(data_root=tmp_path, **{"workers": 2, **options})
        return run_experiment("digits", chosen, tmp_path / "runs", given, console)

    return go


def scores(results):
    return [[one.scores for one in result.rounds] for result in results]


def test_the_experiment_s_aggregation_is_that_of_methods_that_name_none():
    unlimited, limited = {"norm_clip": 0.0, "most_examples": 0.0}, {"norm_clip": 3.0}
    methods = [{"label": "FedAvg", "strategy": "fedavg"}]
    named = [{**methods[0], "aggregation": unlimited}]
    both = [{**methods[0], "aggregation": limited}]
    plain, shared, own, over = (
        digest(chosen, chosen.methods[0])
        for chosen in (
            experiment(methods=methods),
            experiment(methods=methods, aggregation=unlimited),
            experiment(methods=named),
            experiment(methods=both, aggregation=unlimited),
        )
    )
    assert shared == own
    assert plain == over != shared


@pytest.mark.parametrize("lr", [100.0, 1e6], ids=["in an update", "on a client"])
def test_a_method_that_diverges_does_not_stop_the_others(run, tmp_path, lr):
    methods = [
        {
            "label": "Wild",
            "strategy": "fedavg",
            "settings": {"optimiser": {"kind": "sgd", "lr": lr, "momentum": 0.9}},
        },
        {"label": "FedAvg", "strategy": "fedavg"},
    ]
    chosen = experiment(methods=methods, rounds=4)
    with pytest.raises(ProtofleetError, match=r"1 of 2 runs stopped, .*Wild.* table digits"):
        run(chosen)
    assert load_run(tmp_path / "runs" / "fedavg" / "seed-1").finished
    wild = load_run(tmp_path / "runs" / "wild" / "seed-1")
    assert (wild.finished, wild.rounds) == (False, ())
    assert "expected" in wild.stopped or "finite" in wild.stopped
    assert wild.digest == digest(chosen, chosen.methods[0])


def test_the_rounds_before_a_method_diverged_are_kept(run, tmp_path, monkeypatch):
    """In its third round."""
    step = local._Engine._trained

    def diverging(self, run, *more):
        if len(run.rounds) == 2:
            raise DivergedError("client 'client-0': a loss is not finite")
        return step(self, run, *more)

    monkeypatch.setattr(local._Engine, "_trained", diverging)
    with pytest.raises(ProtofleetError, match=r"1 of 1 runs stopped, .*a loss is not finite"):
        run(experiment(rounds=4))
    kept = load_run(tmp_path / "runs" / "fedavg" / "seed-1")
    assert [one.round_id for one in kept.rounds] == [1, 2]
    assert (kept.finished, kept.stopped) == (False, "client 'client-0': a loss is not finite")


def test_what_clients_do_not_tell_of_their_costs_is_not_counted_as_nothing():
    told, silent = ClientCosts(train_s=1.0, kept_bytes=30.0), ClientCosts(train_s=3.0)
    assert server_side._mean_costs([told, silent]) == ClientCosts(train_s=2.0, kept_bytes=30.0)
    assert server_side._mean_costs([silent]) == silent


def test_devices_that_tell_no_costs_leave_a_rounds_mean_as_it_is(tmp_path):
    """1.5 and 2.5 s of the first round; of the second nobody tells."""
    spent = {1: [{"train": 1.0, "encode": 0.5}, {"train": 2.5}, {}], 2: [{}, {}, {}]}
    with Ledger(tmp_path / "run", {"federation": "home"}) as ledger:
        for number, devices in spent.items():
            names = [f"client-{place}" for place in range(len(devices))]
            ledger.open_round(number, names, 0.0)
            for name, cpu_s in zip(names, devices, strict=True):
                costs = Costs(cpu_s=cpu_s)
                record = UpdateRecord(client_id=name, round_id=number, num_examples=1, costs=costs)
                source = tmp_path / name
                source.write_bytes(b"tensors")
                row = Accepted(device_id=name, transfer_id=f"{name}-{number}", record=record)
                ledger.accept(ArrivedUpdate(source, row))
    assert mqtt._training(tmp_path / "run") == {1: ClientCosts(train_s=2.0)}


@pytest.mark.slow(seconds=30)
@pytest.mark.mosquitto
@pytest.mark.timeout(240)
def test_both_engines_give_the_same_scores(run):
    """A cohort of two of three, a final fit, an abstaining strategy, class counts, and codecs."""
    chosen = experiment(
        cohort=2,
        methods=[
            {"label": "FedAvg-C", "strategy": "fedavg_c"},
            {"label": "Local", "strategy": "local"},
            {"label": "FedProto", "strategy": "fedproto"},
            {"label": "coded", "strategy": "fedavg", "rounds": 3, "codec": _CODEC},
        ],
    )
    alone = run(chosen)
    wired = run(chosen, engine="mqtt")
    assert [one.engine for one in wired] == ["mqtt"] * 4
    assert [len(one.rounds) for one in wired] == [3, 2, 3, 3]
    assert wired[0].rounds[-1].final
    assert wired[0].rounds[-1].participants == 3
    assert scores(alone) == scores(wired)
    # What clients spent is told in the rounds, by devices for what training took alone.
    assert all(one.costs.train_s > 0 for result in (*alone, *wired) for one in result.rounds)
    assert [result.rounds[1].costs.kept_bytes > 0 for result in alone] == [True] * 4
    assert all(one.costs.kept_bytes is None for result in wired for one in result.rounds)


@pytest.mark.slow(seconds=12)
@pytest.mark.mosquitto
@pytest.mark.timeout(240)
def test_both_engines_choose_the_same_rate(run):
    """By all clients' own trials; one strategy has two models, one needs class counts."""
    auto = {"optimiser": {"kind": "sgd", "lr": "auto"}}
    chosen = experiment(
        rounds=2,
        methods=[
            {"label": "Ditto", "strategy": "ditto", "settings": auto},
            {"label": "FedProto", "strategy": "fedproto", "settings": auto},
        ],
    )
    alone, wired = run(chosen), run(chosen, engine="mqtt")
    assert [one.calibration for one in alone] == [one.calibration for one in wired]
    assert all(one.calibration.devices == 3 for one in wired)
    assert scores(alone) == scores(wired)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_scores(run, tmp_path, monkeypatch):
    """Round 3 of 4 is interrupted after a checkpoint; the state of every client goes on."""
    chosen = experiment(
        rounds=4,
        methods=[{"label": "Ditto", "strategy": "ditto"}],
        score={"pooled_limit": 0},
    )
    whole = run(chosen)
    train = local._Engine._round

    def interrupted(self, run, pool):
        if self._state.round_id == 3:
            raise KeyboardInterrupt
        return train(self, run, pool)

    monkeypatch.setattr(local._Engine, "_round", interrupted)
    folder = run_folder(tmp_path / "runs", chosen.methods[0], 1)
    (folder / "result.json").unlink()
    with pytest.raises(KeyboardInterrupt):
        run(chosen)
    (left,) = load_results(tmp_path / "runs", chosen)
    assert (left.finished, len(left.rounds)) == (False, 2)
    started = []

    def counted(self, run, pool):
        started.append(self._state.round_id)
        return train(self, run, pool)

    monkeypatch.setattr(local._Engine, "_round", counted)
    resumed = run(chosen)
    assert started == [3, 4]
    assert scores(resumed) == scores(whole)


@pytest.mark.slow
def test_a_finished_run_is_not_run_again_but_a_changed_one_is(run, monkeypatch):
    first = run(experiment())
    monkeypatch.setattr(runner, "run_local", lambda *_, **__: pytest.fail("it ran again"))
    assert scores(run(experiment())) == scores(first)
    with pytest.raises(pytest.fail.Exception, match="it ran again"):
        run(experiment(rounds=3))


@pytest.mark.slow
def test_a_change_that_decides_numbers_runs_anew_and_the_old_run_is_put_aside(run, tmp_path):
    """Central training in place of the federation."""
    (first,) = run(experiment())
    merged = experiment(methods=[{"label": "FedAvg", "strategy": "fedavg", "merged": True}])
    (second,) = run(merged)
    assert (first.clients, second.clients) == (3, 1)
    folder = run_folder(tmp_path / "runs", merged.methods[0], 1)
    assert load_run(folder.with_name("seed-1.old")) == first


def test_two_runs_do_not_share_a_folder(run, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    with lock(folder / "lock", taken="mine"), pytest.raises(UnavailableError, match="another run"):
        run(experiment())


def test_a_finished_run_is_told_what_it_rests_on_without_training_again(run, tmp_path):
    chosen = experiment(score={"pooled_limit": 50}, rounds=1)
    (first,) = run(chosen)
    assert first.evaluation_data.pooled == 50
    assert first.settings["epochs"] == 1
    assert first.settings["batch_size"]  # a default
    folder = run_folder(tmp_path / "runs", chosen.methods[0], 1)
    save_result(folder, msgspec.structs.replace(first, evaluation_data=None, settings={}))
    (second,) = run(chosen)
    assert second == first == load_run(folder)


@pytest.mark.slow
def test_central_training_is_one_client_with_all_data(run, tmp_path):
    merged = experiment(
        methods=[{"label": "central", "strategy": "local", "merged": True}], cohort=2
    )
    (result,) = run(merged)
    assert result.clients == result.rounds[0].participants == 1
    scores = result.scores
    assert scores.personalisation["accuracy"].mean == scores.generalisation["accuracy"].mean
    assert result.peak_bytes is None
    (measured,) = run(merged, memory=True)  # of a run that was finished before
    assert 5e7 < measured.peak_bytes < 5e9
    assert measured.rounds == result.rounds
    assert load_results(tmp_path / "runs", merged) == [measured]


def test_seeds_divide_the_data_differently_unless_the_file_fixes_the_division(tmp_path):
    def data(seed, **changes):
        preparation = Preparation(
            experiment=experiment(**changes), folder=tmp_path, data_root=tmp_path
        )
        return preparation.data(seed)

    assert data(1) != data(2)
    assert data(1) == data(1)
    assert data(1, partition_seed=7) == data(2, partition_seed=7)
    limited = data(1, score={"pooled_limit": 50})
    assert len(load_pooled(limited.pooled)[1]) == 50
    assert data(1, score={"pooled_limit": 0}).pooled is None


def test_classes_that_go_come_back_one_by_one(tmp_path):
    preparation = Preparation(
        experiment=experiment(dynamic={"share": 1.0, "every": 4}),
        folder=tmp_path,
        data_root=tmp_path,
    )
    for files in preparation.data(1).clients.values():
        stages = [(1, files.own), *files.later]
        assert [start for start, _ in stages] == [1 + 4 * i for i in range(len(stages))]
        owned = [set(np.unique(load_device_data(path).y_train)) for _, path in stages]
        grown = [len(after - before) for before, after in itertools.pairwise(owned)]
        assert len(stages) > 1
        assert set(grown) == {1}


@pytest.mark.slow
def test_an_unknown_method_strategy_or_model_is_named(run):
    with pytest.raises(InputError, match="method 'FedSGD': not in the experiment; it has FedAvg"):
        run(experiment(), labels=["FedSGD"])
    with pytest.raises(InputError, match="strategy 'fedsgd': unknown"):
        run(experiment(methods=[{"label": "x", "strategy": "fedsgd"}]))
    with pytest.raises(InputError, match="no method's strategy knows 'epoch'"):
        run(experiment(training={"epoch": 1}))
    with pytest.raises(InputError, match="unknown key `lrr`"):
        run(experiment(methods=[{"label": "x", "strategy": "fedavg", "settings": {"lrr": 1}}]))
