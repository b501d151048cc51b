"""All data sets by name, each loaded by the module of its published format."""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec

from protofleet.datasets.pool import Pool
from protofleet.errors import InputError

_MODULES = {
    "agnews": "agnews",
    "cifar10": "cifar",
    "cifar100": "cifar",
    "digits": "digits",
    "dreamt": "dreamt",
    "hhar": "hhar",
    "hhar_windows": "derived",
    "mnist": "mnist",
    "ppmi": "ppmi",
    "realworld": "realworld",
    "stanford40": "stanford40",
    "svhn": "svhn",
    "ucihar": "ucihar",
    "ucihar_turning": "ucihar",
    "voc2012": "voc2012",
    "wesad": "wesad",
    "wesad_features": "derived",
    "wisdm": "wisdm",
    "wisdm_windows": "derived",
}

_MAIN_FILES = {
    "agnews": "agnews/t*.csv*",
    "cifar10": "cifar10/cifar-10*",
    "cifar100": "cifar100/cifar-100*",
    "dreamt": "dreamt/**/S*_whole_df.csv",
    "hhar": "hhar/[AP]*",
    "hhar_windows": "hhar/hhar_phone_windows128_standardised.npz",
    "mnist": "mnist/train-images-idx3-ubyte.gz",
    "ppmi": "ppmi/*",
    "realworld": "realworld/*",
    "stanford40": "stanford40/*",
    "svhn": "svhn/train_32x32.mat",
    "ucihar": "ucihar/UCI HAR Dataset.zip",
    "ucihar_turning": "ucihar/UCI HAR Dataset.zip",
    "voc2012": "voc2012/*",
    "wesad": "wesad/**/S*.pkl",
    "wesad_features": "wesad/wesad_features_30s.tar.gz",
    "wisdm": "wisdm/WISDM_ar_v1.1_raw.txt",
    "wisdm_windows": "wisdm/wisdm_v1.1_windows128_standardised.npz",
}
"""What is looked for to tell that a data set is there; ``digits`` comes with scikit-learn."""

NAMES = tuple(_MODULES)
"""Names that ``load`` knows."""


def looks_present(name: str, root: Path) -> bool:
    """Whether the main file of a data set is under ``root``; only ``load`` tells if it is whole."""
    return name not in _MAIN_FILES or any(True for _ in root.glob(_MAIN_FILES[name]))


def fingerprint(name: str, root: Path) -> list[tuple[str, int, int]]:
    """Path, size and time of change (ns) of every file in a data set's folder."""
    folder = root / _MAIN_FILES[name].split("/")[0] if name in _MAIN_FILES else None
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
    return [
        (str(path.relative_to(root)), (stat := path.stat()).st_size, stat.st_mtime_ns)
        for path in files
    ]


def load(name: str, root: Path, options: Mapping[str, Any] | None = None) -> Pool:
    """Load a data set.

    Args:
        name: one of ``NAMES``; the module's function ``<name>_pool`` loads it.
        root: folder that holds a folder for each data set.
        options: keyword arguments of the loader, such as the window or the size of images.

    Raises:
        InputError: unknown name or option, or a file that is not as published.
        MissingDataError: a file is not under ``root``; the message says what to put where.
    """
    if name not in _MODULES:
        raise InputError(f"data set '{name}': unknown; expected one of {', '.join(NAMES)}")
    module = importlib.import_module(f"protofleet.datasets.{_MODULES[name]}")
    loader: Callable[..., Pool] = getattr(module, f"{name}_pool")
    known = [key for key in inspect.signature(loader).parameters if key != "root"]
    unknown = (options or {}).keys() - set(known)
    if unknown:
        raise InputError(
            f"data set '{name}': unknown option '{min(unknown)}'; "
            f"known are {', '.join(known) or 'none'}"
        )
    hints = get_type_hints(loader)
    try:
        for key, value in (options or {}).items():
            msgspec.convert(value, _as_in_a_file(hints[key]))
    except msgspec.ValidationError as error:
        raise InputError(f"data set '{name}', option '{key}': {error}") from error
    return loader(root, **(options or {}))


def _as_in_a_file(hint: Any) -> Any:
    """The type with text in the place of paths."""
    if isinstance(hint, UnionType):
        return functools.reduce(operator.or_, map(_as_in_a_file, get_args(hint)))
    return str if hint is Path else hint
