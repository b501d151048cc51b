from __future__ import annotations

import numpy as np
import pytest
from attacks.hostile import assert_refused

from protofleet.tensors.blobs import encode


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_parameters_that_are_not_finite_are_refused(forge, value):
    def poison(tensors):
        tensors["w"][3, 2] = value

    assert_refused("finite", *forge.change_params(poison).both(), match="'w'")


def test_state_that_is_not_finite_is_refused(forge):
    forge.manifest["state"] = [{"name": "beta", "shape": []}]
    forge.files["state.safetensors"] = encode({"beta": np.array(np.nan, np.float32)})
    assert_refused("finite", *forge.declare().both(), match="'beta'")
