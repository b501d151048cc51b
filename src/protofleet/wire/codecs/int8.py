"""``int8``: codes of 8 bits, with one float32 scale for every 256 numbers of a tensor.

One outlier must not take all bits from a layer, and 4 bytes among 256 are little.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import int8_decode, int8_encode
from protofleet.wire.codecs.streams import Reader, Stream, Writer
from protofleet.wire.codecs.tensor_codec import Floats, TensorCodec

BLOCK = 256
_CODES = Stream("codes", np.int8)
SCALES = Stream("scales", np.float32)
"""In the order of the tensors, whichever codec has scales."""


class Int8(TensorCodec):
    """Codes every tensor, and all that another codec cannot."""

    name = "int8"
    streams = (_CODES, SCALES)

    def write(self, values: Floats, streams: Writer) -> Floats:
        """As ``TensorCodec``."""
        bounds = blocks(values.size)
        codes, scales = int8_encode(values, bounds, rounding="nearest")
        streams.append(_CODES, codes)
        streams.append(SCALES, scales)
        return int8_decode(codes, scales, bounds)

    @staticmethod
    def read(size: int, streams: Reader) -> Floats:
        """As ``TensorCodec``."""
        bounds = blocks(size)
        codes = streams.take(_CODES, size)
        return int8_decode(codes, streams.take(SCALES, len(bounds) - 1), bounds)


def blocks(size: int) -> NDArray[np.int64]:
    """Boundaries of what shares a scale."""
    return np.array([*range(0, size, BLOCK), size], np.int64)


def spread(scales: NDArray[Any], bounds: NDArray[np.int64]) -> NDArray[Any]:
    """Each scale as often as numbers share it."""
    return np.repeat(scales, np.diff(bounds))
