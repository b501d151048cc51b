"""The 1 797 hand-written digits of 8x8 pixels that scikit-learn carries with it.

E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.datasets.pool import Pool

CLASSES = tuple(str(digit) for digit in range(10))


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images ``(1797, 1, 8, 8) float32`` scaled to [0, 1] and labels ``(1797,) int64``."""
    from sklearn.datasets import load_digits as load  # noqa: PLC0415 - slow, only where used

    bunch = load()
    images = (bunch.images / 16.0).astype(np.float32)[:, np.newaxis]
    return images, bunch.target.astype(np.int64)


def digits_pool(root: Path) -> Pool:
    """Images ``(1797, 1, 8, 8)`` in [0, 1]; nobody owns them.

    Args:
        root: not used, since scikit-learn carries the data; every loader takes it.
    """
    del root
    images, labels = load_digits()
    return Pool(x=images, y=labels, classes=CLASSES)
