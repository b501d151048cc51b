from __future__ import annotations

import pytest
from attacks.hostile import assert_refused


@pytest.mark.parametrize(
    "change",
    [
        {"std": [0.0]},
        {"std": [-1.0]},
        {"mean": []},
        {"mean": [0.0, 1.0]},
        {"channels": ["x", "y"], "mean": [0.0, 0.0, 0.0]},
        {"input_shape": [0]},
        {"rate_hz": 0.0},
        {"window": -128},
        {"hop": 0},
        {"tokens": 0},
        {"tokens": 2**24 + 1},
        {"tokens": 50, "mean": [1.0]},
        {"input_shape": [1] * 9},
        {"input_shape": [2**12, 2**13]},
        {"input_shape": [2**62, 2**62]},
        {"rate_hz": 1e7},
        {"window": 2**24 + 1},
        {"hop": 2**60},
        {"mean": [1e39]},
        {"std": [1e39]},
        {"std": [1e-300]},
        {"channels": ["\x1b[2J"]},
        {"channels": ["x"] * 4097},
    ],
    ids=str,
)
def test_numbers_that_cannot_prepare_an_example_are_refused(forge, change):
    forge.manifest["preprocessing"].update(change)
    assert_refused("preprocessing", *forge.both())
