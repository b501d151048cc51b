"""Training before the first round: on whom, what of it a bundle starts from, and the same bits."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData, load_device_data
from protofleet.datasets.catalogue import load
from protofleet.errors import InputError
from protofleet.experiments import prepare
from protofleet.experiments.config import DataSource, Experiment, digest, lines_of
from protofleet.export.pretraining import recipes

_HART = {"sensors": 1, "kernels": [3], "width": 16, "heads": 1, "head_width": 8, "dropout": 0.0}
_BASE = {
    "title": "t",
    "paper": "none",
    "table": "none",
    "data": [{"name": "hhar_windows"}],
    "partition": {"kind": "natural", "clients": 8},
    "model": {"name": "hart_alp", "settings": {**_HART, "prototypes": [4]}},
    "pretraining": {"epochs": 1, "lr": 0.01, "model": {"name": "hart", "settings": _HART}},
    "rounds": 1,
    "seeds": [1],
    "methods": [{"label": "FedAli", "strategy": "fedali"}],
}


def _experiment(**changes) -> Experiment:
    return msgspec.convert({**_BASE, **changes}, Experiment)


def test_clients_that_are_no_people_cannot_be_left_out():
    with pytest.raises(msgspec.ValidationError, match="`pretraining`: expected the partition 'nat"):
        _experiment(partition={"kind": "iid", "clients": 2})


def test_a_data_set_is_named_once():
    """Else a person's windows would be there twice, to train and to test."""
    with pytest.raises(msgspec.ValidationError, match="`data`: expected data sets that differ"):
        _experiment(data=[{"name": "hhar_windows"}, {"name": "hhar_windows", "people": 2}])


def test_results_without_pretraining_stay_those_of_the_same_lines():
    assert lines_of(DataSource(name="hhar_windows")) == {"name": "hhar_windows", "options": {}}
    plain = _experiment(pretraining=None)
    assert digest(plain, plain.methods[0]) != digest(_experiment(), plain.methods[0])
    people = _experiment(pretraining=None, data=[{"name": "hhar_windows", "people": 9}])
    assert digest(plain, plain.methods[0]) != digest(people, plain.methods[0])
    union = _experiment(pretraining=None, classes="union")
    assert digest(plain, plain.methods[0]) != digest(union, union.methods[0])


def test_data_prepared_before_there_was_a_choice_stay_those_of_the_same_lines(
    tmp_path, monkeypatch
):
    keys, hashed = [], prepare._digest
    monkeypatch.setattr(prepare, "_digest", lambda parts: keys.append(parts) or hashed(parts))
    folders = []
    for classes in ("equal", "union"):
        experiment = _experiment(
            pretraining=None,
            classes=classes,
            data=[{"name": "digits"}],
            partition={"kind": "iid", "clients": 2},
        )
        made = prepare.Preparation(experiment=experiment, folder=tmp_path, data_root=tmp_path)
        folders.append(made.data(1).merged.parent)
    plain, union = keys
    assert plain[0] == [{"name": "digits", "options": {}}]
    assert [part for part in union if part not in plain] == ["union"]
    assert len(union) == len(plain) + 1
    assert folders[0] != folders[1]


_DIGITS = {
    "pretraining": None,
    "data": [{"name": "digits"}],
    "partition": {"kind": "iid", "clients": 8},
}


def _divided(tmp_path, **changes) -> dict[str, DeviceData]:
    experiment = _experiment(**_DIGITS, **changes)
    made = prepare.Preparation(experiment=experiment, folder=tmp_path, data_root=tmp_path).data(1)
    return {name: load_device_data(files.own) for name, files in made.clients.items()}


def test_owners_with_few_examples_and_wrong_labels_test_like_the_others(tmp_path):
    whole = _divided(tmp_path)
    wrong = _divided(tmp_path, wrong_labels={"every": 4, "share": 0.4})
    few = _divided(tmp_path, training_examples=20)
    for number, (name, data) in enumerate(whole.items()):
        for other in (wrong, few):
            assert np.array_equal(other[name].x_test, data.x_test)
            assert np.array_equal(other[name].y_test, data.y_test)
        assert np.array_equal(wrong[name].x_train, data.x_train)
        changed = (wrong[name].y_train != data.y_train).mean()
        # Of 40 % that are drawn anew one in ten is right by chance.
        assert 0.25 < changed < 0.47 if number % 4 == 3 else changed == 0
        labels = {x.tobytes(): y for x, y in zip(data.x_train, data.y_train, strict=True)}
        assert [labels[x.tobytes()] for x in few[name].x_train] == few[name].y_train.tolist()
        assert len(few[name].y_train) == 20


def test_results_without_a_choice_stay_those_of_the_same_lines():
    plain = _experiment(**_DIGITS)
    changes = ({"training_examples": 9}, {"wrong_labels": {}}, {"finds_rate": True})
    digests = [digest(_experiment(**_DIGITS, **one), plain.methods[0]) for one in changes]
    # As an earlier version, which knew none of these fields, has it.
    known = "d6b24134b1b2b9922a5cfadaa1dfc3a1ab2ae9354597e15057ec057c4bbb1782"
    assert digest(plain, plain.methods[0]) == known
    assert len({known, *digests}) == 4


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"rename": {"ten": "10"}}, r"data set 'digits', rename: 'ten' is no class; .* 0, 1, 2"),
        ({"people": 3}, "data set 'digits', people: the data set has no owners"),
    ],
)
def test_a_data_set_that_lacks_what_is_asked_is_named(tmp_path, source, told):
    experiment = _experiment(
        pretraining=None,
        data=[{"name": "digits", **source}],
        partition={"kind": "iid", "clients": 2},
    )
    made = prepare.Preparation(experiment=experiment, folder=tmp_path, data_root=tmp_path)
    with pytest.raises(InputError, match=told):
        made.data(1)


