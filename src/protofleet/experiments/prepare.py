"""What a run needs on disk: each client's data and a signed bundle with the seed's initial values.

All engines read the same files, so they train on the same numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.keys import load_or_create_signing_key
from protofleet.datasets import DeviceData
from protofleet.datasets.catalogue import fingerprint, load
from protofleet.datasets.federate import federate, pooled, without_classes
from protofleet.datasets.joining import JoinClasses, first_people, joined, outsiders, renamed
from protofleet.datasets.partition import label_removal
from protofleet.datasets.pool import Pool
from protofleet.datasets.wrong_labels import with_wrong_labels
from protofleet.durable import replace_whole
from protofleet.errors import InputError
from protofleet.experiments.config import (
    DataSource,
    Experiment,
    Method,
    ModelSettings,
    lines_of,
)
from protofleet.strategies import DESCRIPTIONS, check_known
from protofleet.strategies.tasks import TASKS, objectives_of

if TYPE_CHECKING:
    from protofleet.export.build import Recipe

MERGED = "everybody"
"""The one client of a central training."""


class ClientFiles(msgspec.Struct, frozen=True, kw_only=True):
    """One client's files.

    Attributes:
        own: ``.npz`` of ``DeviceData``.
        later: from which round on which file replaces it.
    """

    own: Path
    later: tuple[tuple[int, Path], ...] = ()


class PreparedData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one seed.

    Attributes:
        clients: by id.
        merged: everybody's data in one file, for central training.
        pooled: ``x_test`` and ``y_test`` of all clients, or None if the experiment wants none.
        classes: class names; empty of data with targets.
        input_shape: of one example.
        key: hash of everything that they were made from.
        targets: their names; empty of data with classes.
    """

    clients: dict[str, ClientFiles]
    merged: Path
    pooled: Path | None
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    key: str
    targets: tuple[str, ...] = ()

    @property
    def loss(self) -> str:
        """The objective that is their task's own loss."""
        task = TASKS["regression" if self.targets else "classification"]
        return task.chosen_loss(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Makes data and bundles of one experiment, each once.

    Attributes:
        experiment: its file.
        folder: where they are kept.
        data_root: folder of the published data sets.
    """

    experiment: Experiment
    folder: Path
    data_root: Path

    def data(self, seed: int) -> PreparedData:
        """Each client's data for a seed, made at the first call.

        Raises:
            MissingDataError: a data set is absent; the message says what to put where.
            InputError: partition, split and data set do not fit together.
        """
        experiment = self.experiment
        drawn = seed if experiment.partition_seed is None else experiment.partition_seed
        sources = [lines_of(source) for source in experiment.data]
        about: list[Any] = [sources, experiment.partition, experiment.split, experiment.dynamic]
        about += [experiment.classes] if experiment.classes != "equal" else []
        about += [] if experiment.training_examples is None else [experiment.training_examples]
        about += [] if experiment.wrong_labels is None else [experiment.wrong_labels]
        files = [fingerprint(source.name, self.data_root) for source in experiment.data]
        named = [_named_files(source.options) for source in experiment.data]
        key = _digest([*about, files, named, drawn, experiment.score.pooled_limit])
        folder = self.folder / "data" / key[:16]
        index = folder / "index.json"
        if (found := _read_index(index)) is not None:
            return found
        folder.mkdir(parents=True, exist_ok=True)
        pool = self._pool(experiment.data)
        clients = _as_owners_have_them(
            experiment, federate(pool, experiment.partition, experiment.split, seed=drawn), drawn
        )
        prepared = _write(experiment, clients, folder, (drawn, key))
        # Relative, so that the results may be moved.
        data = msgspec.json.encode(prepared, enc_hook=lambda path: str(path.relative_to(folder)))
        replace_whole(index, msgspec.json.format(data), shared=True)
        return prepared

    def bundle(self, method: Method, seed: int, data: PreparedData) -> Path:
        """A method's bundle with the initial values of a seed, made at the first call.

        Programs are compiled once for a model; only the values differ between seeds.

        Raises:
            InputError: no such model or setting, it does not fit the data, or there is nobody to
                pretrain on.
            ExportError: a program differs from PyTorch.
        """
        model = self.experiment.model_of(method)
        objectives = self._objectives(model, data.loss)
        named = _named_files(model.settings)
        about = [model, objectives, data.classes or data.targets, data.input_shape]
        about += [_made_by(), named]
        key = _digest(about)[:16]
        folder = self.folder / "bundles"
        start = self._start(model, seed, data)
        after = "" if start is None else f"-{start.stem}"
        seeded = folder / f"{key}-seed-{seed}{after}.pfb"
        if not seeded.exists():
            from protofleet.export.build import compile_model, reseed  # noqa: PLC0415 - torch

            folder.mkdir(parents=True, exist_ok=True)
            signing = load_or_create_signing_key(folder / "signing-key.pem")
            compiled = folder / f"{key}.pfb"
            recipe = _recipe(model, data)
            if not compiled.exists():
                compile_model(recipe, objectives, compiled, signing)
            # Compiled before, because it takes less long until what is wrong shows.
            if start is not None and not start.exists():
                self._pretrain(model, seed, data, (compiled, start))
            pretraining = self.experiment.pretraining
            head = pretraining is not None and pretraining.head
            reseed(compiled, recipe, seed, seeded, signing, start=start, keeps_head=head)
        return seeded

    def _start(self, model: ModelSettings, seed: int, data: PreparedData) -> Path | None:
        """The checkpoint of the training before the first round, whether it is there or not."""
        settings = self.experiment.pretraining
        if settings is None:
            return None
        chosen = settings.model or model
        key = _digest([settings, chosen, data.key, _named_files(chosen.settings), _made_by()])
        return self.folder / "pretrained" / f"{key[:16]}-seed-{seed}.safetensors"

    def _pretrain(
        self, model: ModelSettings, seed: int, data: PreparedData, files: tuple[Path, Path]
    ) -> None:
        """Train what a model's compiled bundle is to start from."""
        settings = self.experiment.pretraining
        if settings is None:
            return
        from protofleet.export.build import check_start  # noqa: PLC0415 - torch
        from protofleet.export.pretraining.recipes import pretrain_recipe  # noqa: PLC0415 - torch
        from protofleet.export.pretraining.training import TrainOptions  # noqa: PLC0415 - torch

        compiled, path = files
        recipe = _recipe(settings.model or model, data)
        check_start(compiled, _recipe(model, data), recipe)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = tuple(msgspec.structs.replace(one, people=None) for one in self.experiment.data)
        others = outsiders(self._pool(whole), data.clients)
        options = TrainOptions(
            epochs=settings.epochs,
            patience=None,
            lr=settings.lr,
            batch_size=settings.batch_size,
            validation=settings.validation,
            seed=seed,
        )
        arrays: dict[str, NDArray[Any]] = {"x": others.x, "y": others.y}
        pretrain_recipe(recipe, settings.objective, arrays, options, path)

    def _pool(self, sources: tuple[DataSource, ...]) -> Pool:
        return _pool(msgspec.json.encode(sources), self.experiment.classes, self.data_root)

    def _objectives(self, model: ModelSettings, loss: str) -> tuple[str, ...]:
        """What the methods that train this model need."""
        needed: dict[str, None] = {}
        for method in self.experiment.methods:
            description = _described(method)
            if self.experiment.model_of(method) == model:
                needed |= dict.fromkeys(objectives_of(description, loss))
        return tuple(needed) or (loss,)


def _described(method: Method) -> Any:
    try:
        check_known(method.strategy)
    except InputError as error:
        raise InputError(f"method '{method.label}': {error}") from error
    return DESCRIPTIONS[method.strategy]


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def _read_index(index: Path) -> PreparedData | None:
    """What was prepared before; None if there is nothing, or nothing whole."""
    try:
        return msgspec.json.decode(
            index.read_bytes(), type=PreparedData, dec_hook=lambda _, value: index.parent / value
        )
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _named_files(options: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Name, size and time of the files that options name."""
    paths = [Path(value) for value in options.values() if isinstance(value, str)]
    return [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in paths if p.is_file()]


def _made_by() -> list[str]:
    return [version(package) for package in ("protofleet", "torch")]


def _recipe(model: ModelSettings, data: PreparedData) -> Recipe:
    from protofleet.export.build import Recipe  # noqa: PLC0415 - torch

    return Recipe(
        name=model.name,
        settings=model.settings,
        classes=data.classes,
        input_shape=data.input_shape,
        targets=data.targets,
    )


@cache
def _pool(sources: bytes, classes: JoinClasses, data_root: Path) -> Pool:
    """All data sets of an experiment; kept, because every seed divides the same ones."""
    pools = []
    for source in msgspec.json.decode(sources, type=tuple[DataSource, ...]):
        pool = load(source.name, data_root, source.options)
        try:
            pool = renamed(pool, source.rename)
            pool = pool if source.people is None else first_people(pool, source.people)
        except InputError as error:
            raise InputError(f"data set '{source.name}', {error}") from error
        pools.append((source.name, pool))
    return pools[0][1] if len(pools) == 1 else joined(pools, classes)


def _as_owners_have_them(
    experiment: Experiment, clients: Mapping[str, DeviceData], seed: int
) -> dict[str, DeviceData]:
    """The clients' data with as few training examples, and as many wrong labels, as are asked."""
    wrong, found = experiment.wrong_labels, dict[str, DeviceData]()
    if wrong is None and experiment.training_examples is None:
        return dict(clients)
    for number, (name, data) in enumerate(sorted(clients.items())):
        rng = np.random.default_rng((seed, number))
        rows = np.sort(rng.permutation(len(data.y_train))[: experiment.training_examples])
        boxes = None if data.boxes_train is None else data.boxes_train[rows]
        some = dataclasses.replace(
            data, x_train=data.x_train[rows], y_train=data.y_train[rows], boxes_train=boxes
        )
        if wrong is not None and number % wrong.every == wrong.every - 1:
            try:
                some = with_wrong_labels(some, wrong.share, rng)
            except InputError as error:
                raise InputError(f"[wrong_labels]: {error}; leave it out") from error
        found[name] = some
    return found


def _write(
    experiment: Experiment, clients: Mapping[str, DeviceData], folder: Path, drawn: tuple[int, str]
) -> PreparedData:
    files = {}
    seed, key = drawn
    removal = _removal(experiment, clients, seed)
    for name, data in clients.items():
        own = folder / f"{name}.npz"
        stages = removal(name, data)
        stages[0][1].save(own)
        later = []
        for from_round, stage in stages[1:]:
            path = folder / f"{name}-from-{from_round}.npz"
            stage.save(path)
            later.append((from_round, path))
        files[name] = ClientFiles(own=own, later=tuple(later))
    everybody = pooled(clients)
    merged = folder / "merged.npz"
    everybody.save(merged)
    return PreparedData(
        clients=files,
        merged=merged,
        pooled=write_pooled(everybody, experiment.score.pooled_limit, folder, seed),
        classes=everybody.classes,
        input_shape=tuple(everybody.x_train.shape[1:]),
        key=key,
        targets=everybody.targets,
    )


def _removal(experiment: Experiment, clients: Mapping[str, DeviceData], seed: int) -> Any:
    """A function from a client to its data by the round from which they hold."""
    dynamic = experiment.dynamic
    if dynamic is None:
        return lambda _, data: [(1, data)]
    owned = {name: np.unique(data.y_train).tolist() for name, data in clients.items()}
    rng = np.random.default_rng((seed, dynamic.every))
    removal = label_removal(owned, every=dynamic.every, rng=rng, share=dynamic.share)

    def stages(name: str, data: DeviceData) -> list[tuple[int, DeviceData]]:
        lost = len(removal.order.get(name, ()))
        starts = [1 + number * dynamic.every for number in range(lost + 1)]
        return [(start, without_classes(data, removal.removed(name, start))) for start in starts]

    return stages


def write_pooled(everybody: DeviceData, limit: int | None, folder: Path, seed: int) -> Path | None:
    """Write the test parts of all clients; returns the file.

    Args:
        everybody: ``pooled`` clients.
        limit: at most so many examples, drawn by the seed; 0: no file; None: all.
        folder: where.
        seed: of the run.
    """
    if limit == 0:
        return None
    rows = np.arange(len(everybody.y_test))
    if limit is not None and limit < len(rows):
        rows = np.sort(np.random.default_rng((seed, limit)).permutation(len(rows))[:limit])
    path = folder / "pooled.npz"
    arrays: dict[str, Any] = {"x_test": everybody.x_test[rows], "y_test": everybody.y_test[rows]}
    if everybody.targets:
        arrays["targets"] = np.array(everybody.targets)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path
