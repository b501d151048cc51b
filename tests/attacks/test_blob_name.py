from __future__ import annotations

import pytest
from attacks.hostile import assert_refused, blob, entry


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", "\x1b[2J", "a\x00b", "\u202egnp"])
def test_a_name_that_cannot_be_shown_is_refused(forge, name):
    data = blob({name: entry([1], 0, 4)}, bytes(4))
    assert_refused("blob-name", *forge.put_params(data).both())
