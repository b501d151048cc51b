"""MNIST: 70 000 hand-written digits of 28x28 grey pixels, in the published gzipped IDX files.

Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
recognition", Proceedings of the IEEE 86(11), 1998.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets._images import pixel_pool
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

CLASSES = tuple(str(digit) for digit in range(10))
_IMAGES, _LABELS = 2051, 2049  # magic numbers: unsigned bytes in 3 and in 1 dimensions


def mnist_pool(root: Path, *, scale: str = "unit", limit: int | None = None) -> Pool:
    """Read the train and then the test images, ``(n, 1, 28, 28)``.

    Args:
        root: folder that holds ``mnist/``.
        scale: ``"unit"`` for [0, 1], ``"signed"`` for [-1, 1].
        limit: at most so many images of each class in each part, the first; None: all.

    Raises:
        MissingDataError: a file is absent; the message says what to put where.
        InputError: a file is not as published.
    """
    parts = []
    for part in ("train", "t10k"):
        pixels = _read(root / "mnist" / f"{part}-images-idx3-ubyte.gz", _IMAGES)
        labels = _read(root / "mnist" / f"{part}-labels-idx1-ubyte.gz", _LABELS)
        if len(pixels) != len(labels):
            raise InputError(
                f"MNIST '{part}': expected as many labels as images, got {len(labels)} and "
                f"{len(pixels)}"
            )
        parts.append((pixels[:, np.newaxis], labels.astype(np.int64)))
    return pixel_pool(parts, CLASSES, scale=scale, limit=limit)


def _read(path: Path, magic: int) -> NDArray[np.uint8]:
    if not path.is_file():
        raise MissingDataError(f"MNIST: put the published '{path.name}' at '{path}'")
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"MNIST '{path}': not a whole gzip file ({error})") from error
    dims = magic % 256
    start = 4 + 4 * dims
    if len(content) < start or int.from_bytes(content[:4], "big") != magic:
        raise InputError(f"MNIST '{path}': expected an IDX file with magic number {magic}")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    values = np.frombuffer(content, np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=np.int64):
        raise InputError(f"MNIST '{path}': expected {shape} values, got {values.size}")
    return values.reshape(shape)
