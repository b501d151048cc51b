"""One device's labelled examples: what ``protofleet device join --data FILE.npz`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.arrays import (
    is_by_step,
    read_arrays,
    to_class_names,
    to_examples,
    to_labels,
    to_targets,
    to_tokens,
)
from protofleet.errors import InputError

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_NAMES = ("classes", "targets")
_BOXES = ("boxes_train", "boxes_test")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceData:
    """A device's own train and test part; neither ever leaves the device.

    Attributes:
        x_train: ``(n, *input_shape) float32``, preprocessed.
        y_train: ``(n,) int64`` class indices, ``(n, S) int64`` of each step, or ``(n, T) float32``
            targets.
        x_test: as ``x_train``.
        y_test: as ``y_train``.
        classes: class names, in index order; empty where ``y`` has targets.
        targets: their names, in the order of the columns; empty where ``y`` has classes.
        boxes_train: ``(n, k, 4) float32`` regions of images to hide as left, top, right, bottom in
            pixels, unused rows zero; None if there are none.
        boxes_test: as ``boxes_train``.
    """

    x_train: NDArray[np.float32]
    y_train: NDArray[Any]
    x_test: NDArray[np.float32]
    y_test: NDArray[Any]
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    boxes_train: NDArray[np.float32] | None = None
    boxes_test: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        """Convert what loses nothing, and check."""
        if bool(self.classes) == bool(self.targets):
            raise InputError(
                "device data: expected names of either classes or targets, got "
                f"{'both' if self.classes else 'neither'}"
            )
        for part in ("train", "test"):
            x = to_examples(getattr(self, f"x_{part}"), f"device data: x_{part}")
            what, y = f"device data: y_{part}", getattr(self, f"y_{part}")
            y = (
                to_labels(y, what, self.classes, steps=is_by_step(y, self.classes))
                if self.classes
                else to_targets(y, what, self.targets)
            )
            if y.shape[:1] != x.shape[:1]:
                raise InputError(
                    f"device data: expected x_{part} (n, …) and y_{part} (n,), "
                    f"got {x.shape} and {y.shape}"
                )
            object.__setattr__(self, f"x_{part}", x)
            object.__setattr__(self, f"y_{part}", y)
            _check_boxes(part, getattr(self, f"boxes_{part}"), len(x))

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file (arrays only, no pickles)."""
        arrays: dict[str, Any] = {n: getattr(self, n) for n in (*_ARRAYS, *_BOXES)}
        arrays |= {n: np.array(names) for n in _NAMES if (names := getattr(self, n))}
        with path.open("wb") as file:
            np.savez(file, **{name: value for name, value in arrays.items() if value is not None})


def load_device_data(path: Path, *, tokens: bool = False) -> DeviceData:
    """Read what ``DeviceData.save`` wrote: ``classes`` or ``targets`` tells what ``y`` is.

    Args:
        path: of the file.
        tokens: examples are tokens, which may be whole numbers of any type.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz``, lacks an array, or an array has a wrong form.
    """
    arrays = read_arrays(path, _ARRAYS, (*_BOXES, *_NAMES))
    if not arrays.keys() & set(_NAMES):
        raise InputError(f"data '{path}': lacks the array 'classes' (or 'targets'), names of y")
    if tokens:
        arrays |= {n: to_tokens(arrays[n]) for n in ("x_train", "x_test")}
    boxes = {n: arrays[n].astype(np.float32, copy=False) for n in _BOXES if n in arrays}
    try:
        names = _names(arrays, "device data")
        return DeviceData(
            boxes_train=boxes.get("boxes_train"),
            boxes_test=boxes.get("boxes_test"),
            x_train=arrays["x_train"],
            y_train=arrays["y_train"],
            x_test=arrays["x_test"],
            y_test=arrays["y_test"],
            classes=names.get("classes", ()),
            targets=names.get("targets", ()),
        )
    except InputError as error:
        raise InputError(f"'{path}': {error}") from error


def _names(arrays: Mapping[str, NDArray[Any]], what: str) -> dict[str, tuple[str, ...]]:
    """Those of classes or targets, by field."""
    return {n: to_class_names(arrays[n], f"{what}: {n}") for n in _NAMES if n in arrays}


def load_pooled(path: Path, *, tokens: bool = False) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Read the union of all devices' test parts: ``x (n, *input_shape)``, ``y`` as in DeviceData.

    Args:
        path: an ``.npz`` file with ``x_test`` and ``y_test``, and ``targets`` where ``y_test`` has
            some, or ``classes`` if it has names.
        tokens: as in ``load_device_data``.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz``, lacks an array, or the arrays differ in length.
    """
    arrays = read_arrays(path, ("x_test", "y_test"), _NAMES, ignored=(*_ARRAYS, *_BOXES))
    what = f"pooled data '{path}'"
    names = _names(arrays, what)
    given = to_tokens(arrays["x_test"]) if tokens else arrays["x_test"]
    x = to_examples(given, f"{what}: x_test")
    y = arrays["y_test"]
    if "targets" in names:
        y = to_targets(y, f"{what}: y_test", names["targets"])
    else:
        classes = names.get("classes")
        y = to_labels(y, f"{what}: y_test", classes, steps=is_by_step(y, classes))
    if y.shape[:1] != x.shape[:1]:
        raise InputError(
            f"{what}: expected x_test (n, …) and y_test (n,), got {x.shape} and {y.shape}"
        )
    return x, y


def _check_boxes(part: str, boxes: NDArray[np.float32] | None, count: int) -> None:
    if boxes is None:
        return
    if boxes.ndim != 3 or boxes.shape[::2] != (count, 4) or not np.isfinite(boxes).all():
        raise InputError(
            f"device data: expected finite boxes_{part} ({count}, k, 4), got {boxes.shape}"
        )
