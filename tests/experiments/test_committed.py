"""The committed experiments fit the code and the papers; nothing is trained here."""

from __future__ import annotations

import inspect
import json
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from protofleet.datasets import catalogue, ucihar
from protofleet.datasets.federate import Iid, federate
from protofleet.errors import InputError
from protofleet.experiments.config import Experiment, Method, committed, find, load_experiment
from protofleet.experiments.store import run_folder
from protofleet.export.capture import model_tensors
from protofleet.export.classifier import find_parts
from protofleet.export.classifier.heads import features_width
from protofleet.export.models import build_model, has_setting
from protofleet.strategies import DESCRIPTIONS, STRATEGIES, build
from protofleet.tensors import Layout, Model, ModelLayer, TensorMap

NAMES = tuple(committed())
SMALL = tuple(name for name in NAMES if name.endswith("-small"))
PAPERS = {"cdfl", "fedala", "fedali", "fedhp", "fedsub"}
OURS = {"all", "asynchronous", "codecs", "hostile", "privacy"}
CLAIMS = "claims"
"""The folder of experiments that measure papers' claims, of any paper."""
CHOOSING = "choosing"
"""The folder of experiments with every method that fits a data set."""
OUTCOME = "outcome"
"""The folder of experiments that show what defaults do for owners."""

# Classes and shape of an example, as docs/data.md has them.
FORMS = {
    "agnews": (4, (200,)),
    "cifar10": (10, (3, 32, 32)),
    "digits": (10, (1, 8, 8)),
    "cifar100": (100, (3, 32, 32)),
    "dreamt": (2, (8,)),
    "hhar": (6, (128, 6)),
    "hhar_windows": (6, (128, 3)),
    "mnist": (10, (1, 28, 28)),
    "ppmi": (12, (3, 224, 224)),
    "realworld": (8, (128, 6)),
    "stanford40": (40, (3, 224, 224)),
    "svhn": (10, (3, 32, 32)),
    "ucihar": (6, (128, 6)),
    "ucihar_turning": (1, (128, 3)),
    "voc2012": (10, (3, 224, 224)),
    "wesad": (4, (30,)),
    "wesad_features": (3, (13,)),
    "wisdm": (6, (3,)),
    "wisdm_windows": (6, (128, 3)),
}
# Scikit-learn's digits and the excerpts beside the repository; everything else has to be fetched.
AT_HAND = {
    "cifar10",
    "digits",
    "hhar_windows",
    "mnist",
    "ucihar",
    "ucihar_turning",
    "wesad_features",
    "wisdm_windows",
}


def _load(name: str) -> Experiment:
    return load_experiment(find(name))


def _form(experiment: Experiment) -> tuple[int, tuple[int, ...]]:
    source = experiment.data[0]
    classes, shape = FORMS[source.name]
    if source.options.get("combined_classes"):
        classes = 9
    if experiment.classes == "union":
        named = [name for one in experiment.data for name in one.rename.values()]
        classes = len({*named, *(ucihar.CLASSES if source.name == "ucihar" else ())})
    if source.options.get("channels") == "accelerometer":
        shape = (*shape[:-1], 3)
    return classes, (source.options["length"],) if "length" in source.options else shape


@cache
def _module(name: str, settings: str, classes: int) -> torch.nn.Module:
    """A model without memory for its values: on torch's device for shapes alone."""
    known = {key: value for key, value in json.loads(settings).items() if key != "pretrained"}
    if has_setting(name, "classes"):
        known["classes"] = classes
    with torch.device("meta"):
        return build_model(name, **known).eval()


def _model_of(experiment: Experiment, method: Method) -> torch.nn.Module:
    model = experiment.model_of(method)
    return _module(model.name, json.dumps(model.settings), _form(experiment)[0])


