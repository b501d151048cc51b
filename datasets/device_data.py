"""One device's labelled examples: what ``protofleet device join --data FILE.npz`` reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.arrays import read_arrays, to_class_names, to_examples, to_labels
from protofleet.errors import InputError

_ARRAYS = ("x_train", "y_train", "x_test", "y_test", "classes")
_BOXES = ("boxes_train", "boxes_test")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceData:
    """A device's own train and test part; neither ever leaves the device.

    Attributes:
        x_train, x_test: ``(n, *input_shape) float32``, preprocessed.
        y_train, y_test: ``(n,) int64`` class indices.
        classes: class names, in index order.
        boxes_train, boxes_test: ``(n, k, 4) float32`` regions of images to hide as left, top,
            right, bottom in pixels, unused rows zero; None if there are none.
    """

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    boxes_train: NDArray[np.float32] | None = None
    boxes_test: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        """Convert what loses nothing, and check."""
        for part in ("train", "test"):
            x = to_examples(getattr(self, f"x_{part}"), f"device data: x_{part}")
            y = to_labels(getattr(self, f"y_{part}"), f"device data: y_{part}", self.classes)
            if y.shape != x.shape[:1]:
                raise InputError(
                    f"device data: expected x_{part} (n, …) and y_{part} (n,), "
                    f"got {x.shape} and {y.shape}"
                )
            object.__setattr__(self, f"x_{part}", x)
            object.__setattr__(self, f"y_{part}", y)
            _check_boxes(part, getattr(self, f"boxes_{part}"), len(x))

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file (arrays only, no pickles)."""
        names = (*_ARRAYS[:-1], *_BOXES)
        arrays = {n: value for n in names if (value := getattr(self, n)) is not None}
        with path.open("wb") as file:
            np.savez(file, **arrays, classes=np.array(self.classes))


def load_device_data(path: Path) -> DeviceData:
    """Read what ``DeviceData.save`` wrote.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz``, lacks an array, or an array has a wrong form.
    """
    arrays = read_arrays(path, _ARRAYS, _BOXES)
    boxes = {n: arrays[n].astype(np.float32, copy=False) for n in _BOXES if n in arrays}
    try:
        return DeviceData(
            **boxes,
            x_train=arrays["x_train"],
            y_train=arrays["y_train"],
            x_test=arrays["x_test"],
            y_test=arrays["y_test"],
            classes=to_class_names(arrays["classes"], "device data: classes"),
        )
    except InputError as error:
        raise InputError(f"'{path}': {error}") from error


def load_pooled(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read the union of all devices' test parts: ``x (n, *input_shape)`` and ``y (n,)``.

    Args:
        path: an ``.npz`` file with ``x_test`` and ``y_test``, and ``classes`` if ``y_test`` has
            names.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz``, lacks an array, or the arrays differ in length.
    """
    arrays = read_arrays(path, ("x_test", "y_test"), ("classes",), ignored=(*_ARRAYS, *_BOXES))
    what, classes = f"pooled data '{path}'", arrays.get("classes")
    names = None if classes is None else to_class_names(classes, f"{what}: classes")
    x = to_examples(arrays["x_test"], f"{what}: x_test")
    y = to_labels(arrays["y_test"], f"{what}: y_test", names)
    if y.shape != x.shape[:1]:
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
