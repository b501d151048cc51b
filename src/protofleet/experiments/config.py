"""An experiment's file: TOML → frozen records; ``docs/experiments.md`` explains it."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protofleet.datasets.federate import Natural, Partition, Split, Stratified
from protofleet.datasets.joining import JoinClasses
from protofleet.errors import InputError
from protofleet.experiments.attacks import Hostile
from protofleet.federation.schedules.schedule_settings import ScheduleSettings
from protofleet.federation.section import Amount
from protofleet.federation.settings import (
    AggregationSettings,
    CodecSettings,
    PrivacySettings,
)
from protofleet.firmware_sim.profile import MOST_SLOWDOWN
from protofleet.settings import explain, read_toml
from protofleet.strategies import DESCRIPTIONS

Section = Literal["personalisation", "generalisation", "global", "after_fit", "loss"]
Select = Literal["best", "last"]
Count = Annotated[int, Meta(ge=1)]
Percent = Annotated[float, Meta(ge=0, le=100)]

FOLDER = Path(__file__).resolve().parent
"""Where the committed experiments lie: ``<paper>/<name>.toml``."""


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables: immutable, and a misspelt key is an error that names it."""


class DataSource(_Settings, frozen=True, kw_only=True):
    """``[[data]]``: a data set; several are put one behind the other.

    Attributes:
        name: key in ``protofleet.datasets.catalogue``.
        options: of its loader.
        rename: class names that others take the place of; classes of one new name become one.
        people: at most so many owners of examples, the first by name; None: all.
    """

    name: str
    options: dict[str, Any] = {}
    rename: dict[str, str] = {}
    people: Count | None = None


class Dynamic(_Settings, frozen=True, kw_only=True):
    """``[dynamic]``: some clients lack classes at first and get them back one by one (FedSub).

    Attributes:
        share: of the clients that lose classes.
        every: rounds until each of them gets one class back.
    """

    share: Annotated[float, Meta(gt=0, le=1)] = 0.6
    every: Count = 50


class WrongLabels(_Settings, frozen=True, kw_only=True):
    """``[wrong_labels]``: some clients' training examples have labels drawn at random.

    Attributes:
        every: one client of so many, the last of each such group by name.
        share: of its training labels; those of its test part are right.
    """

    every: Count = 4
    share: Annotated[float, Meta(gt=0, le=1)] = 0.4


class ModelSettings(_Settings, frozen=True, kw_only=True):
    """``model``: a factory of ``protofleet.export.models`` and its keywords.

    Attributes:
        name: ``cnn``, ``mlp``, … or ``package.module:function``.
        settings: keywords; ``classes`` is filled in where the factory takes it.
    """

    name: str
    settings: dict[str, Any] = {}


class PretrainingSettings(_Settings, frozen=True, kw_only=True):
    """``[pretraining]``: initial values from a central training on people who are no clients.

    Of a checkpoint's tensors those count that the method's model has under the same name.

    Attributes:
        objective: ``mae``: masked autoencoder, which looks at no label; or ``supervised``.
        model: what is trained; None: each method's own model.
        head: whether its head counts, too; else that stays as it was drawn.
        epochs: all are made, and that of the best validation loss counts.
        lr, batch_size, validation: as of ``protofleet pretrain``; the run's seed decides the rest.
    """

    objective: Literal["mae", "supervised"] = "mae"
    model: ModelSettings | None = None
    head: bool = False
    epochs: Count = 20
    lr: Annotated[float, Meta(gt=0)] = 0.002
    batch_size: Count = 64
    validation: Annotated[float, Meta(ge=0, lt=1)] = 0.1


class ScoreSettings(_Settings, frozen=True, kw_only=True):
    """``[score]``: what the table shows.

    Attributes:
        metric: ``macro_f1``, ``accuracy`` (mean over clients) or ``sample_accuracy`` (all test
            samples count alike); of numbers ``mae``.
        sections: columns, each from the round that ``select`` names; beside the three scores
            ``after_fit``, which some strategies take after local training, and ``loss``, the mean
            loss on the own test parts, which is no per cent.
        select: ``best`` quotes the round of the best mean own accuracy, ``last`` the last one,
            which is the final fit where there is one. The table tells the other one too.
        spread: what stands behind ±: ``std`` over the seeds, or ``ci95``, half the width of the
            clients' 95 % interval, its mean over the seeds.
        pooled_limit: test examples of all clients that the generalisation and global columns use,
            drawn once by the seed; 0: none, which saves most of an evaluation's time; absent: all.
        target: score of the first section; the table then tells the first round that reached it.
    """

    metric: Literal["macro_f1", "accuracy", "sample_accuracy", "mae"] = "macro_f1"
    sections: Annotated[tuple[Section, ...], Meta(min_length=1)] = (
        "personalisation",
        "generalisation",
        "global",
    )
    select: Select = "best"
    spread: Literal["std", "ci95"] = "std"
    pooled_limit: Annotated[int, Meta(ge=0)] | None = None
    target: Annotated[float, Meta(gt=0, le=1)] | None = None

    def __post_init__(self) -> None:
        if len(set(self.sections)) < len(self.sections):
            raise ValueError("`sections`: expected each once")
        if self.target is not None and self.sections[0] == "loss":
            raise ValueError("`target`: expected a score as the first of `sections`, got 'loss'")