@cache
def _logits(module: torch.nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The logits' shape, of 4 examples as programs are captured with."""
    return tuple(module(torch.zeros(4, *shape, device="meta")).shape)


def _layouts(module: torch.nn.Module) -> tuple[Layout, Layout]:
    tensors = model_tensors(module)
    params, state = (
        Layout.of({name: tuple(value.shape) for name, value in group.items()})
        for group in (tensors.params, tensors.buffers)
    )
    return params, state


@cache
def _initial(module: torch.nn.Module, classes: int, shape: tuple[int, ...]) -> Model:
    """What strategies get of a bundle with the model, zeros for its values."""
    x = torch.zeros(4, *shape, device="meta")
    parts = find_parts(module, x)
    params, buffers = (TensorMap.zeros(layout) for layout in _layouts(module))
    return Model(
        params=params,
        buffers=buffers,
        num_classes=classes,
        input_shape=shape,
        head=parts.head_params,
        features=features_width(module, parts, x),
        layers=tuple(
            ModelLayer(name=one.name, before=one.before, hidden=one.hidden) for one in parts.layers
        ),
    )


def test_every_paper_has_experiments_at_full_size_and_small_ones():
    assert {name.split("/")[0] for name in SMALL} == PAPERS | OURS
    full = {name.split("/")[0] for name in set(NAMES) - set(SMALL)}
    assert full == PAPERS | {CLAIMS, CHOOSING, OUTCOME}


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(OUTCOME)])
def test_outcomes_are_those_of_every_strategy_at_its_defaults(name):
    experiment = _load(name)
    left_out = experiment.every_strategy.without
    assert {method.strategy for method in experiment.methods} | set(left_out) == set(STRATEGIES)
    assert all(left_out.values())
    assert (experiment.finds_rate, experiment.training, len(experiment.seeds)) == (True, {}, 5)
    settings = {key for method in experiment.methods for key in method.settings}
    assert settings <= {"pixelise", "factor"}, "which suit no images as small, and without boxes"
    wants = "regression" if experiment.score.metric == "mae" else "classification"
    for method in experiment.methods:
        assert wants in DESCRIPTIONS[method.strategy].tasks


@pytest.mark.parametrize("name", NAMES)
def test_strategies_models_and_data_sets_exist(name):
    experiment = _load(name)
    folder = name.split("/")[0]
    assert experiment.paper == folder or (folder == CLAIMS and experiment.paper in PAPERS)
    assert {method.strategy for method in experiment.methods} <= STRATEGIES.keys()
    for source in experiment.data:
        module = import_module(f"protofleet.datasets.{catalogue._MODULES[source.name]}")
        loader = getattr(module, f"{source.name}_pool")
        assert source.options.keys() <= inspect.signature(loader).parameters.keys() - {"root"}


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.split("/")[0] in PAPERS and name not in SMALL]
)
def test_the_server_of_a_papers_table_shortens_and_disbelieves_nothing(name):
    experiment = _load(name)
    for method in experiment.methods:
        limits = experiment.aggregation_of(method)
        assert (limits.kind, limits.norm_clip, limits.most_examples) == ("mean", 0, 0)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.split("/")[0] in {*PAPERS, CLAIMS}]
)
def test_apple_shortens_no_core_model_where_a_papers_figures_stand(name):
    apples = [method for method in _load(name).methods if method.strategy == "apple"]
    assert [method.settings["norm_clip"] for method in apples] == [0] * len(apples)


@pytest.mark.parametrize("data", ["hhar", "realworld", "combined"])
def test_every_row_of_fedalis_first_table_has_a_twin_as_the_code(data):
    """The same method and figures, on the encoder that mixes samples of a batch."""
    end = ", as the code"
    methods = {method.label: method for method in _load(f"fedali/table-1-{data}").methods}
    plain = {label for label in methods if not label.endswith((end, ", single_code"))}
    assert {label.removesuffix(end) for label in methods if label.endswith(end)} == plain
    for label in plain:
        twin, method = methods[label + end], methods[label]
        assert twin.model.settings["fidelity"] == "code"
        assert twin.model.settings["light_convolution"] == "published_code"
        for field in ("strategy", "rounds", "merged"):
            assert getattr(twin, field) == getattr(method, field)


@pytest.mark.parametrize("name", NAMES)
def test_the_runs_of_an_experiment_have_folders_of_their_own(name):
    experiment = _load(name)
    folders = {run_folder(Path(), method, 1) for method in experiment.methods}
    assert len(folders) == len(experiment.methods)


@pytest.mark.parametrize("name", NAMES)
def test_models_take_the_data_and_strategies_the_models_and_settings(name):
    experiment = _load(name)
    classes, shape = _form(experiment)
    for method in experiment.methods:
        module = _model_of(experiment, method)
        assert _logits(module, shape) == (4, classes)
        model = _initial(module, classes, shape)
        known = build(method.strategy, {}, model).settings
        settings = experiment.settings_of(method, dict.fromkeys(known.__struct_fields__))
        assert settings.keys() >= method.settings.keys()
        build(method.strategy, settings, model)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_training_is_known_to_some_method(name):
    """A misspelt one would have no effect, because a method takes only the keys it knows."""
    experiment = _load(name)
    used: set[str] = set()
    for method in experiment.methods:
        model = _initial(_model_of(experiment, method), *_form(experiment))
        used |= set(build(method.strategy, {}, model).settings.__struct_fields__)
    assert experiment.training.keys() <= used


