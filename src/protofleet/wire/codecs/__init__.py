"""Codecs: what stands between a strategy's tensors and the blob that travels.

``raw`` is the blob of ``blobs.encode`` itself, bit for bit. The others send float32 tensors of 32
and more finite numbers with fewer bits, and everything else as it is:

========  =================================================================================
codec     a float32 tensor travels as
========  =================================================================================
``fp16``  float16, its bytes in planes
``int8``  8-bit codes, with one float32 scale for every 256 of a tensor
``int4``  4-bit codes with such scales, where what they lose is made up for; else as in ``int8``
``topk``  a parameter of an update: a bitmap of its largest entries and their 8-bit codes; any
          other tensor: as in ``int8``
========  =================================================================================

What both ends know already is subtracted first, tensor by tensor: the *baseline*, which its
*reference* names. What coding loses is made up for in one of two ways. A payload refers to what an
earlier one decoded to, so the next one corrects it. Of an update's parameters, the sender keeps
what was lost and adds it the next time (Stich et al., arXiv:1809.07599v2); likewise of its
increments, the tensors whose names begin with ``change/``: the server adds them up, so they have no
baseline, and no less than 8 bits. Other tensors of an update get no such memory: a class mean or a
prototype is stated anew every round, and an old error is no part of it.

``+zlib`` behind a codec's name says that the whole blob is compressed. ``docs/protocol.md``
specifies the format, section Codecs.
"""

from protofleet.wire.codecs.coding import (
    SMALL,
    CheckLayout,
    Codec,
    Coding,
    Encoded,
    decode,
    encode,
    to_raw,
)
from protofleet.wire.codecs.registry import CODECS, DOWN, NAMES, RAW, UP, ZLIB
from protofleet.wire.codecs.streams import PREFIX
from protofleet.wire.codecs.tensor_codec import MOST_VALUE, TensorCodec

__all__ = [
    "CODECS",
    "DOWN",
    "MOST_VALUE",
    "NAMES",
    "PREFIX",
    "RAW",
    "SMALL",
    "UP",
    "ZLIB",
    "CheckLayout",
    "Codec",
    "Coding",
    "Encoded",
    "TensorCodec",
    "decode",
    "encode",
    "to_raw",
]
