from __future__ import annotations

import numpy as np
import pytest

from protofleet.errors import RefusedError
from protofleet.tensors.blobs import decode, encode


def test_a_blob_above_the_callers_limit_is_refused_unparsed():
    """Inside a bundle the declared size comes first; the rule speaks where blobs travel alone."""
    data = encode({"a": np.zeros(100, np.float32)})
    with pytest.raises(RefusedError, match="allowed") as caught:
        decode(data, max_bytes=len(data) - 1)
    assert caught.value.rule == "blob-size"
    assert decode(data, max_bytes=len(data))[0]["a"].shape == (100,)
