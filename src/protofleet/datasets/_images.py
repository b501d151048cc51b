"""What loaders of images share: the scale of pixels, the choice of few, reading and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.faces import place_boxes, read_boxes
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """One image file.

    Attributes:
        name: the name under which a file of boxes knows it.
        path: where it is.
        label: class index.
        is_test: in the publisher's test part.
    """

    name: str
    path: Path
    label: int
    is_test: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How image files are wanted.

    Attributes:
        size: height and width in pixels after resizing; proportions are not kept.
        scale: ``"unit"`` for [0, 1], ``"signed"`` for [-1, 1].
        limit: at most so many images of each class in each published part, the first; None: all.
        boxes: file of boxes to hide (``faces.read_boxes``); None: no boxes.
    """

    size: int
    scale: str
    limit: int | None
    boxes: str | Path | None


def scaled(pixels: NDArray[np.uint8], scale: str) -> NDArray[np.float32]:
    """Pixels 0…255 as float32 in [0, 1] (``"unit"``) or [-1, 1] (``"signed"``).

    Raises:
        InputError: another scale.
    """
    if scale not in ("unit", "signed"):
        raise InputError(f"option 'scale': expected 'unit' or 'signed', got '{scale}'")
    values = pixels.astype(np.float32)
    values /= 255.0 if scale == "unit" else 127.5
    if scale == "signed":
        values -= 1.0
    return values


def first_of_each(
    labels: NDArray[np.int64], is_test: NDArray[np.bool_], limit: int | None
) -> NDArray[np.int64]:
    """Rows of the first ``limit`` examples of each class in each published part, in order.

    Raises:
        InputError: a limit below 1.
    """
    if limit is None:
        return np.arange(len(labels))
    if limit < 1:
        raise InputError(f"option 'limit': expected at least 1, got {limit}")
    groups = labels * 2 + is_test
    rows = [np.flatnonzero(groups == group)[:limit] for group in np.unique(groups)]
    return np.sort(np.concatenate([np.empty(0, np.int64), *rows]))


def pixel_pool(
    parts: Sequence[tuple[NDArray[np.uint8], NDArray[np.int64]]],
    classes: tuple[str, ...],
    *,
    scale: str,
    limit: int | None,
) -> Pool:
    """A pool of images of one size, given the train and then the test part.

    Args:
        parts: images ``(n, channels, height, width) uint8`` and labels ``(n,) int64``.
        classes: class names.
        scale: see ``scaled``.
        limit: see ``first_of_each``.
    """
    y = np.concatenate([labels for _, labels in parts])
    is_test = np.repeat([False, True], [len(labels) for _, labels in parts])
    rows = first_of_each(y, is_test, limit)
    x = scaled(np.concatenate([pixels for pixels, _ in parts])[rows], scale)
    return Pool(x=x, y=y[rows], classes=classes, is_test=is_test[rows])


def picture_pool(pictures: Sequence[ImageFile], classes: tuple[str, ...], wish: Wish) -> Pool:
    """Read image files, as RGB, resized to a square.

    Raises:
        InputError: no Pillow, a file that is no image, or boxes that fit none of the images.
        MissingDataError: a file is absent.
    """
    labels = np.array([picture.label for picture in pictures], np.int64)
    is_test = np.array([picture.is_test for picture in pictures], bool)
    rows = first_of_each(labels, is_test, wish.limit)
    chosen = [pictures[row] for row in rows]
    # Read before the images, so that a mistake in it does not cost minutes.
    boxes = None if wish.boxes is None else read_boxes(Path(wish.boxes))
    pixels, sizes = _read(chosen, wish.size)
    return Pool(
        x=scaled(pixels, wish.scale),
        y=labels[rows],
        classes=classes,
        is_test=is_test[rows],
        boxes=None
        if boxes is None
        else place_boxes(boxes, [picture.name for picture in chosen], sizes, wish.size),
    )


def image_files(folder: Path) -> list[Path]:
    """Image files of a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)


def _read(pictures: Sequence[ImageFile], size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels ``(n, 3, size, size)``; original widths and heights ``(n, 2)``."""
    try:
        from PIL import Image  # noqa: PLC0415 - only these data sets need Pillow
    except ImportError as error:
        raise InputError(
            "image files: needs Pillow; run pip install 'protofleet[images]'"
        ) from error
    if size < 1:
        raise InputError(f"option 'size': expected at least 1 pixel, got {size}")
    pixels = np.empty((len(pictures), 3, size, size), np.uint8)
    sizes = np.empty((len(pictures), 2), np.int64)
    for index, picture in enumerate(pictures):
        if not picture.path.is_file():
            raise MissingDataError(f"image '{picture.path}': the data set lists it; put it there")
        try:
            with Image.open(picture.path) as image:
                sizes[index] = image.size
                small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError) as error:
            raise InputError(f"image '{picture.path}': cannot be read ({error})") from error
        pixels[index] = np.asarray(small).transpose(2, 0, 1)
    return pixels, sizes
