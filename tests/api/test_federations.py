"""A federation in this process and over MQTT: the same scores, the same models."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import protofleet
from protofleet.errors import InputError, RefusedError

_SETTINGS = {"epochs": 2, "optimiser": {"kind": "adam", "lr": 0.01}}

pytestmark = pytest.mark.slow(seconds=4)


class _TwoParts(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.features(x))


@pytest.fixture(scope="module")
def federation(bundle, clients, tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "run"
    return protofleet.Federation(bundle, clients, rounds=3, settings=_SETTINGS, folder=folder)


@pytest.fixture(scope="module")
def results(federation):
    return federation.run()


def _params(model):
    return {name: value.copy() for name, value in model.model.network.params.items()}


def test_it_runs_here_and_leaves_scores_and_models(federation, results, clients):
    assert [one.round_id for one in results.rounds] == [1, 2, 3]
    own = results.last.personalisation["accuracy"]
    models = {name: results.personal(name) for name in clients}
    scores = [models[name].score(data).scores["accuracy"] for name, data in clients.items()]
    assert own.mean == pytest.approx(np.mean(scores))
    everybody = [results.model.score(data).scores["accuracy"] for data in clients.values()]
    assert results.last.global_["accuracy"].mean == pytest.approx(np.mean(everybody))
    assert results.model.round_id == 3
    assert results.folder == federation.folder


def test_finished_it_is_read_and_not_run_again(federation, results):
    told = []
    assert federation.run(watch=told.append) == results == protofleet.read_results(results.folder)
    assert told == []


@pytest.mark.mosquitto
def test_over_mqtt_it_gives_the_same_bits(federation, results, tmp_path, clients):
    told = []
    found = replace(federation, folder=tmp_path / "run").run("mqtt", watch=told.append)
    assert [one.round_id for one in told] == [1, 2, 3]
    assert found.last == results.last
    assert found.outcome == results.outcome
    assert found.outcome.told == len(clients)
    for mine, theirs in (
        (found.model, results.model),
        *((found.personal(name), results.personal(name)) for name in clients),
    ):
        np.testing.assert_equal(_params(mine), _params(theirs))
    assert {device.id for device in found.devices} == set(clients)


def test_training_alone_is_another_run_beside_it(federation, tmp_path):
    """As many steps with the same optimiser, and each owner's score of both in one outcome."""
    given = replace(federation, strategy="ditto", folder=tmp_path / "run")
    found = given.run(baseline="local")
    local = replace(federation, strategy="local", folder=tmp_path / "local").run()
    scores = {one.id: one.end for one in local.outcome.owners}
    assert {one.id: one.alone for one in found.outcome.owners} == scores
    assert found.outcome.alone == pytest.approx(np.mean(list(scores.values())), abs=1e-6)
    assert "than alone" in str(found)
    assert given.run(baseline="local") == protofleet.read_results(found.folder) == found
    with pytest.raises(InputError, match="expected baseline 'local' or None, got 'alone'"):
        given.run(baseline="alone")


def test_it_ends_when_its_target_is_reached_and_goes_on_when_that_is_wanted(
    federation, results, tmp_path
):
    """By either engine after the same round; who trains alone has as many rounds."""
    reached = results.rounds[0].scores.selecting
    ended = replace(federation, stop={"target": reached}, folder=tmp_path / "local")
    local = ended.run(workers=1, baseline="local")
    assert (len(local.rounds), local.early_end.after, local.early_end.why) == (1, 1, "target")
    assert "ended after round 1 of 3: the target of" in str(local)
    assert len(protofleet.read_results(local.folder / "alone").rounds) == 1
    mqtt = replace(ended, folder=tmp_path / "mqtt").run("mqtt")
    assert mqtt.early_end == local.early_end
    for one, engine in ((local, "local"), (mqtt, "mqtt")):
        more = replace(ended, stop={}, folder=one.folder).run(engine, baseline="local")
        assert more.early_end is None
        assert [done.scores for done in more.rounds] == [done.scores for done in results.rounds]
        assert len(protofleet.read_results(more.folder / "alone").rounds) == 3


