from __future__ import annotations

import pytest
from attacks.hostile import assert_refused, blob, entry


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "C64", "O", "", "f32", None, 1, ["F32"]])
def test_a_dtype_outside_the_list_is_refused(forge, dtype):
    data = blob({"a": {**entry([1], 0, 4), "dtype": dtype}}, bytes(4))
    assert_refused("blob-dtype", *forge.put_params(data).both())
