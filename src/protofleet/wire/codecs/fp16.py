"""``fp16``: float16, its bytes in planes."""

from __future__ import annotations

import numpy as np

from protofleet.kernels import fp16_decode, fp16_encode
from protofleet.wire.codecs.streams import Reader, Stream, Writer
from protofleet.wire.codecs.tensor_codec import Circumstances, Floats, TensorCodec

_HALVES = Stream("halves", np.float16, planes=True)
# Of normal float16 numbers: beyond, values are cut off, and below, they lose their bits.
_MOST, _LEAST = float(np.finfo(np.float16).max), float(np.finfo(np.float16).tiny)


class Fp16(TensorCodec):
    """Half of the bits."""

    name = "fp16"
    streams = (_HALVES,)

    def fits(self, tensor: Circumstances) -> bool:
        """Where its largest number is a normal float16."""
        return tensor.peak == 0 or _LEAST <= tensor.peak <= _MOST

    def write(self, values: Floats, streams: Writer) -> Floats:
        """As ``TensorCodec``."""
        halves = fp16_encode(values)
        streams.append(_HALVES, halves)
        return fp16_decode(halves)

    @staticmethod
    def read(size: int, streams: Reader) -> Floats:
        """As ``TensorCodec``."""
        return fp16_decode(streams.take(_HALVES, size))
