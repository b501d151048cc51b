"""Files that export and pretrain read, looked at before anything takes minutes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.arrays import (
    doubt_of_scale,
    read_arrays,
    to_class_names,
    to_examples,
    to_labels,
    to_targets,
)
from protofleet.errors import InputError, MissingDataError, RefusedError

if TYPE_CHECKING:
    from protofleet.bundle.manifest import Preprocessing
    from protofleet.tensors import TaskName


def read_preprocessing(file: Path) -> Preprocessing:
    """A preprocessing as docs/bundle.md describes it.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no JSON object, a key is unknown, or a value is wrong.
    """
    if not file.is_file():
        raise MissingDataError(f"preprocessing '{file}': no such file")
    try:
        return _to_preprocessing(file.read_bytes())
    except (RefusedError, OSError) as error:
        raise InputError(f"preprocessing '{file}': {error}") from error


def _to_preprocessing(data: bytes) -> Preprocessing:
    import msgspec

    from protofleet.bundle.manifest import Preprocessing
    from protofleet.tensors import strict_json

    document: Any = strict_json.loads(data, rule="preprocessing", what="the file")
    known = Preprocessing.__struct_fields__
    if isinstance(document, dict) and (unknown := sorted(document.keys() - set(known))):
        raise RefusedError(
            "preprocessing", f"unknown key '{unknown[0]}', known are {', '.join(known)}"
        )
    try:
        found = msgspec.convert(document, Preprocessing)
    except msgspec.ValidationError as error:
        raise RefusedError("preprocessing", str(error)) from error
    return checked_preprocessing(found)


def checked_preprocessing(found: Preprocessing) -> Preprocessing:
    """The same, or RefusedError if its sizes and statistics do not fit together."""
    from protofleet.bundle.rules import check_preprocessing

    check_preprocessing(found)
    return found


def read_training_data(
    path: Path, *, supervised: bool, task: TaskName = "classification"
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """``x`` and, supervised, ``y`` of an ``.npz`` file, and the names of classes or targets.

    Raises:
        MissingDataError: there is no such file.
        InputError: it lacks an array, has no examples, or an array has a wrong form.
    """
    wanted = ("x", "y") if supervised else ("x",)
    from protofleet.tensors import kind_of

    kind = kind_of(task)
    optional = (kind,) if supervised else ()
    read = read_arrays(path, wanted, optional, ignored=("y", kind))
    arrays: dict[str, NDArray[Any]] = {"x": to_examples(read["x"], f"data '{path}': x")}
    count = len(arrays["x"])
    if not count:
        raise InputError(f"data '{path}': expected examples, got none")
    names: tuple[str, ...] = ()
    if supervised:
        take = partial(_classes if kind == "classes" else _targets, task)
        arrays["y"], names = take(path, read)
        if len(arrays["y"]) != count:
            raise InputError(f"data '{path}': {count} examples in x, {len(arrays['y'])} in y")
    if doubt := doubt_of_scale(arrays["x"], f"data '{path}': x", (0.0,), (1.0,)):
        click.echo(f"warning: {doubt}", err=True)
    return {name: np.ascontiguousarray(values) for name, values in arrays.items()}, names


def _classes(
    task: TaskName, path: Path, read: dict[str, NDArray[Any]]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """``y`` as class numbers, and their names."""
    steps = task == "segmentation"
    names = _class_names(path, read, steps=steps)
    y = to_labels(read["y"], f"data '{path}': y", names, steps=steps)
    if len(names) < 2:
        raise InputError(f"data '{path}': y holds one class only, a classifier needs two")
    return y, names


def _targets(
    task: TaskName, path: Path, read: dict[str, NDArray[Any]]
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """``y`` as a column for each target, and their names: the file's, else numbers."""
    from protofleet.strategies.tasks import TASKS

    what, given = f"data '{path}': y", read.get("targets")
    names = None if given is None else to_class_names(given, f"data '{path}': targets")
    y = to_targets(read["y"], what, names)
    TASKS[task].check_labels(what, y, y.shape[1])
    return y, names or tuple(map(str, range(y.shape[1])))


def _class_names(path: Path, read: dict[str, NDArray[Any]], *, steps: bool) -> tuple[str, ...]:
    """Those of the file, else those that ``y`` holds, else numbers up to the largest."""
    what, y = f"data '{path}': y", read["y"]
    if "classes" in read:
        return to_class_names(read["classes"], f"data '{path}': classes")
    if y.dtype.kind in "US" and y.ndim == 1:
        names = sorted({str(name) for name in y.tolist()})
        if not all(name.strip().lstrip("+-").replace(".", "").isdecimal() for name in names):
            click.echo(f"{what}: the classes are {', '.join(names)}, in this order", err=True)
            return tuple(names)
    labels = to_labels(y, what, None, steps=steps)
    if labels.size and labels.min() > 0:
        click.echo(
            f"warning: {what} has no class 0, the smallest is {labels.min()}; classes count from "
            "0: save y - 1 unless it is only rare",
            err=True,
        )
    return tuple(str(index) for index in range(int(labels.max(initial=-1)) + 1))
