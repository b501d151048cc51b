from __future__ import annotations

import pytest
from attacks.hostile import assert_refused, blob, entry

_BLOBS = {
    "overlap": blob({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
    "same-bytes-twice": blob({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}, bytes(8)),
    "gap": blob({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12)),
    "starts-late": blob({"a": entry([1], 4, 8)}, bytes(8)),
    "backwards": blob({"a": entry([1], 4, 0)}, bytes(4)),
    "past-the-end": blob({"a": entry([2], 0, 8)}, bytes(4)),
    "bytes-left-over": blob({"a": entry([1], 0, 4)}, bytes(8)),
    "bytes-of-nobody": blob({}, bytes(8)),
    "negative": blob({"a": entry([1], -4, 0)}, bytes(4)),
    "overflow": blob({"a": entry([1], 0, 1 << 64)}, bytes(4)),
    "float": blob({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4.0]}}, bytes(4)),
    "bool": blob({"a": {"dtype": "F32", "shape": [1], "data_offsets": [False, 4]}}, bytes(4)),
    "three": blob({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, bytes(4)),
}


@pytest.mark.parametrize("data", _BLOBS.values(), ids=_BLOBS)
def test_offsets_that_do_not_tile_the_data_are_refused(forge, data):
    assert_refused("blob-offsets", *forge.put_params(data).both())
