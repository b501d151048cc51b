"""All codecs; a new one is a file beside this one, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from protofleet.wire.codecs.fp16 import Fp16
from protofleet.wire.codecs.int4 import Int4
from protofleet.wire.codecs.int8 import Int8
from protofleet.wire.codecs.tensor_codec import TensorCodec
from protofleet.wire.codecs.topk import TopK

RAW: Final = "raw"
"""No codec: tensors travel bit for bit."""
CODECS: Mapping[str, type[TensorCodec]] = MappingProxyType(
    {one.name: one for one in (Fp16, Int8, Int4, TopK)}
)
ZLIB = "+zlib"
NAMES = (RAW, *(name + end for name in CODECS for end in ("", ZLIB)))
"""What an offer may name."""
STREAMS = tuple(dict.fromkeys(stream for one in CODECS.values() for stream in one.streams))
UP = (RAW, *CODECS)
"""What the federation file may ask for, for updates …"""
DOWN = (RAW, *(name for name, one in CODECS.items() if one.for_payloads))
"""… and for payloads."""