class Printed(_Settings, frozen=True, kw_only=True):
    """What the paper prints, in per cent.

    Attributes:
        mean: its figure.
        std: its spread, over clients or runs as the paper says; None: not printed.
    """

    mean: Percent
    std: Percent | None = None


class EveryStrategy(_Settings, frozen=True, kw_only=True):
    """``[every_strategy]``: a row for each strategy that there is, labelled by its key.

    Attributes:
        without: strategies that are left out, and why.
        models: of those that do not take the experiment's model.
        settings: of those that have no default for one.

    Raises:
        ValueError: no such strategy.
    """

    without: dict[str, str] = {}
    models: dict[str, ModelSettings] = {}
    settings: dict[str, dict[str, Any]] = {}

    def __post_init__(self) -> None:
        for name in (*self.without, *self.models, *self.settings):
            if name not in DESCRIPTIONS:
                raise ValueError(f"`every_strategy`: there is no strategy '{name}'")


class SlowClients(_Settings, frozen=True, kw_only=True):
    """``slow``: one client of so many is so many times slower than it would be.

    Attributes:
        every: 4: one in four, the last of each four by name.
        slowdown: how many times longer everything takes it.
    """

    every: Annotated[int, Meta(ge=1)] = 4
    slowdown: Annotated[float, Meta(ge=1, le=MOST_SLOWDOWN)] = 10.0

    def names(self, clients: Iterable[str]) -> frozenset[str]:
        """Which of these clients are slow."""
        return frozenset(sorted(clients)[self.every - 1 :: self.every])


class Method(_Settings, frozen=True, kw_only=True):
    """``[[methods]]``: one row of the table.

    Attributes:
        label: the row's name; unique.
        strategy: key in ``protofleet.strategies.STRATEGIES``.
        settings: over ``[training]``.
        model: in place of the experiment's.
        rounds: in place of the experiment's.
        cohort: in place of the experiment's.
        merged: one client holds everybody's training part: central training.
        codec: in place of the experiment's.
        aggregation: in place of the experiment's; a rule only for a strategy that takes one.
        privacy: noise of the server; the run's seed makes it repeatable, and so it hides nothing.
        schedule: when the server's state moves on; of a buffered one, or late updates, the engine
            ``mqtt`` alone knows who is when ready.
        hostile: clients that lie; for the engines without a broker.
        beside: label of the row by whose costs this one's are divided, of FedAvg on a model of this
            method; absent: the first of FedAvg.
        paper: section → what the paper prints for this row.
    """

    label: str
    strategy: str
    settings: dict[str, Any] = {}
    model: ModelSettings | None = None
    rounds: Count | None = None
    cohort: Literal["all"] | Amount | None = None
    merged: bool = False
    codec: CodecSettings | None = None
    aggregation: AggregationSettings | None = None
    privacy: PrivacySettings = PrivacySettings()
    schedule: ScheduleSettings = ScheduleSettings()
    hostile: Hostile | None = None
    beside: str | None = None
    paper: dict[Section, Printed] = {}


