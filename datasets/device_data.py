"""One device's labelled examples: what ``protofleet device join --data FILE.npz`` reads."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, MissingDataError

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_NAMES = ("classes", "targets")
_BOXES = ("boxes_train", "boxes_test")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceData:
    """A device's own train and test part; neither ever leaves the device.

    Attributes:
        x_train, x_test: ``(n, *input_shape) float32``, preprocessed.
        y_train, y_test: ``(n,) int64`` class indices, or ``(n, T) float32`` targets.
        classes: class names, in index order; empty where ``y`` has targets.
        targets: their names, in the order of the columns; empty where ``y`` has classes.
        boxes_train, boxes_test: ``(n, k, 4) float32`` regions of images to hide as left, top,
            right, bottom in pixels, unused rows zero; None if there are none.
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
        if bool(self.classes) == bool(self.targets):
            raise InputError(
                "device data: expected names of either classes or targets, got "
                f"{'both' if self.classes else 'neither'}"
            )
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            _check_examples(part, x, y)
            if self.classes:
                _check_labels(part, y, self.classes)
            else:
                _check_targets(part, y, self.targets)
            _check_boxes(part, getattr(self, f"boxes_{part}"), len(x))

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file (arrays only, no pickles)."""
        arrays: dict[str, Any] = {n: getattr(self, n) for n in (*_ARRAYS, *_BOXES)}
        arrays |= {n: np.array(names) for n in _NAMES if (names := getattr(self, n))}
        with path.open("wb") as file:
            np.savez(file, **{name: value for name, value in arrays.items() if value is not None})


def load_device_data(path: Path) -> DeviceData:
    """Read what ``DeviceData.save`` wrote: ``classes`` or ``targets`` tells what ``y`` is.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz``, lacks an array, or an array has a wrong form.
    """
    arrays = _read(path, _ARRAYS, (*_BOXES, *_NAMES))
    if not arrays.keys() & set(_NAMES):
        raise InputError(f"data '{path}': lacks the array 'classes' (or 'targets'), names of y")
    has_targets = "targets" in arrays
    boxes = {n: arrays[n].astype(np.float32, copy=False) for n in _BOXES if n in arrays}
    return DeviceData(
        **boxes,
        x_train=arrays["x_train"].astype(np.float32, copy=False),
        y_train=to_true_values(arrays["y_train"], has_targets=has_targets),
        x_test=arrays["x_test"].astype(np.float32, copy=False),
        y_test=to_true_values(arrays["y_test"], has_targets=has_targets),
        classes=tuple(str(name) for name in arrays.get("classes", ())),
        targets=tuple(str(name) for name in arrays.get("targets", ())),
    )


def to_true_values(y: NDArray[Any], *, has_targets: bool) -> NDArray[Any]:
    """``y`` as programs take it: classes ``(n,) int64``, or targets ``(n, T) float32``.

    A single target may come as ``(n,)``.
    """
    if not has_targets:
        return y.astype(np.int64, copy=False)
    return (y[:, np.newaxis] if y.ndim == 1 else y).astype(np.float32, copy=False)


def load_pooled(path: Path) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Read the union of all devices' test parts: ``x (n, *input_shape)``, ``y`` as in DeviceData.

    Args:
        path: an ``.npz`` file with ``x_test`` and ``y_test``, and ``targets`` where ``y`` has some.

    Raises:
        MissingDataError: there is no such file.
        InputError: it is no ``.npz``, lacks an array, or the arrays differ in length.
    """
    arrays = _read(path, ("x_test", "y_test"), ("targets",))
    x, has_targets = arrays["x_test"], "targets" in arrays
    y = to_true_values(arrays["y_test"], has_targets=has_targets)
    if x.ndim < 2 or y.shape[:1] != x.shape[:1] or y.ndim != 1 + has_targets:
        form = "(n, targets)" if has_targets else "(n,)"
        raise InputError(
            f"pooled data '{path}': expected x_test (n, …) and y_test {form}, "
            f"got {x.shape} and {y.shape}"
        )
    return x.astype(np.float32, copy=False), y


def _read(
    path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, NDArray[Any]]:
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


def _check_examples(part: str, x: NDArray[np.float32], y: NDArray[Any]) -> None:
    if x.ndim < 2 or y.shape[:1] != x.shape[:1]:
        raise InputError(
            f"device data: expected x_{part} (n, …) and y_{part} (n,), got {x.shape} and {y.shape}"
        )
    if not np.isfinite(x).all():
        raise InputError(f"device data: x_{part} contains NaN or infinite values")


def _check_labels(part: str, y: NDArray[np.int64], classes: tuple[str, ...]) -> None:
    if y.ndim != 1:
        raise InputError(f"device data: expected classes y_{part} (n,), got {y.shape}")
    if y.size and (y.min() < 0 or y.max() >= len(classes)):
        raise InputError(
            f"device data: y_{part} holds {y.min()}…{y.max()}, expected 0…{len(classes) - 1}"
        )


def _check_targets(part: str, y: NDArray[np.float32], targets: tuple[str, ...]) -> None:
    if y.shape[1:] != (len(targets),):
        raise InputError(
            f"device data: expected y_{part} (n, {len(targets)}), a column for each of the targets "
            f"{list(targets)}, got {y.shape}"
        )
    if not np.isfinite(y).all():
        raise InputError(f"device data: y_{part} contains NaN or infinite values")


def _check_boxes(part: str, boxes: NDArray[np.float32] | None, count: int) -> None:
    if boxes is None:
        return
    if boxes.ndim != 3 or boxes.shape[::2] != (count, 4) or not np.isfinite(boxes).all():
        raise InputError(
            f"device data: expected finite boxes_{part} ({count}, k, 4), got {boxes.shape}"
        )
