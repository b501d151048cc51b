"""The 1 797 hand-written digits of 8x8 pixels that scikit-learn carries with it.

E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CLASSES = tuple(str(digit) for digit in range(10))


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images ``(1797, 1, 8, 8) float32`` scaled to [0, 1] and labels ``(1797,) int64``."""
    from sklearn.datasets import load_digits as load  # noqa: PLC0415 - slow, only where used

    bunch = load()
    images = (bunch.images / 16.0).astype(np.float32)[:, np.newaxis]
    return images, bunch.target.astype(np.int64)