class Experiment(_Settings, frozen=True, kw_only=True):
    """A whole file.

    Attributes:
        title: one line for people.
        paper, table: what it reproduces, e.g. ``fedala`` and ``Table 2, CIFAR-10``.
        note: how it differs from the paper's.
        data: one or several data sets.
        classes: of several data sets: all have the same, or their union or intersection counts.
        partition, split: who has which examples, and which of them test.
        partition_seed: of the division; absent: the run's seed.
        dynamic: classes that go and come back.
        training_examples: at most so many for each client, drawn by the seed; absent: all.
        wrong_labels: of some clients; absent: of none.
        model: of every method that names none.
        pretraining: where its initial values come from; None: drawn by the seed.
        rounds: of every method that names no number.
        cohort: who takes part in a round: ``"all"``, a fraction (float) or a count (integer).
        seeds: one run each.
        training: settings of every method, where its strategy knows the key.
        codec: how tensors are encoded on the wire.
        aggregation: rule and limits of the server; absent: a coordinator's, which shorten what is
            far from the others, as no paper's method does.
        score: what the table shows.
        diagnostics: after every round, figures of the alignment layers of the server's model; for
            the engines without a broker.
        slow: clients that take longer, for the engine ``mqtt``.
        finds_rate: clients find the learning rate of a method for which none is set, as in a
            federation; else it has its strategy's own.
        every_strategy: rows before those of ``methods``.
        methods: its rows.

    Raises:
        ValueError: two methods of one label, a seed or a data set twice, no such cohort, or
            pretraining where clients are no people; ``load_experiment`` tells it with the file's
            name.
    """

    title: str
    paper: str
    table: str
    data: Annotated[tuple[DataSource, ...], Meta(min_length=1)]
    partition: Partition
    model: ModelSettings
    rounds: Count
    methods: Annotated[tuple[Method, ...], Meta(min_length=1)]
    note: str = ""
    classes: JoinClasses = "equal"
    pretraining: PretrainingSettings | None = None
    split: Split = Stratified()
    partition_seed: int | None = None
    dynamic: Dynamic | None = None
    training_examples: Count | None = None
    wrong_labels: WrongLabels | None = None
    cohort: Literal["all"] | Amount = "all"
    seeds: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)] = (1, 2, 3)
    training: dict[str, Any] = {}
    codec: CodecSettings = CodecSettings()
    aggregation: AggregationSettings = AggregationSettings()
    score: ScoreSettings = ScoreSettings()
    diagnostics: bool = False
    slow: SlowClients | None = None
    finds_rate: bool = False
    every_strategy: EveryStrategy | None = None

    def __post_init__(self) -> None:
        _check_differ("methods", "labels (in letters and digits)", [slug(m) for m in self.methods])
        _check_differ("seeds", "seeds", self.seeds)
        # One example twice would train and test.
        _check_differ("data", "data sets", [source.name for source in self.data])
        if self.pretraining and not isinstance(self.partition, Natural):
            raise ValueError("`pretraining`: expected the partition 'natural': clients are people")
        for method in self.methods:
            if (cohort := self.cohort_of(method)) != "all":
                _check_cohort(cohort)

    def model_of(self, method: Method) -> ModelSettings:
        """What a method trains."""
        return method.model or self.model

    def rounds_of(self, method: Method) -> int:
        """How long it trains."""
        return method.rounds or self.rounds

    def cohort_of(self, method: Method) -> Literal["all"] | Amount:
        """Who takes part in its rounds."""
        own = self.cohort if method.cohort is None else method.cohort
        return "all" if method.merged else own

    def codec_of(self, method: Method) -> CodecSettings:
        """How its tensors travel."""
        return method.codec or self.codec

    def aggregation_of(self, method: Method) -> AggregationSettings:
        """How its server makes one model of many."""
        return method.aggregation or self.aggregation

    def settings_of(self, method: Method, known: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a method's strategy: its own over those of ``[training]`` it knows."""
        shared = {key: value for key, value in self.training.items() if key in known}
        return {**shared, **method.settings}


def with_rounds(experiment: Experiment, rounds: int) -> Experiment:
    """The same, with so many rounds for every method."""
    methods = tuple(msgspec.structs.replace(one, rounds=None) for one in experiment.methods)
    return msgspec.structs.replace(experiment, rounds=rounds, methods=methods)


def alone(method: Method, *, title: str, rounds: int, seed: int, **fields: Any) -> Experiment:
    """An experiment of one method and one seed whose data and bundle were made elsewhere.

    Args:
        method: its only row.
        title: for people.
        rounds: how many.
        seed: of the run.
        fields: of ``Experiment``, in place of its defaults.
    """
    return Experiment(
        title=title,
        paper="",
        table="",
        rounds=rounds,
        seeds=(seed,),
        methods=(method,),
        **{
            "data": (DataSource(name="own"),),
            "partition": Natural(),
            "model": ModelSettings(name="own"),
            **fields,
        },
    )


def _check_differ(field: str, what: str, values: Sequence[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"`{field}`: expected {what} that differ, got {value!r} twice")


def _with_rows(values: dict[str, Any]) -> dict[str, Any]:
    """A file's content with the rows that ``[every_strategy]`` stands for."""
    every = values.get("every_strategy")
    if every is None:
        return values
    chosen = msgspec.convert(every, EveryStrategy)
    rows: list[dict[str, Any]] = [
        {"label": name, "strategy": name} for name in DESCRIPTIONS if name not in chosen.without
    ]
    for row in rows:
        if (model := chosen.models.get(row["strategy"])) is not None:
            row["model"] = msgspec.to_builtins(model)
        row["settings"] = chosen.settings.get(row["strategy"], {})
    return {**values, "methods": [*rows, *values.get("methods", [])]}


def _with_known_labels(experiment: Experiment) -> Experiment:
    """The same; not for parts of a file, in which the other method may be missing."""
    labels = {method.label for method in experiment.methods}
    for method in experiment.methods:
        if method.beside is not None and method.beside not in labels:
            raise ValueError(
                f"`methods.beside` of '{method.label}': expected the label of a method, got "
                f"{method.beside!r}"
            )
    return experiment


def _check_cohort(cohort: Amount) -> None:
    if not (0 < cohort <= 1 if isinstance(cohort, float) else cohort >= 1):
        raise ValueError(
            "`cohort`: expected 'all', a count from 1 or a fraction above 0 up to 1.0, got "
            f"{cohort!r}"
        )


def slug(method: Method) -> str:
    """A method's label as the name of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", method.label.lower()).strip("-") or "method"


def lines_of(source: DataSource) -> dict[str, Any]:
    """A data set's fields, without choices that it does not make."""
    values: dict[str, Any] = msgspec.to_builtins(source)
    return {key: value for key, value in values.items() if key in {"name", "options"} or value}


_CHOICES: dict[str, Any] = {
    "classes": "equal",
    "pretraining": None,
    "slow": None,
    "training_examples": None,
    "wrong_labels": None,
    "finds_rate": False,
}
"""Fields that came later, and what they are where nothing is chosen: results that were made before
there was a choice stay those of the same lines."""
_CHOICES_OF_METHODS: dict[str, Any] = {
    "aggregation": AggregationSettings(),
    "privacy": PrivacySettings(),
    "schedule": ScheduleSettings(),
    "hostile": None,
}


def _drop_unchosen(values: dict[str, Any], chosen: Any, choices: Mapping[str, Any]) -> None:
    for field, default in choices.items():
        if getattr(chosen, field) == default:
            del values[field]


def digest(experiment: Experiment, method: Method) -> str:
    """Hash of all lines of a file that decide one method's numbers, seeds and rounds aside."""
    aggregation = experiment.aggregation_of(method)
    alone = msgspec.structs.replace(
        experiment,
        methods=(msgspec.structs.replace(method, paper={}, rounds=None, aggregation=aggregation),),
        rounds=1,
        seeds=(0,),
        score=ScoreSettings(pooled_limit=experiment.score.pooled_limit),
        **dict.fromkeys(("title", "note", "paper", "table"), ""),
    )
    values = msgspec.to_builtins(alone, enc_hook=str)
    row = values["methods"][0]
    for table, field in ((values["score"], "spread"), (values, "diagnostics"), (row, "beside")):
        del table[field]
    del values["aggregation"], values["every_strategy"]
    values["data"] = [lines_of(source) for source in experiment.data]
    _drop_unchosen(values, alone, _CHOICES)
    _drop_unchosen(row, alone.methods[0], _CHOICES_OF_METHODS)
    if experiment.pretraining is not None and not experiment.pretraining.head:
        del values["pretraining"]["head"]
    return hashlib.sha256(msgspec.json.encode(values, order="sorted")).hexdigest()


def load_experiment(path: Path) -> Experiment:
    """Read an experiment's file.

    Raises:
        InputError: not readable, not TOML, an unknown key, a value of the wrong kind, or a method
            beside one that there is not.
    """
    try:
        values = read_toml(path)
        return _with_known_labels(msgspec.convert(_with_rows(values), Experiment))
    except OSError as error:
        raise InputError(
            f"experiment '{path}': {error.strerror}; see `protofleet experiment list`"
        ) from error
    except msgspec.ValidationError as error:
        wrong = explain(error, Experiment, values)
        raise InputError(f"experiment '{path}': {wrong}; see docs/experiments.md") from error
    except (msgspec.DecodeError, ValueError, RecursionError, InputError) as error:
        raise InputError(f"experiment '{path}': {error}; see docs/experiments.md") from error


def committed() -> dict[str, Path]:
    """Experiments that come with Protofleet, by ``<paper>/<name>``, sorted."""
    files = sorted(FOLDER.glob("*/*.toml"))
    return {f"{file.parent.name}/{file.stem}": file for file in files}


def name_of(path: Path) -> str:
    """A committed experiment's name, or the file's own."""
    ours = {file: name for name, file in committed().items()}
    return ours.get(path.resolve(), path.stem)


def expanded(names: Sequence[str]) -> list[str]:
    """The names, with all its experiments in the place of a folder of committed ones."""
    found: dict[str, None] = {}
    for name in names:
        inside = [one for one in committed() if one.startswith(f"{name.rstrip('/')}/")]
        found |= dict.fromkeys(inside or [name])
    return list(found)


def find(name: str) -> Path:
    """The file of a committed experiment's name, or the path itself.

    Raises:
        InputError: neither a file nor a known name.
    """
    path = Path(name)
    if path.is_file():
        return path
    known = committed()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise InputError(
        f"experiment '{name}': no such file, and none that `protofleet experiment list` shows{hint}"
    )
