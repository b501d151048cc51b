"""``int4``: codes of 4 bits with scales as in ``int8``, where what they lose is made up for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.wire.codecs.int8 import SCALES, blocks, spread
from protofleet.wire.codecs.streams import Reader, Stream, Writer, refused
from protofleet.wire.codecs.tensor_codec import MOST_SCALE, Circumstances, Floats, TensorCodec

_NIBBLES = Stream("nibbles", np.uint8)
"""Codes of 1 to 15, for -7 to 7, the first of two in the high half."""
_LEAST_SCALE = np.finfo(np.float32).tiny  # below, arithmetic differs between machines


class Int4(TensorCodec):
    """An eighth of the bits."""

    name = "int4"
    streams = (_NIBBLES, SCALES)

    def fits(self, tensor: Circumstances) -> bool:
        """Where something makes up for what it loses."""
        return tensor.remembered or tensor.corrected

    def write(self, values: Floats, streams: Writer) -> Floats:
        """As ``TensorCodec``."""
        bounds = blocks(values.size)
        peaks = np.maximum.reduceat(np.abs(values), bounds[:-1]) / np.float32(7)
        scales = np.maximum(peaks, _LEAST_SCALE)
        codes = np.zeros(values.size + values.size % 2, np.uint8)
        codes[: values.size] = np.rint(values / spread(scales, bounds)) + 8
        nibbles = codes[::2] << 4 | codes[1::2]
        streams.append(_NIBBLES, nibbles)
        streams.append(SCALES, scales)
        return _from_nibbles(nibbles, scales, bounds)

    @staticmethod
    def read(size: int, streams: Reader) -> Floats:
        """As ``TensorCodec``."""
        bounds = blocks(size)
        nibbles = streams.take(_NIBBLES, -(-size // 2))
        return _from_nibbles(nibbles, streams.take(SCALES, len(bounds) - 1), bounds)


def _from_nibbles(nibbles: NDArray[Any], scales: NDArray[Any], bounds: NDArray[np.int64]) -> Floats:
    size = int(bounds[-1])
    codes = np.stack([nibbles >> 4, nibbles & 15], axis=1).reshape(-1)
    if codes[size:].any() or codes[:size].min(initial=1) == 0:
        raise refused("nibbles: expected codes of 1 to 15, and 0 behind the last")
    if not ((scales >= 0) & (scales <= MOST_SCALE)).all():
        raise refused(f"int4 scales: expected 0 to {MOST_SCALE}")
    values: Floats = codes[:size].astype(np.float32) - np.float32(8)
    values *= spread(scales, bounds)
    return values
