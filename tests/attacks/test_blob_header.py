from __future__ import annotations

import pytest
from attacks.hostile import assert_refused, blob, entry

_MANY = {f"t{index}": entry([0], 0, 0) for index in range(4097)}
_BLOBS = {
    "empty": b"",
    "seven-bytes": bytes(7),
    "length-past-the-end": (1 << 62).to_bytes(8, "little") + b"{}",
    "length-all-ones": b"\xff" * 8 + b"{}",
    "huge-header": blob(b'{"a":' + b" " * (2 << 20) + b"1}"),
    "no-json": blob(b"\x80\x04"),
    "list": blob(b"[]"),
    "deep": blob(b"[" * 50_000),
    "repeated-tensor": blob(
        b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
        b'"a":{"dtype":"F32","shape":[0,1],"data_offsets":[0,0]}}'
    ),
    "metadata-of-numbers": blob({"__metadata__": {"a": 1}}),
    "metadata-list": blob({"__metadata__": ["a"]}),
    "entry-list": blob({"a": [1]}),
    "entry-with-surplus-key": blob({"a": {**entry([0], 0, 0), "stride": [1]}}),
    "entry-without-shape": blob({"a": {"dtype": "F32", "data_offsets": [0, 0]}}),
    "too-many": blob(_MANY),
}


@pytest.mark.parametrize("data", _BLOBS.values(), ids=_BLOBS)
def test_a_hostile_header_is_refused(forge, data):
    assert_refused("blob-header", *forge.put_params(data).both())