def test_a_rate_that_nobody_set_is_chosen_by_the_clients(federation, tmp_path):
    """The run is that with the number, bit for bit, however many workers train."""
    auto = {"epochs": 2, "optimiser": {"kind": "adam", "lr": "auto"}}
    found = replace(federation, settings=auto, folder=tmp_path / "auto").run(workers=2)
    chosen = found.calibration
    assert (chosen.lr in chosen.rates, chosen.devices) == (True, len(federation.clients))
    assert chosen.text in str(found)
    number = {"epochs": 2, "optimiser": {"kind": "adam", "lr": chosen.lr}}
    same = replace(federation, settings=number, folder=tmp_path / "number").run(workers=1)
    assert [one.scores for one in found.rounds] == [one.scores for one in same.rounds]
    for name in federation.clients:
        np.testing.assert_equal(_params(found.personal(name)), _params(same.personal(name)))
    again = replace(federation, settings=auto, folder=tmp_path / "again").run(workers=1)
    assert again.calibration == chosen
    assert protofleet.read_results(found.folder) == found


@pytest.mark.parametrize(
    ("optimiser", "message"),
    [
        ({"kind": "adam", "lr": "automatic"}, "expected a number, got text"),
        ({"kind": "lion", "lr": "auto"}, "`optimiser.kind`: expected one of adam, sgd, got 'lion'"),
    ],
)
def test_a_rate_that_cannot_be_chosen(federation, tmp_path, optimiser, message):
    given = replace(federation, settings={"optimiser": optimiser}, folder=tmp_path / "run")
    with pytest.raises(InputError, match=re.escape(message)):
        given.run()


def test_clients_with_too_few_examples_leave_the_strategys_own_rate(federation, tmp_path):
    few = {
        name: replace(data, x_train=data.x_train[:2], y_train=data.y_train[:2])
        for name, data in federation.clients.items()
    }
    settings = {"optimiser": {"kind": "adam", "lr": "auto"}}
    given = replace(federation, clients=few, settings=settings, folder=tmp_path / "run")
    found = given.run(workers=1)
    assert (found.calibration.lr, found.calibration.devices) == (0.002, 0)
    assert "warning: no device could try learning rates" in str(found)


def test_a_bundle_that_cannot_train_alone_is_told_before_anybody_trains(clients, tmp_path):
    path, told = tmp_path / "moon.pfb", []
    shape = clients["anna"].x_train.shape[1:]
    protofleet.export_model(_TwoParts(math.prod(shape)), path, strategy="moon", input_shape=shape)
    federation = protofleet.Federation(path, clients, folder=tmp_path / "run")
    with pytest.raises(InputError, match="strategy 'local': needs a training program"):
        federation.run(baseline="local", watch=told.append)
    assert told == []


def test_files_of_data_do_as_well(federation, results, clients, tmp_path):
    files = {}
    for name, data in clients.items():
        files[name] = tmp_path / f"{name}.npz"
        data.save(files[name])
    found = replace(federation, clients=files, folder=tmp_path / "run").run(workers=1)
    assert found.last == results.last


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"rounds": 4}, {"strategy": "local"}, {"codec": {"up": "fp16"}}]
)
def test_a_folder_is_of_one_run(federation, results, changes):
    before = (results.folder / "result.json").read_bytes()
    with pytest.raises(InputError, match="holds a run with other data or settings; choose another"):
        replace(federation, **changes).run()
    assert (results.folder / "result.json").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": {}}, "at least one client"),
        ({"clients": {"a/b": "x.npz"}}, "client 'a/b': expected 1 to 64 characters"),
        ({"rounds": 0}, "at least one round"),
        ({"codec": {"upp": "int8"}}, "federation, codec: .*unknown field `upp`; see docs"),
        ({"schedule": {"kind": "buffered"}}, "federation, schedule: .*at least 1 with a buffered"),
        ({"bundle": "nowhere.pfb"}, "bundle 'nowhere.pfb': no such file"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(federation, changes, message):
    with pytest.raises(InputError, match=message):
        replace(federation, **changes)


def test_a_foreign_signer_is_refused(federation):
    with pytest.raises(RefusedError, match="which is not trusted"):
        replace(federation, trusted=[bytes(32)])


def test_what_one_engine_cannot_do_names_the_other(federation, tmp_path):
    late = replace(federation, schedule={"kind": "buffered", "buffer": 2}, folder=tmp_path)
    with pytest.raises(InputError, match="mqtt"):
        late.run()
    with pytest.raises(InputError, match="engine 'local' or 'mqtt', got 'ray'"):
        late.run("ray")
