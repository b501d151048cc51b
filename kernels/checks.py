"""Checks that the public kernels share: wrong arrays are named before anything is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


def read_only(name: str, array: NDArray[Any], ndim: int) -> Floats:
    """``array`` as an aligned, C-ordered, read-only view (a copy only where it must be).

    One kind of array means one compiled version of each kernel.

    Raises:
        InputError: not float32 or another number of dimensions.
    """
    if array.dtype != np.float32 or array.ndim != ndim:
        raise InputError(
            f"{name}: expected a float32 array of {ndim} dimensions, "
            f"got {array.dtype} of shape {array.shape}"
        )
    fits = array.flags.c_contiguous and array.flags.aligned
    view = (array if fits else np.require(array, np.float32, ("C", "A"))).view()
    view.flags.writeable = False
    return view


def flat(name: str, array: NDArray[Any], size: int) -> Floats:
    """``array`` itself if it is a flat, contiguous, writable float32 buffer of ``size`` elements.

    Raises:
        InputError: it is not, so that it could not be updated in place.
    """
    fits = array.shape == (size,) and array.dtype == np.float32
    if not (fits and array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
        raise InputError(
            f"{name}: expected a writable, contiguous ({size},) float32 buffer, "
            f"got {array.shape} {array.dtype}, writable={array.flags.writeable}"
        )
    return array


def finite(name: str, array: NDArray[Any]) -> None:
    """Raise InputError if ``array`` holds NaN or an infinity."""
    good = np.isfinite(array)
    if not good.all():
        where = np.unravel_index(int(np.argmin(good)), array.shape)
        raise InputError(
            f"{name}: expected finite numbers, got {array[where]} "
            f"at {tuple(int(index) for index in where)}"
        )
