"""Arrays of a user's ``.npz`` file as programs take them, or what is wrong and the remedy.

What is converted without loss is said in the log; everything else is refused with the name of the
array.
"""

from __future__ import annotations

import logging
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, MissingDataError

_log = logging.getLogger(__name__)

_SHOWN = 5

UNREADABLE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    SystemError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What Python's and NumPy's readers of ``.npz`` files raise for bytes that are none: foreign ZIP
methods, headers that are no Python, shapes that no memory holds, and so on."""


def read_arrays(
    path: Path,
    names: Sequence[str],
    optional: Sequence[str] = (),
    *,
    ignored: Sequence[str] = (),
) -> dict[str, NDArray[Any]]:
    """Arrays by name; others are not read, which is said unless they are among ``ignored``.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz`` of plain arrays, lacks one of ``names``, or has one twice.
    """
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no such file"
        raise MissingDataError(
            f"data '{path}': expected an .npz with the arrays {', '.join(names)}, got {got}"
        )
    if not is_zip(path):
        raise InputError(
            f"data '{path}': not a plain .npz file; expected the arrays {', '.join(names)}, as "
            f"np.savez('data.npz', {names[0]}=…, …) writes them{_made_from(path)}"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = archive.files
            _check_members(path, found, (*names, *optional), ignored)
            chosen = [name for name in (*names, *optional) if name in archive.files]
            arrays = {name: _member(path, archive, name) for name in chosen}
    except UNREADABLE as error:
        raise InputError(f"data '{path}': not a plain .npz file ({_line(error)})") from error
    if missing := [name for name in names if name not in arrays]:
        raise InputError(
            f"data '{path}': expected the arrays {', '.join(names)}, got "
            f"{', '.join(found) or 'none'}: '{missing[0]}' is missing"
        )
    return arrays


def _line(error: Exception) -> str:
    """What an error of a reader says, on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def is_zip(path: Path) -> bool:
    """Whether a file looks like a ZIP archive."""
    try:
        return zipfile.is_zipfile(path)
    except UNREADABLE:  # its end says so, but not how
        return False


def _made_from(path: Path) -> str:
    """What makes an ``.npz`` of such a file; '' if nothing does."""
    if path.suffix.lower() != ".csv":
        return ""
    return "; from a CSV: protofleet device prepare"


def _check_members(
    path: Path, found: Sequence[str], known: Sequence[str], ignored: Sequence[str]
) -> None:
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise InputError(f"data '{path}': holds the array '{twice[0]}' twice")
    if surplus := [name for name in found if name not in {*known, *ignored}]:
        names = ", ".join(surplus)
        _log.warning("data '%s': not read: %s; known arrays are %s", path, names, ", ".join(known))


