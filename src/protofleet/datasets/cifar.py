"""CIFAR-10 and CIFAR-100: 60 000 colour images of 32x32 pixels, in the published Python version.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", University of Toronto, 2009.
The published files are pickles; they are read without letting them run anything.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets._images import pixel_pool
from protofleet.datasets._unpickle import unpickle_arrays
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Names in a published archive; ``archives`` maps its file name to its training members."""

    title: str
    place: str
    folder: str
    archives: Mapping[str, tuple[str, ...]]
    test: str
    meta: str
    labels: str
    names: str


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10 = _Form(
    title="CIFAR-10",
    place="cifar10",
    folder="cifar-10-batches-py",
    archives={
        "cifar-10-python.tar.gz": _BATCHES,
        # The first rows of the published first batch and of the test batch.
        "cifar-10-python-subset5k.tar.gz": _BATCHES[:1],
    },
    test="test_batch",
    meta="batches.meta",
    labels="labels",
    names="label_names",
)
_CIFAR100 = _Form(
    title="CIFAR-100",
    place="cifar100",
    folder="cifar-100-python",
    archives={"cifar-100-python.tar.gz": ("train",)},
    test="test",
    meta="meta",
    labels="fine_labels",
    names="fine_label_names",
)


def cifar10_pool(root: Path, *, scale: str = "unit", limit: int | None = None) -> Pool:
    """Read ``cifar10/cifar-10-batches-py/`` or the archive of it, ``(n, 3, 32, 32)``.

    Args:
        root: folder that holds ``cifar10/``.
        scale: ``"unit"`` for [0, 1], ``"signed"`` for [-1, 1].
        limit: at most so many images of each class in each part, the first; None: all.

    Raises:
        MissingDataError: neither is there; the message says what to put where.
        InputError: a file is not as published, or its pickle names anything but arrays.
    """
    return _pool(root, _CIFAR10, scale, limit)


def cifar100_pool(root: Path, *, scale: str = "unit", limit: int | None = None) -> Pool:
    """Read ``cifar100/cifar-100-python/`` or its archive, with the 100 fine labels.

    Arguments and errors are those of ``cifar10_pool``.
    """
    return _pool(root, _CIFAR100, scale, limit)


def _pool(root: Path, form: _Form, scale: str, limit: int | None) -> Pool:
    source, train = _find(root / form.place, form)
    members = (*train, form.test, form.meta)
    read = _read_folder if source.is_dir() else _read_archive
    content = read(source, form.folder, members)
    for member in members:
        if member not in content:
            raise InputError(f"{form.title} '{source}': lacks '{form.folder}/{member}'")
    batches = [_batch(content[member], form, f"{source}: {member}") for member in train]
    parts = [
        (np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches])),
        _batch(content[form.test], form, f"{source}: {form.test}"),
    ]
    names = _field(content[form.meta], form.names, f"{source}: {form.meta}")
    classes = tuple(_text(name) for name in names)
    return pixel_pool(parts, classes, scale=scale, limit=limit)


def _find(place: Path, form: _Form) -> tuple[Path, tuple[str, ...]]:
    """Folder or archive, and its training members."""
    published, members = next(iter(form.archives.items()))
    if (place / form.folder).is_dir():
        return place / form.folder, members
    for archive, train in form.archives.items():
        if (place / archive).is_file():
            return place / archive, train
    raise MissingDataError(
        f"{form.title}: put the published '{published}' (the Python version), or its folder "
        f"'{form.folder}', in '{place}'"
    )


def _read_folder(folder: Path, _: str, members: tuple[str, ...]) -> dict[str, Any]:
    content = {}
    for member in members:
        if (folder / member).is_file():
            with (folder / member).open("rb") as file:
                content[member] = unpickle_arrays(file, str(folder / member))
    return content


def _read_archive(archive: Path, folder: str, members: tuple[str, ...]) -> dict[str, Any]:
    """One pass over the archive: going back would unpack it again from the start."""
    wanted = {f"{folder}/{member}": member for member in members}
    content = {}
    with _opened(archive) as files:
        for info in files:
            file = files.extractfile(info) if info.name in wanted and info.isfile() else None
            if file is not None:
                where = f"{archive}: {info.name}"
                content[wanted[info.name]] = unpickle_arrays(io.BytesIO(file.read()), where)
    return content


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive, "r:gz") as files:
            yield files
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"'{archive}': not a whole .tar.gz file ({error})") from error


def _batch(content: Any, form: _Form, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels = np.asarray(_field(content, "data", name))
    labels = np.asarray(_field(content, form.labels, name))
    if (
        pixels.dtype != np.uint8
        or pixels.shape[1:] != (3072,)
        or labels.shape != pixels.shape[:1]
        or not np.issubdtype(labels.dtype, np.integer)
    ):
        raise InputError(
            f"'{name}': expected data (n, 3072) uint8 and {form.labels} (n,), got {pixels.shape} "
            f"{pixels.dtype} and {labels.shape}"
        )
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _field(content: Any, key: str, name: str) -> Any:
    """Texts of Python 2 are read as texts; other writers leave the keys as bytes."""
    fields = {_text(k): value for k, value in content.items()} if isinstance(content, dict) else {}
    if key not in fields:
        raise InputError(f"'{name}': expected a dictionary with '{key}'")
    return fields[key]


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