@pytest.mark.parametrize("name", SMALL)
def test_small_experiments_need_only_data_at_hand_and_have_three_seeds(name):
    experiment = _load(name)
    for source in experiment.data:
        assert source.name in AT_HAND or source.options.get("parts") == "test"
    assert len(experiment.seeds) == 3
    assert "boxes" not in {key for source in experiment.data for key in source.options}
    assert not any("pretrained" in model.settings for model in _models(experiment))


def _models(experiment: Experiment):
    return [experiment.model_of(method) for method in experiment.methods]


@pytest.mark.slow(seconds=2)
@pytest.mark.data
@pytest.mark.parametrize("name", SMALL)
def test_small_experiments_divide_their_data_among_the_clients(name, data_root):
    experiment = _load(name)
    classes, shape = _form(experiment)
    source = experiment.data[0]
    pool = _pool(source.name, json.dumps(source.options), data_root)
    for seed in experiment.seeds:
        clients = federate(pool, experiment.partition, experiment.split, seed=seed)
        data = next(iter(clients.values()))
        assert (len(data.classes), data.x_train.shape[1:]) == (classes, shape)
        asked = experiment.partition.clients
        assert len(clients) == asked or (asked is None and len(clients) > 5)


@cache
def _pool(name, options, root):
    return catalogue.load(name, root, json.loads(options))


def _size(name: str, label: str) -> tuple[int, int]:
    experiment = _load(name)
    method = next(one for one in experiment.methods if one.label == label)
    params, state = _layouts(_model_of(experiment, method))
    return params.size, state.size


@pytest.mark.parametrize(
    ("name", "label", "params"),
    [
        ("fedali/table-1-hhar", "FedAvg", 1_445_918),
        ("fedala/pathological-mnist", "FedALA", 582_026),
        ("fedala/practical-cifar10", "FedALA", 878_538),
        ("fedhp/mnist-iid", "FedAvg-C", 582_026),
        ("fedhp/svhn-dir-0.3", "FedProto", 725_952),
        ("fedala/practical-agnews", "FedALA", 98_635 * 32 + 33 * 4),
        ("fedsub/wisdm", "FedAvg", 4 * 128 + 129 * 512 + 513 * 6),
    ],
)
def test_models_have_as_many_parameters_as_the_papers_say(name, label, params):
    assert _size(name, label)[0] == params


def test_alignment_layers_multiply_the_size_of_hart_by_2_38():
    params, state = _size("fedali/table-1-hhar", "FedAli")
    assert params == 1_445_918 + 6 * 74_112
    assert params + state - 1 == 3_438_878  # but for the scalar beta


@pytest.mark.parametrize(
    ("name", "values"), [("fedhp/mnist-iid", 10_240), ("fedhp/cifar10-iid", 16_000)]
)
def test_fedhp_sends_as_many_values_as_the_paper_says(name, values):
    experiment = _load(name)
    method = next(one for one in experiment.methods if one.strategy == "fedhp")
    params, _ = _layouts(_model_of(experiment, method))
    assert np.prod(params.shapes["head.prototypes"]) == values


def test_the_sweep_over_p_mixes_whole_units_of_resnet18():
    """Sizes as the paper's table has them, for ten classes, in millions."""
    experiment = _load("fedala/sweep-p")
    settings = json.dumps(experiment.model.settings)
    params, _ = _layouts(_module(experiment.model.name, settings, 10))
    sizes = [spec.size for spec in params.specs]
    mixed = [
        round(sum(sizes[-method.settings["local_init"]["layer_idx"] :]) / 1e6, 3)
        for method in experiment.methods
    ]
    # The table's first three units belong to a stem of 3 x 7 x 7, ours has 3 x 3 x 3.
    assert mixed == [11.174, 11.172, 11.024, 10.499, 8.399, 0.005]


