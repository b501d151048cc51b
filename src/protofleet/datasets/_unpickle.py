"""Pickles of published data sets, read without letting them run anything.

Loading a pickle calls whatever functions it names; here it may name only what rebuilds arrays.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.arrays import UNREADABLE
from protofleet.errors import InputError


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Stands in for ``_codecs.encode``, with which Python 3 writes bytes in old protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding '{encoding}'")
    return text.encode("latin1")


class _ArrayClass:
    """Stands in for ``numpy.ndarray``, which would make arrays of any size."""


def _reconstruct(kind: object, shape: object, code: object) -> NDArray[Any]:
    """Stands in for NumPy's: an empty array, as NumPy writes it, which its state fills."""
    if kind is not _ArrayClass or shape != (0,) or code not in (b"b", "b"):
        raise pickle.UnpicklingError("an array that begins with a size")
    return np.empty(0, np.int8)


def _scalar(dtype: object, data: object = None) -> Any:
    """Stands in for NumPy's, which would make one of any size without data."""
    raw = data.encode("latin1") if isinstance(data, str) else data
    if not isinstance(dtype, np.dtype) or not isinstance(raw, bytes):
        raise pickle.UnpicklingError("a number without data")
    return np.frombuffer(raw, dtype, count=1)[0]


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _ArrayClass,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
    **{
        (f"numpy.{core}.multiarray", name): value
        for core in ("core", "_core")
        for name, value in (("_reconstruct", _reconstruct), ("scalar", _scalar))
    },
}


class _Bounded:
    """A file that is never asked for more than it holds: for that, too, memory would be taken."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        at = file.tell()
        self._left = file.seek(0, os.SEEK_END) - at
        file.seek(at)

    def read(self, size: int = -1) -> bytes:
        return self._taken(self._file.read(self._left if size < 0 else min(size, self._left)))

    def readline(self) -> bytes:
        return self._taken(self._file.readline())

    def _taken(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data


# The one in C makes a list as long as the largest number of a memo says.
class _ArraysOnly(pickle._Unpickler):  # noqa: SLF001 - the documented class in Python
    # What takes memory before it is read, which pickles of arrays have none of.
    dispatch = {  # noqa: RUF012 - as in the class
        code: load
        for code, load in pickle._Unpickler.dispatch.items()  # noqa: SLF001
        if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names '{module}.{name}'")
        return _ALLOWED[module, name]


def load_arrays(path: Path) -> Any:
    """Dictionaries, lists, texts, numbers and arrays of a pickle written by Python 2 or 3.

    Raises:
        InputError: the file is no pickle, is cut short, or names anything else.
    """
    with path.open("rb") as file:
        return unpickle_arrays(file, str(path))


def unpickle_arrays(file: BinaryIO, name: str) -> Any:
    """The same from an open file; ``name`` is for messages."""
    try:
        return _ArraysOnly(_Bounded(file), encoding="latin1").load()
    except (pickle.UnpicklingError, *UNREADABLE) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"'{name}': expected a pickle of plain arrays, got: {reason}") from error
