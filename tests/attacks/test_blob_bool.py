from __future__ import annotations

from attacks.hostile import assert_refused, blob, entry


def test_a_bool_that_is_neither_zero_nor_one_is_refused(forge):
    data = blob({"a": entry([2], 0, 2, "BOOL")}, b"\x01\x02")
    assert_refused("blob-bool", *forge.put_params(data).both())
