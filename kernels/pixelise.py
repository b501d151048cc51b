"""Pixelisation: parts of images lose their detail and keep their size.

Source: the anonymisation of CDFL (Khazaei et al.): bilinear down, nearest up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, finite, read_only


def pixelise(images: NDArray[Any], boxes: NDArray[Any] | None, factor: int) -> Floats:
    """Replace each box by a bilinear reduction of it, enlarged again by its nearest pixels.

    A box of ``h`` x ``w`` pixels is reduced to ``max(1, floor(h / factor))`` x
    ``max(1, floor(w / factor))``, as OpenCV's ``INTER_LINEAR`` and PyTorch's ``bilinear`` do it
    (pixels have centres, ``align_corners=False``, no antialiasing). Boxes are widened to whole
    pixels and clipped to the image; those without an area are ignored. Where boxes of one image
    overlap, the later one sees what the earlier one left.

    Args:
        images: ``(n, C, H, W) float32``, may be read-only.
        boxes: ``(n, k, 4) float32`` as left, top, right, bottom in pixels; None: the whole image.
        factor: how many times fewer pixels, at least 1.

    Returns:
        ``(n, C, H, W) float32``, a new array.

    Raises:
        InputError: wrong shape or dtype, a box that is not finite, or a factor below 1.
    """
    images = read_only("images", images, 4)
    if factor < 1:
        raise InputError(f"pixelise: expected a factor of at least 1, got {factor}")
    if boxes is None:
        return _reduced(images, factor)
    boxes = read_only("boxes", boxes, 3)
    if boxes.shape[0] != len(images) or boxes.shape[2] != 4:
        raise InputError(f"boxes: expected shape ({len(images)}, k, 4), got {boxes.shape}")
    finite("boxes", boxes)
    hidden = images.copy()
    height, width = images.shape[2:]
    ends = np.array([width, height, width, height], np.float32)
    wide = np.concatenate([np.floor(boxes[..., :2]), np.ceil(boxes[..., 2:])], axis=2)
    corners = np.clip(wide, 0, ends).astype(np.int64)
    has_area = (boxes[..., :2] < boxes[..., 2:]).all(axis=2)
    has_area &= (corners[..., :2] < corners[..., 2:]).all(axis=2)
    for image, box in np.argwhere(has_area):
        left, top, right, bottom = corners[image, box]
        part = hidden[image, np.newaxis, :, top:bottom, left:right]
        part[...] = _reduced(part, factor)
    return hidden


def _reduced(images: Floats, factor: int) -> Floats:
    """Whole images ``(n, C, h, w)`` in fewer, larger pixels."""
    height, width = images.shape[2:]
    if not images.size:
        return images.copy()
    above, below, down, row = _places(height, factor)
    before, after, right, column = _places(width, factor)
    # Few rows and columns are read: all else is copying.
    rows = images[:, :, above] * (1 - down)[:, np.newaxis]
    rows += images[:, :, below] * down[:, np.newaxis]
    low = rows[..., before] * (1 - right) + rows[..., after] * right
    enlarged: Floats = low[:, :, row][..., column]
    return enlarged


def _places(size: int, factor: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Any]:
    """For every low pixel its two pixels and the second one's share; every pixel's low pixel."""
    low = max(1, size // factor)
    centres = np.clip((np.arange(low) + 0.5) * (size / low) - 0.5, 0, size - 1)
    first = np.floor(centres).astype(np.int64)
    second = np.minimum(first + 1, size - 1)
    share = (centres - first).astype(np.float32)
    return first, second, share, np.arange(size) * low // size
