"""What the ONNX and the TFLite form of a quantised program agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = Mapping[str, NDArray[np.float32]]
"""Examples by input name."""

_HALF_MAX = float(np.finfo(np.float16).max)


def worth_halving(content: NDArray[Any]) -> bool:
    """Whether a constant is stored in float16: a matrix or kernel whose values fit into it.

    Biases, scales and statistics are a hundredth of a file, and a variance may be tiny.
    """
    is_matrix = content.dtype == np.float32 and content.ndim > 1 and content.size > 0
    return is_matrix and float(np.abs(content).max()) <= _HALF_MAX