@pytest.mark.parametrize(
    ("name", "label", "section", "mean", "std"),
    [
        ("fedali/table-1-hhar", "FedAli", "generalisation", 81.84, 4.81),
        ("fedali/table-2-cifar100-50", "FedAvg", "global", 31.29, None),
        ("fedala/practical-agnews", "FedRep", "personalisation", 96.28, None),
        ("fedhp/cifar10-dir-0.3", "FedHP", "personalisation", 62.19, 0.86),
        ("fedhp/svhn-dir-1.0", "FedProto", "personalisation", 61.53, None),
        ("cdfl/stanford40-20", "CDFL", "personalisation", 84.48, 3.12),
        ("cdfl/voc2012-30", "FedAvg", "personalisation", 65.91, None),
        ("fedsub/hhar-fusion", "Leadership", "personalisation", 86.0, None),
        ("fedala/pathological-mnist", "FedAMP", "personalisation", 99.76, None),
        ("fedala/practical-cifar10", "FedAMP", "personalisation", 88.70, None),
        ("fedala/practical-cifar100", "Ditto", "personalisation", 52.87, None),
        ("fedala/practical-agnews", "Ditto", "personalisation", 95.45, None),
        ("fedala/ala-added-cifar100", "Per-FedAvg + ALA", "personalisation", 48.68, None),
        ("fedala/ala-added-cifar100", "pFedMe + ALA", "personalisation", 47.91, None),
        ("fedala/ala-added-cifar100", "FedAMP + ALA", "personalisation", 48.03, None),
        ("fedhp/mnist-dir-0.3", "FedNH", "personalisation", 96.42, 3.45),
        ("fedhp/cifar10-iid", "FedNH", "personalisation", 52.17, None),
        ("fedhp/svhn-dir-1.0", "FedNH", "personalisation", 86.32, None),
        ("cdfl/stanford40-30", "FedDyn", "personalisation", 83.04, None),
        ("cdfl/ppmi-10", "FedDyn", "personalisation", 88.75, None),
        ("cdfl/voc2012-20", "FedDyn", "personalisation", 73.05, None),
    ],
)
def test_printed_figures_stand_at_their_rows(name, label, section, mean, std):
    method = next(one for one in _load(name).methods if one.label == label)
    assert (method.paper[section].mean, method.paper[section].std) == (mean, std)


HEAD = """
title = "t"
paper = "p"
table = "1"
rounds = 1
partition = {kind = "iid", clients = 2}
model = {name = "mlp"}
data = [{name = "digits"}]
"""
METHOD = '[[methods]]\nlabel = "a"\nstrategy = "fedavg"\n'


def _write(folder: Path, text: str) -> Path:
    path = folder / "one.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_experiment_takes_part_of_its_fields_from_defaults(tmp_path):
    experiment = load_experiment(_write(tmp_path, HEAD + METHOD))
    assert experiment.partition == Iid(clients=2)
    assert (experiment.seeds, experiment.cohort) == ((1, 2, 3), "all")
    assert experiment.score.sections == ("personalisation", "generalisation", "global")


def test_every_strategy_has_a_row_before_those_that_a_file_names(tmp_path):
    models = '[every_strategy.models.fedhp]\nname = "mlp_prototypes"\n'
    text = HEAD + '[every_strategy.without]\ncdfl = "for images"\n' + models
    experiment = load_experiment(_write(tmp_path, text + METHOD))
    labels = [method.label for method in experiment.methods]
    assert labels == [*(name for name in STRATEGIES if name != "cdfl"), "a"]
    models = {method.label: experiment.model_of(method).name for method in experiment.methods}
    assert {label for label, name in models.items() if name == "mlp_prototypes"} == {"fedhp"}
    alone = load_experiment(_write(tmp_path, HEAD + "[every_strategy]\n"))
    assert len(alone.methods) == len(STRATEGIES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEAD + METHOD + METHOD, "labels (in letters and digits) that differ, got 'a' twice"),
        (HEAD + "seeds = [1, 1]\n" + METHOD, "seeds that differ, got 1 twice"),
        (HEAD + "cohort = 1.5\n" + METHOD, "a fraction above 0 up to 1.0, got 1.5"),
        (HEAD + "cohort = 0\n" + METHOD, "a count from 1"),
        (HEAD + "cohorts = 1\n" + METHOD, "cohorts"),
        (HEAD + "[every_strategy.without]\nfedavgs = 'x'\n" + METHOD, "no strategy 'fedavgs'"),
        (HEAD + "[every_strategy.models.fedavg]\nwidth = 1\n" + METHOD, "width"),
        (HEAD + "every_strategy = 1\n" + METHOD, "every_strategy"),
        (HEAD + METHOD + "[methods.paper]\nglobal = {mean = 100.5}\n", "<= 100"),
        (HEAD + METHOD + "[methods.paper]\nown = {mean = 1}\n", "own"),
        (
            HEAD + METHOD + 'beside = "b"\n',
            "`methods.beside` of 'a': expected the label of a method",
        ),
    ],
)
def test_a_wrong_experiment_is_refused_with_the_field(tmp_path, text, told):
    with pytest.raises(InputError, match=r"experiment '.*one.toml'.*docs/experiments.md") as error:
        load_experiment(_write(tmp_path, text))
    assert told in str(error.value)
