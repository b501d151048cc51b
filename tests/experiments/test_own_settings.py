"""What a method does otherwise than its experiment's other methods."""

from __future__ import annotations

import msgspec
from overview_runs import a_run, an_experiment, found, page_of

from protofleet.experiments.own_settings import makes_more_steps, other_optimisers
from protofleet.strategies.methods.cdfl.settings import CdflSettings
from protofleet.strategies.methods.fedhp import FedHPSettings
from protofleet.strategies.methods.partialfed import PartialFedSettings
from protofleet.strategies.optimisers import Sgd


def test_methods_with_other_optimisers_or_more_steps_are_marked_and_their_settings_listed():
    sgd, adam = {"kind": "sgd", "lr": 0.1}, {"kind": "adam", "lr": 0.01}
    own = {"optimiser": adam}
    methods = [
        {"label": "FedAvg", "strategy": "fedavg"},
        {"label": "Adam", "strategy": "fedavg", "settings": own},
        {"label": "Long", "strategy": "fedavg", "settings": {"epochs": 4}},
        {"label": "Head", "strategy": "fedrep"},
    ]
    experiment = msgspec.structs.replace(
        an_experiment(methods=methods),
        note="One\nnote.",
        training={"epochs": 2, "optimiser": sgd},
    )
    shared = {"epochs": 2, "optimiser": sgd | {"momentum": 0.0}}
    heads = {"head_epochs": 1, "head_optimiser": adam}
    chosen = {"FedAvg": {}, "Adam": own, "Long": {"epochs": 4}, "Head": heads}
    table = found(
        experiment,
        *(a_run(experiment, n, [0.5] * 4, settings=shared | one) for n, one in chosen.items()),
    )
    marks = {one.label: (one.other_optimiser, one.more_steps) for one in table.entries}
    assert marks == {
        "FedAvg": (False, False), "Adam": (True, False), "Long": (False, True),
        "Head": (True, True),
    }  # fmt: skip
    lines = page_of(table).splitlines()
    assert "One note." in lines
    assert 'All methods: `epochs = 2, optimiser = {kind = "sgd", lr = 0.1}`.' in lines
    assert '| Head | `head_optimiser = {kind = "adam", lr = 0.01}` |' in lines
    assert "| Long | `epochs = 4` |" in lines
    assert any(line.startswith("| Head§¶ | ") for line in lines)


def _ran(experiment, label, settings):
    return [a_run(experiment, label, [0.5] * 4, settings=msgspec.to_builtins(settings))]


def test_every_optimiser_that_moves_the_model_counts():
    """FedHP moves prototypes by Adam; PartialFed's Adam moves no parameter but its decisions."""
    sgd = {"kind": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
    experiment = msgspec.structs.replace(an_experiment(), training={"optimiser": sgd})
    ours = FedHPSettings()
    found = other_optimisers(experiment, _ran(experiment, "FedAvg", ours))
    assert found == {"prototype_optimiser": msgspec.to_builtins(ours.prototype_optimiser)}
    partial = PartialFedSettings(optimiser=Sgd(lr=0.01, momentum=0.9, weight_decay=1e-4))
    assert other_optimisers(experiment, _ran(experiment, "FedAvg", partial)) == {}
    server = other_optimisers(experiment, _ran(experiment, "FedAvg", CdflSettings()))
    assert server.keys() == {"optimiser", "server_optimiser"}


def test_no_method_makes_more_steps_than_one_whose_settings_are_not_told():
    experiment = an_experiment()
    untold, two = ([a_run(experiment, "FedAvg", [0.5] * 4, settings=settings)]
                   for settings in ({}, {"epochs": 2}))  # fmt: skip
    one = [a_run(experiment, "Dear", [0.5] * 4, settings={"epochs": 1})]
    assert not makes_more_steps(one, untold)
    assert not makes_more_steps(untold, one)
    assert makes_more_steps(two, one)
