"""Pickles of published data sets, read without letting them run anything.

Loading a pickle calls whatever functions it names; here it may name only what rebuilds arrays.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from protofleet.errors import InputError

_RECONSTRUCT = np.empty(0).__reduce__()[0]
_SCALAR = np.float64(0).__reduce__()[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Stands in for ``_codecs.encode``, with which Python 3 writes bytes in old protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding '{encoding}'")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
    **{
        (f"numpy.{core}.multiarray", name): value
        for core in ("core", "_core")
        for name, value in (("_reconstruct", _RECONSTRUCT), ("scalar", _SCALAR))
    },
}


class _ArraysOnly(pickle.Unpickler):
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
        return _ArraysOnly(file, encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError,
            AttributeError, MemoryError, OverflowError) as error:  # fmt: skip
        reason = " ".join(str(error).split())
        raise InputError(f"'{name}': expected a pickle of plain arrays, got: {reason}") from error
