"""Which weights of a quantised program are stored in half precision (float16)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_HALF_STEP = 2.0**-10


def worth_halving(content: NDArray[Any]) -> bool:
    """Whether a constant is stored in float16: a matrix or kernel whose values survive it.

    Biases, scales and statistics are a hundredth of a file. Values above 65 504 overflow, and a
    matrix of values around 1e-6 loses most of its digits: both stay in float32.
    """
    if content.dtype != np.float32 or content.ndim < 2 or not content.size:
        return False
    with np.errstate(over="ignore"):
        rounded = content.astype(np.float16).astype(np.float32)
    return bool(np.abs(rounded - content).max() <= _HALF_STEP * np.abs(content).max())