_WIDE = r"'hart' for 'hart_alp': tensor '.*': expected \(\d+.*\), got \(\d+.*give both models"
_FOREIGN = r"'mlp' for 'hart_alp': expected tensors that the model has beside its head, such as '"


def _params(path):
    return Bundle.open(path, any_signer=True).model().params


class _AskedError(Exception):
    """In the place of a training: on what, and where its checkpoint would lie."""


@pytest.fixture
def asked(data_root, tmp_path, monkeypatch):
    """What an experiment would pretrain on, and its checkpoint's path; nothing is compiled."""

    def instead(_recipe, _objective, arrays, _options, path):
        raise _AskedError(arrays["x"], path)

    monkeypatch.setattr(recipes, "pretrain_recipe", instead)
    for name in ("compile_model", "check_start"):
        monkeypatch.setattr(f"protofleet.export.build.{name}", lambda *_: None)

    def ask(seed=1, method=0, **changes):
        experiment = _experiment(**changes)
        made = prepare.Preparation(experiment=experiment, folder=tmp_path, data_root=data_root)
        with pytest.raises(_AskedError) as caught:
            made.bundle(experiment.methods[method], seed, made.data(seed))
        return caught.value.args

    return ask


@pytest.mark.data
def test_people_that_the_data_leave_out_are_those_to_pretrain_on(asked, data_root):
    pool = load("hhar_windows", data_root)
    few = [{"name": "hhar_windows", "people": 7}]
    x, _ = asked(data=few, partition={"kind": "natural"})
    assert np.array_equal(x, pool.x[np.isin(pool.client, ["7", "8"])])
    x, _ = asked(data=few, partition={"kind": "natural", "clients": 6})
    assert np.array_equal(x, pool.x[np.isin(pool.client, ["6", "7", "8"])])


@pytest.mark.data
def test_a_checkpoint_is_that_of_everything_that_decides_it(asked):
    _, path = asked()
    assert asked()[1] == path
    pretraining, fewer = _BASE["pretraining"], {"kind": "natural", "clients": 7}
    wide = {"name": "hart", "settings": {**_HART, "width": 32}}
    other = [
        asked(seed=2)[1],
        asked(partition=fewer)[1],
        asked(pretraining={**pretraining, "epochs": 2})[1],
        asked(pretraining={**pretraining, "objective": "supervised"})[1],
        asked(pretraining={**pretraining, "model": wide})[1],
        asked(pretraining={"epochs": 1, "lr": 0.01})[1],
    ]
    assert len({path, *other}) == 7
    methods = [*_BASE["methods"], {"label": "FedAvg", "strategy": "fedavg", "model": wide}]
    assert asked(methods=methods, method=1)[1] == path, "one encoder for all methods"
    own = {"epochs": 1, "lr": 0.01}
    assert asked(methods=methods, method=1, pretraining=own)[1] != other[-1]


@pytest.mark.data
@pytest.mark.full_size
def test_a_bundle_starts_from_the_encoder_of_a_masked_training_and_keeps_its_head(
    data_root, tmp_path, monkeypatch
):
    def bundle(folder, experiment, seed=1):
        made = prepare.Preparation(
            experiment=experiment, folder=tmp_path / folder, data_root=data_root
        )
        return made.bundle(experiment.methods[0], seed, made.data(seed))

    seen, train = [], recipes.pretrain_recipe

    def watched(recipe, objective, arrays, options, path):
        seen.append((recipe.name, objective, arrays["x"], options))
        train(recipe, objective, arrays, options, path)

    monkeypatch.setattr(recipes, "pretrain_recipe", watched)
    first = bundle("a", _experiment())
    assert bundle("a", _experiment()) == first
    ((name, objective, x, options),) = seen  # once, on the ninth person
    pool = load("hhar_windows", data_root)
    assert np.array_equal(x, pool.x[pool.client == "8"])
    assert (name, objective, options.epochs, options.lr, options.seed) == (
        "hart",
        "mae",
        1,
        0.01,
        1,
    )
    again, other = bundle("b", _experiment()), bundle("b", _experiment(), seed=2)
    drawn = bundle("a", _experiment(pretraining=None))
    a, b, c, d = map(_params, (first, again, other, drawn))
    for name in a:
        assert np.array_equal(a[name], b[name]), "the same bits for the same seed"
    assert not np.array_equal(a["accelerometer_patches.weight"], c["accelerometer_patches.weight"])
    changed = {name for name in a if not np.array_equal(a[name], d[name])}
    own = {name for name in a if name.startswith(("head.", "blocks.0.align."))}
    assert changed == set(a) - own
    assert len(seen) == 3
    for other, told in (
        ({"name": "hart", "settings": {**_HART, "width": 32}}, _WIDE),
        ({"name": "mlp", "settings": {"inputs": 384, "hidden": [8]}}, _FOREIGN),
    ):
        with pytest.raises(InputError, match=told):
            bundle("a", _experiment(pretraining={**_BASE["pretraining"], "model": other}))
    assert len(seen) == 3, "told before anything is trained"
