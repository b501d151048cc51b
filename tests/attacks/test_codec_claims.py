"""A few bytes that claim many numbers: layouts decide before memory is taken for them."""

from __future__ import annotations

import tracemalloc
import zlib

import msgspec
import numpy as np
import pytest

from protofleet.errors import RefusedError
from protofleet.federation.coding import decode_payload, decode_update, largest_blob
from protofleet.strategies.types import TensorSchema, TensorSchemas
from protofleet.tensors import Layout, Model, TensorMap, blobs
from protofleet.wire.codecs import CODECS, Coding

_FORMS = TensorSchemas(required={"params/w": TensorSchema((100_000,))})
_LIMIT = largest_blob(_FORMS)


def _coded(kind, claimed, name="params/w", shape=None):
    """Zeros in the streams that ``claimed`` numbers need, and what the offer says."""
    codes = {
        "fp16": ("halves", np.zeros(2 * claimed, np.uint8)),
        "int8": ("codes", np.zeros(claimed, np.int8)),
        "int4": ("nibbles", np.full(-(-claimed // 2), 0x88, np.uint8)),
        "topk": ("bitmaps", np.zeros(-(-claimed // 8), np.uint8)),
    }
    stream, values = codes[kind]
    streams = {f"codec/{stream}": values}
    if kind in {"int8", "int4"}:
        streams["codec/scales"] = np.zeros(-(-claimed // 256), np.float32)
    table = [[name, shape or [claimed], kind, False]]
    about = {"codec": msgspec.json.encode(table).decode(), "update": "{}"}
    blob = blobs.encode(streams, about)
    return zlib.compress(blob, 9), Coding(codec=f"{kind}+zlib", raw_bytes=len(blob))


def _decoders():
    nothing = TensorMap.zeros(Layout.of({}))
    model = Model(params=nothing, buffers=nothing, num_classes=2, input_shape=(1,))
    return {
        "payload": lambda blob, coding: decode_payload(blob, coding, model, {}.get, forms=_FORMS),
        "update": lambda blob, coding: decode_update(
            blob, coding, {}, max_bytes=_LIMIT, forms=_FORMS
        ),
    }


def _refused(which, blob, coding):
    """The broken rule, and the most memory that was taken meanwhile."""
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError) as caught:
            _decoders()[which](blob, coding)
        return caught.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("which", ["payload", "update"])
@pytest.mark.parametrize("kind", ["int4", "topk"])
def test_kilobytes_that_claim_millions_of_numbers_take_no_memory_for_them(which, kind):
    """Without a layout 34 kB became 665 MB."""
    claimed = {"int4": 60_000_000, "topk": 67_000_000}[kind]
    blob, coding = _coded(kind, claimed)
    assert len(blob) < 40_000
    error, most = _refused(which, blob, coding)
    assert "before compression" in str(error)
    assert most < 1_000_000


@pytest.mark.parametrize("which", ["payload", "update"])
@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize(
    ("claimed", "name", "shape"),
    [
        (500_000, "params/w", None),
        (100_000, "params/x", None),
        (100_000, "params/w", [1000, 100]),
        (100_001, "params/w", None),
    ],
)
def test_tensors_of_another_layout_are_refused_before_they_are_made(
    which, kind, claimed, name, shape
):
    blob, coding = _coded(kind, claimed, name, shape)
    assert coding.raw_bytes <= _LIMIT
    error, most = _refused(which, blob, coding)
    assert error.rule == "layout"
    assert most < 2 * coding.raw_bytes + 200_000  # inflated, and not decoded


def test_the_largest_blob_holds_every_update_of_its_layout():
    """In each codec and with the largest record."""
    value = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    about = {"update": "x" * (blobs.MAX_HEADER_BYTES // 2)}
    assert len(blobs.encode({"params/w": value}, about)) <= _LIMIT
