from __future__ import annotations

import pytest
from attacks.hostile import INFER, PARAMS, assert_refused


@pytest.mark.parametrize("name", [PARAMS, INFER, "programs/train.onnx", "programs/features.onnx"])
@pytest.mark.parametrize("place", [0, -1])
def test_one_altered_byte_in_any_file_is_refused(forge, name, place):
    """Both forms; the archive's checksum is made to fit, so that only the signed hash can tell."""
    altered = bytearray(forge.files[name])
    altered[place] ^= 1
    forge.files[name] = bytes(altered)
    assert_refused("sha256", *forge.both(), match=name)
