"""One device's labelled examples: what ``protofleet device join --data FILE.npz`` reads."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, MissingDataError

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
        for part in ("train", "test"):
            x = getattr(self, f"x_{part}")
            _check_part(part, x, getattr(self, f"y_{part}"), self.classes)
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
    return DeviceData(
        **boxes,
        x_train=arrays["x_train"].astype(np.float32, copy=False),
        y_train=arrays["y_train"].astype(np.int64, copy=False),
        x_test=arrays["x_test"].astype(np.float32, copy=False),
        y_test=arrays["y_test"].astype(np.int64, copy=False),
        classes=tuple(str(name) for name in arrays["classes"]),
    )


def load_pooled(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read the union of all devices' test parts: ``x (n, *input_shape)`` and ``y (n,)``.

    Args:
        path: an ``.npz`` file with ``x_test`` and ``y_test``.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz``, lacks an array, or the arrays differ in length.
    """
    arrays = read_arrays(path, ("x_test", "y_test"))
    x, y = arrays["x_test"], arrays["y_test"]
    if x.ndim < 2 or y.shape != x.shape[:1]:
        raise InputError(
            f"pooled data '{path}': expected x_test (n, …) and y_test (n,), "
            f"got {x.shape} and {y.shape}"
        )
    return x.astype(np.float32, copy=False), y.astype(np.int64, copy=False)


def read_arrays(
    path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz`` file by name, those of ``optional`` as far as they are there.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz`` without pickles, or lacks one of ``names``.
    """
    if not path.is_file():
        raise MissingDataError(
            f"data '{path}': expected an .npz with the arrays {', '.join(names)}, got no such file"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (*names, *optional) if name in archive}
    except (ValueError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise InputError(f"data '{path}': not a plain .npz file ({error})") from error
    for name in names:
        if name not in arrays:
            raise InputError(f"data '{path}': lacks the array '{name}'")
    return arrays


def _check_part(
    part: str, x: NDArray[np.float32], y: NDArray[np.int64], classes: tuple[str, ...]
) -> None:
    if x.ndim < 2 or y.shape != x.shape[:1]:
        raise InputError(
            f"device data: expected x_{part} (n, …) and y_{part} (n,), got {x.shape} and {y.shape}"
        )
    if not np.isfinite(x).all():
        raise InputError(f"device data: x_{part} contains NaN or infinite values")
    if y.size and (y.min() < 0 or y.max() >= len(classes)):
        raise InputError(
            f"device data: y_{part} holds {y.min()}…{y.max()}, expected 0…{len(classes) - 1}"
        )


def _check_boxes(part: str, boxes: NDArray[np.float32] | None, count: int) -> None:
    if boxes is None:
        return
    if boxes.ndim != 3 or boxes.shape[::2] != (count, 4) or not np.isfinite(boxes).all():
        raise InputError(
            f"device data: expected finite boxes_{part} ({count}, k, 4), got {boxes.shape}"
        )
