"""SVHN: 99 289 house-number digits of 32x32 colour pixels, in the published cropped format.

Y. Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", NIPS
Workshop 2011. The additional part 'extra' is not read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets._images import pixel_pool
from protofleet.datasets.pool import Pool
from protofleet.errors import InputError, MissingDataError

CLASSES = tuple(str(digit) for digit in range(10))


def svhn_pool(root: Path, *, scale: str = "unit", limit: int | None = None) -> Pool:
    """Read ``svhn/train_32x32.mat`` and ``svhn/test_32x32.mat``, ``(n, 3, 32, 32)``.

    The published label 10 is the digit 0.

    Args:
        root: folder that holds ``svhn/``.
        scale: ``"unit"`` for [0, 1], ``"signed"`` for [-1, 1].
        limit: at most so many images of each class in each part, the first; None: all.

    Raises:
        MissingDataError: a file is absent; the message says what to put where.
        InputError: a file is not as published.
    """
    parts = [_read(root / "svhn" / f"{part}_32x32.mat") for part in ("train", "test")]
    return pixel_pool(parts, CLASSES, scale=scale, limit=limit)


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from scipy.io import loadmat  # noqa: PLC0415 - slow, only where used
    from scipy.io.matlab import MatReadError  # noqa: PLC0415 - as above

    if not path.is_file():
        raise MissingDataError(
            f"SVHN: put the published '{path.name}' (format 2, cropped digits) at '{path}'"
        )
    try:
        content = loadmat(path, variable_names=["X", "y"])
    except (MatReadError, ValueError, TypeError, OSError, NotImplementedError) as error:
        raise InputError(f"SVHN '{path}': not a MATLAB file ({error})") from error
    pixels, labels = content.get("X", np.empty(0)), content.get("y", np.empty(0)).reshape(-1)
    if (
        pixels.dtype != np.uint8
        or pixels.shape != (32, 32, 3, len(labels))
        or not ((labels >= 1) & (labels <= 10)).all()
    ):
        raise InputError(
            f"SVHN '{path}': expected X (32, 32, 3, n) uint8 and y (n, 1) in 1…10, got X "
            f"{pixels.shape} {pixels.dtype} and {len(labels)} labels"
        )
    return pixels.transpose(3, 2, 0, 1), labels.astype(np.int64) % 10