def _member(path: Path, archive: np.lib.npyio.NpzFile, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = archive[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise InputError(
            f"data '{path}': not a plain .npz file: array '{name}' holds Python objects; save "
            f"numbers in rows of one length, or text as {name}.astype(str)"
        ) from error
    return array


def to_examples(x: NDArray[Any], what: str) -> NDArray[np.float32]:
    """``(n, …)`` as float32; an array that is so already is given back as it is.

    Raises:
        InputError: complex numbers, text, objects, no axis beside the examples', NaN, or numbers
            that float32 does not hold.
    """
    check_numbers(x, what)
    if x.ndim < 2:
        raise InputError(
            f"{what}: expected (n, …), got {x.shape}; one number for an example is x[:, None]"
        )
    if x.dtype == np.float32:
        made: NDArray[np.float32] = x
    else:
        with np.errstate(over="ignore"):
            made = x.astype(np.float32)
        _log.warning("%s: taken as float32, was %s", what, x.dtype)
    bad = ~np.isfinite(made)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise InputError(
            f"{what} contains NaN or infinite values: {int(bad.sum())} of {made.size}, the first "
            f"in example {row}; leave such examples out"
        )
    return made


def to_tokens(x: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers of any type as float32, which holds every token; others as they are."""
    return x.astype(np.float32) if x.dtype.kind in "iu" else x


def check_numbers(x: NDArray[Any], what: str) -> None:
    """Raise InputError for complex numbers, text and objects, which no program takes."""
    if x.dtype.kind == "c":
        raise InputError(
            f"{what}: expected real numbers, got {x.dtype}; keep the parts as channels: "
            "np.stack([x.real, x.imag], -1)"
        )
    if x.dtype.kind not in "fiub":
        remedy = "x.astype(np.float32)" if x.dtype.kind in "US" else "numbers in rows of one length"
        raise InputError(f"{what}: expected numbers, got {_kind(x)}; save {remedy}")


def check_tokens(what: str, x: NDArray[np.float32], tokens: int | None) -> None:
    """Raise InputError unless ``x`` holds numbers below ``tokens`` (``Preprocessing.tokens``)."""
    if tokens is None or not x.size:
        return
    low, high = float(x.min()), float(x.max())
    if low < 0 or high >= tokens or not np.array_equal(x, np.trunc(x)):
        raise InputError(
            f"{what}: expected tokens, whole numbers from 0 to {tokens - 1}, got numbers from "
            f"{low:g} to {high:g}"
        )


def to_labels(
    y: NDArray[Any], what: str, classes: Sequence[str] | None, *, steps: bool = False
) -> NDArray[np.int64]:
    """``(n,)`` as int64 class indices; class names and whole numbers of other types become such.

    Args:
        y: numbers from 0, or names among ``classes``.
        what: as messages say it.
        classes: names in index order; None: not known, and there is no upper bound.
        steps: ``(n, S)`` instead: a class for each step of an example.

    Raises:
        InputError: another shape, numbers that are not whole or no class's, or unknown names.
    """
    if steps:
        if y.ndim != 2:
            raise InputError(
                f"{what}: expected class numbers (n, steps), one for each step, got {y.shape}"
            )
        return to_labels(y.reshape(-1), what, classes).reshape(y.shape)
    if y.ndim != 1:
        remedy = "y.argmax(1)" if y.ndim == 2 and y.shape[1] > 1 else "y.reshape(-1)"
        raise InputError(f"{what}: expected class numbers (n,), got {y.shape}; save {remedy}")
    if y.dtype.kind in "US":
        return _named(y, what, classes)
    if y.dtype.kind not in "fiub":
        raise InputError(f"{what}: expected class numbers (n,) from 0, got {_kind(y)}")
    if y.dtype.kind == "f":
        odd = np.flatnonzero(~np.isfinite(y) | (y != np.trunc(y)))
        if len(odd):
            raise InputError(
                f"{what}: expected class numbers (n,) from 0, got {len(odd)} of {len(y)} that are "
                f"not whole, such as {y[odd[0]]:g}; measured values are no classes"
            )
    made: NDArray[np.int64] = y.astype(np.int64, copy=False)
    if y.dtype.kind in "fb":
        _log.warning("%s: taken as class numbers, was %s", what, y.dtype)
    _check_range(made, what, classes)
    return made


def is_by_step(y: NDArray[Any], classes: Sequence[str] | None) -> bool:
    """Whether labels are classes of steps ``(n, S)``, and not one-hot ones of whole examples.

    Measured numbers are neither.
    """
    if y.ndim != 2 or y.shape[1] < 2 or y.dtype.kind not in "iubUS":
        return False
    if y.dtype.kind in "US" or classes is None or y.shape[1] != len(classes):
        return True
    return not (((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all())


def to_targets(
    y: NDArray[Any], what: str, targets: Sequence[str] | None = None
) -> NDArray[np.float32]:
    """``(n, T)`` as float32; a single target may come as ``(n,)``.

    Args:
        y: numbers.
        what: as messages say it.
        targets: their names; None: not known, and there may be any number.

    Raises:
        InputError: no numbers, another shape, NaN, or numbers that float32 does not hold.
    """
    if y.dtype.kind not in "fiub":
        raise InputError(f"{what}: expected numbers (n, targets), got {_kind(y)}")
    rows = y[:, np.newaxis] if y.ndim == 1 else y
    if rows.ndim != 2 or (targets is not None and rows.shape[1] != len(targets)):
        width, names = ("targets", "") if targets is None else (len(targets), f" {list(targets)}")
        raise InputError(
            f"{what}: expected (n, {width}), a column for each of the targets{names}, got {y.shape}"
        )
    with np.errstate(over="ignore"):
        made = rows.astype(np.float32, copy=False)
    if not np.isfinite(made).all():
        raise InputError(f"{what} contains NaN or infinite values; leave such examples out")
    return made


def _check_range(y: NDArray[np.int64], what: str, classes: Sequence[str] | None) -> None:
    most = np.iinfo(np.int64).max if classes is None else len(classes) - 1
    outside = np.flatnonzero((y < 0) | (y > most))
    if len(outside):
        expected = "0 or more" if classes is None else f"0…{most}"
        hint = "; do yours count from 1? save y - 1" if y.min() == 1 and y.max() == most + 1 else ""
        raise InputError(
            f"{what} holds {y.min()}…{y.max()}, expected {expected}: {len(outside)} of {len(y)} "
            f"examples are of no class{hint}"
        )


def _named(y: NDArray[Any], what: str, classes: Sequence[str] | None) -> NDArray[np.int64]:
    names = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in y]
    known = {name: index for index, name in enumerate(classes or ())}
    unknown = sorted(set(names) - known.keys())
    if unknown:
        shown = ", ".join(repr(name) for name in unknown[:_SHOWN])
        if all(name.strip().lstrip("+-").isdecimal() for name in unknown):
            remedy = "numbers as text: save y.astype(np.int64)"
        else:
            remedy = f"known are {', '.join(classes)}" if classes else "save an array 'classes'"
        raise InputError(f"{what}: expected class numbers or names, got {shown}; {remedy}")
    _log.warning("%s: class names taken as their numbers", what)
    return np.array([known[name] for name in names], np.int64)


def _kind(array: NDArray[Any]) -> str:
    return {"U": "text", "S": "text", "O": "Python objects"}.get(array.dtype.kind, str(array.dtype))


def to_class_names(classes: NDArray[Any], what: str) -> tuple[str, ...]:
    """Names, each once.

    Raises:
        InputError: another shape, or a name that occurs twice.
    """
    if classes.ndim != 1:
        raise InputError(f"{what}: expected names (C,), got {classes.shape}")
    names = tuple(str(name) for name in classes.tolist())
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{what}: expected different names, '{twice[0]}' occurs twice")
    return names


_FAR = 20.0
"""Normalised values have a standard deviation of 1 and a mean of 0."""
_FAR_UNKNOWN = 60.0
"""Without statistics of a bundle: bytes of images are beyond it."""


def doubt_of_scale(
    x: NDArray[np.float32], what: str, mean: Sequence[float], std: Sequence[float]
) -> str:
    """Why examples do not look normalised, for people; '' if they do.

    Tokens, which are whole numbers above a byte's, are of no scale.

    Args:
        x: as it goes into the model.
        what: as messages say it.
        mean: that the bundle's data had before; with ``std`` (0,) and (1,) where it says nothing.
        std: as ``mean``.
    """
    if not x.size:
        return ""
    known = (set(mean), set(std)) != ({0.0}, {1.0})
    spread, middle = float(x.std(dtype=np.float64)), float(np.median(x))
    if len(x) > 1 and spread == 0:
        return f"{what}: every value is {middle:g}"
    if not known and x.max() > 255 and x.min() >= 0 and np.array_equal(x, np.trunc(x)):
        return ""
    far = _FAR if known else _FAR_UNKNOWN
    if spread <= far and abs(middle) <= far and (not known or spread >= 1 / far):
        return ""
    found = f"{what}: values have a standard deviation of {spread:.3g} and a median of {middle:.3g}"
    if not known:
        return f"{found}; not normalised? no mean and std are known of them"
    return (
        f"{found}, normalised ones about 1 and 0; (x - mean) / std with the bundle's mean "
        f"({_numbers(mean)}) and std ({_numbers(std)}) is what its model takes"
    )


def _numbers(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:_SHOWN])
    return f"{shown}, …" if len(values) > _SHOWN else shown
