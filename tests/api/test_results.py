"""Results as rows and as lines; what a folder does not have is named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import protofleet
from protofleet.errors import InputError, MissingDataError

pytestmark = pytest.mark.slow(seconds=3)


@pytest.fixture(scope="module")
def results(bundle, clients, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "run"
    return protofleet.Federation(bundle, clients, rounds=2, folder=folder).run(workers=1)


def test_rows_have_numbers_alone(results):
    first, second = results.to_records()
    assert first.keys() == second.keys()
    assert (first["round"], second["round"]) == (1, 2)
    own = results.rounds[1].scores.personalisation["macro_f1"]
    assert second["personalisation.macro_f1"] == own.mean
    assert second["personalisation.macro_f1.std"] == own.std
    assert all(isinstance(value, int | float) for value in first.values())
    assert json.loads(json.dumps(second)) == second


def test_people_read_a_line_for_each_section(results):
    title, owners, changed, *sections = str(results).splitlines()
    assert title.startswith("fedavg, 2 rounds, in ")
    assert owners.startswith("3 owners: balanced accuracy ")
    assert " better than at the start, " in changed
    assert [line.split(":")[0] for line in sections] == [
        "personalisation",
        "generalisation",
        "global",
    ]
    assert " ± " in sections[0]


def test_examples_that_nobody_has_normalised_are_told_of(bundle, clients, tmp_path):
    far = replace(clients["berta"], x_train=1000 * clients["berta"].x_train)
    fleet = {**clients, "berta": far}
    results = protofleet.Federation(bundle, fleet, rounds=1, folder=tmp_path).run(workers=1)
    assert results.device_troubles == {"scale": ("berta",)}
    assert (
        "warning: the training examples are far from the bundle's scale, on 1 device: berta; look"
        in str(results)
    )


def test_what_is_not_there_is_named(results, tmp_path):
    with pytest.raises(InputError, match=r"client 'nobody'.*known are anna, berta, carla"):
        results.personal("nobody")
    with pytest.raises(MissingDataError, match="no such file; expected the folder of a run"):
        protofleet.read_results(tmp_path)
    elsewhere = replace(results, folder=tmp_path)
    with pytest.raises(InputError, match=r"kept no bundle; copy the federation's there"):
        _ = elsewhere.model


def test_a_strategy_without_a_server_s_model_says_so(bundle, clients, tmp_path):
    alone = protofleet.Federation(bundle, clients, rounds=1, strategy="local", folder=tmp_path)
    results = alone.run(workers=1)
    with pytest.raises(InputError, match="'local' keeps no model at the server; see personal"):
        _ = results.model
    assert results.personal("anna").round_id == 1
