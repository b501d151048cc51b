"""Boxes around faces, which CDFL's devices pixelise before an image may leave them.

A file of boxes gives, for each image by name, any number of boxes as left, top, right, bottom in
pixels of the original image. Either JSON, ``{"one.jpg": [[10, 20, 50, 70]], "two.jpg": []}``, or
CSV with the header ``image,left,top,right,bottom`` and a line for each box. An image that the file
does not name has no box.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, MissingDataError

Box = tuple[float, float, float, float]
_HEADER = ["image", "left", "top", "right", "bottom"]


def read_boxes(path: Path) -> dict[str, list[Box]]:
    """Read a file of boxes, JSON or CSV by its suffix.

    Raises:
        MissingDataError: there is no such file.
        InputError: it has another form, or a box has no area.
    """
    if not path.is_file():
        raise MissingDataError(
            f"boxes '{path}': no such file; expected .json or .csv with left,top,right,bottom "
            "per image"
        )
    read = {".json": _read_json, ".csv": _read_csv}.get(path.suffix.lower())
    if read is None:
        raise InputError(f"boxes '{path}': expected a .json or .csv file")
    try:
        return read(path)
    except (ValueError, TypeError, KeyError, UnicodeDecodeError) as error:
        raise InputError(f"boxes '{path}': {error}") from error


def write_boxes(path: Path, boxes: Mapping[str, Sequence[Box]]) -> None:
    """Write a JSON file that ``read_boxes`` reads."""
    path.write_text(json.dumps({name: list(boxes[name]) for name in sorted(boxes)}, indent=1))


def place_boxes(
    boxes: Mapping[str, Sequence[Box]],
    names: Sequence[str],
    sizes: NDArray[np.int64],
    size: int,
) -> NDArray[np.float32]:
    """Boxes in pixels of the resized images, clipped to them.

    Args:
        boxes: in pixels of the original images.
        names: of the ``n`` images.
        sizes: ``(n, 2)``: original width and height.
        size: width and height after resizing.

    Returns:
        ``(n, k, 4) float32`` left, top, right, bottom; unused rows zero; ``k`` is at least 1.

    Raises:
        InputError: the file names none of the images: it belongs to another data set.
    """
    if boxes and not any(name in boxes for name in names):
        raise InputError(
            f"boxes: expected names such as '{names[0]}', got '{next(iter(boxes))}'"
            if names
            else "boxes: there are no images"
        )
    most = max([1, *(len(boxes.get(name, ())) for name in names)])
    placed = np.zeros((len(names), most, 4), np.float32)
    for index, name in enumerate(names):
        own = np.array(boxes.get(name, ()), np.float64).reshape(-1, 2, 2)
        inside = np.clip(own * (size / sizes[index]), 0, size)
        placed[index, : len(own)] = inside.reshape(-1, 4)
    return placed


def detect_boxes(
    images: Mapping[str, Path], model_file: Path, *, min_score: float = 0.7
) -> dict[str, list[Box]]:
    """Find faces with OpenCV's ``FaceDetectorYN``; neither OpenCV nor a model comes with this.

    Args:
        images: image files by the name that the file of boxes should give them.
        model_file: an ONNX model of the detector, such as OpenCV's YuNet.
        min_score: least confidence of a face, 0…1.

    Returns:
        Boxes in pixels of the original images, also for images without any.

    Raises:
        MissingDataError: no model file or no image file.
        InputError: no OpenCV, or a file that OpenCV cannot read.
    """
    try:
        import cv2  # noqa: PLC0415 - an extra of its own
    except ImportError as error:
        raise InputError(
            "face detection: needs OpenCV; run pip install 'protofleet[faces]', or bring a file "
            "of boxes"
        ) from error
    if not model_file.is_file():
        raise MissingDataError(
            f"face detection: put an ONNX model of OpenCV's FaceDetectorYN at '{model_file}'"
        )
    try:
        detector = cv2.FaceDetectorYN.create(str(model_file), "", (320, 320), min_score)
        return {name: _detect(cv2, detector, path) for name, path in images.items()}
    except cv2.error as error:
        raise InputError(f"face detection with '{model_file}': {error}") from error


def _detect(cv2: Any, detector: Any, path: Path) -> list[Box]:
    image = cv2.imread(str(path))
    if image is None:
        raise MissingDataError(f"image '{path}': expected an image file")
    detector.setInputSize((image.shape[1], image.shape[0]))
    faces = detector.detect(image)[1]
    found = [] if faces is None else faces[:, :4].astype(float).tolist()
    return [(left, top, left + width, top + height) for left, top, width, height in found]


def _read_json(path: Path) -> dict[str, list[Box]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TypeError("expected an object with a list of boxes for each image")
    return {name: [_box(name, values) for values in boxes] for name, boxes in content.items()}


def _read_csv(path: Path) -> dict[str, list[Box]]:
    boxes: dict[str, list[Box]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        if [field.strip() for field in next(rows, [])] != _HEADER:
            raise ValueError(f"expected the header {','.join(_HEADER)}")
        for row in rows:
            if row:
                boxes.setdefault(row[0], []).append(_box(row[0], row[1:]))
    return boxes


def _box(name: str, values: Sequence[Any]) -> Box:
    numbers = [float(value) for value in values]
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        raise ValueError(f"image '{name}': expected left, top, right, bottom, got {values}")
    left, top, right, bottom = numbers
    if left >= right or top >= bottom:
        raise ValueError(f"image '{name}': expected left < right and top < bottom, got {values}")
    return left, top, right, bottom
