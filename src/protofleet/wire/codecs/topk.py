"""``topk``: a bitmap of a parameter's largest entries, and their codes as in ``int8``.

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (arXiv:1809.07599v2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from protofleet.kernels import topk_encode
from protofleet.wire.codecs.int8 import Int8
from protofleet.wire.codecs.streams import Reader, Stream, Writer, refused
from protofleet.wire.codecs.tensor_codec import Circumstances, Floats, TensorCodec

_BITMAPS = Stream("bitmaps", np.uint8)
"""Most significant bit first."""


@dataclass(frozen=True, slots=True)
class TopK(TensorCodec):
    """Of an update's parameters; what is not sent is kept for the next time.

    Attributes:
        keep: share of the entries that is sent, in (0, 1]; the others read as zero.
    """

    name = "topk"
    streams = (_BITMAPS, *Int8.streams)
    for_payloads = False

    keep: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep: expected a fraction above 0 up to 1.0, got {self.keep}")

    @property
    def text(self) -> str:
        """``topk 0.1``."""
        return f"{self.name} {self.keep:g}"

    def fits(self, tensor: Circumstances) -> bool:
        """Where the sender remembers what it has left out."""
        return tensor.remembered

    def write(self, values: Floats, streams: Writer) -> Floats:
        """As ``TensorCodec``."""
        most = math.ceil(self.keep * values.size)
        indices, largest = topk_encode(values, np.zeros_like(values), most)
        chosen = np.zeros(values.size, np.bool_)
        chosen[indices] = True
        streams.append(_BITMAPS, np.packbits(chosen))
        sent = np.zeros_like(values)
        sent[indices] = Int8().write(largest, streams)
        return sent

    @staticmethod
    def read(size: int, streams: Reader) -> Floats:
        """As ``TensorCodec``."""
        chosen = np.unpackbits(streams.take(_BITMAPS, -(-size // 8))).view(np.bool_)
        if chosen[size:].any():
            raise refused("bitmap: expected zeros behind the last number")
        values = np.zeros(size, np.float32)
        values[chosen[:size]] = Int8.read(int(np.count_nonzero(chosen)), streams)
        return values
